"""What a tenant may have of what there is. Pure values."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """What a tenant may have of what there is."""

    weight: float = 1.0
    """Against other tenants while both wait; greater than 0."""
    concurrent: int | None = None
    """Most sandboxes at once, those that are asked for included; None for no limit."""
    images: tuple[str, ...] | None = None
    """Patterns of the images that it may use (`references.is_allowed`); None for all."""
    rate: float | None = None
    """Most sandboxes made in a second, on average; None for no limit."""
    cpu: float | None = None
    """Most cores at once, as the pods of its sandboxes request them; None for no limit."""
    memory: int | None = None
    """Most bytes of memory at once, likewise."""
    networks: tuple[str, ...] | None = None
    """Egress profiles that it may ask for, of those that a pool lets be asked for; None for all of them."""
    eval_reserved: int | None = None
    """So many of `concurrent` are for evaluations alone; None for no such share."""


DEFAULT_SHARE = Share()
