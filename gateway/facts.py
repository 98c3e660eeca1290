"""What the API server knows of a sandbox's pod and node, for certificates. No I/O."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gateway.model import NO_AMOUNTS, Amounts

if TYPE_CHECKING:
    from gateway.changed import Changes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """A node, as its kubelet has registered it."""

    name: str
    node_class: str | None = None
    kernel: str = ""
    os: str = ""
    architecture: str = ""
    runtime: str = ""
    """The container runtime and its version."""
    kubelet: str = ""
    allocatable: Amounts = NO_AMOUNTS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A pod, and the node that it is on. None and empty: not known."""

    image_digest: str | None = None
    qos: str | None = None
    runtime_class: str | None = None
    restarts: int | None = None
    """How often the container was started anew; a swap is one of them."""
    container_started_at: float | None = None
    """Seconds since the epoch."""
    network_changes: Changes | None = None
    """Egress profiles that it had since its claim; None: no other than it has."""
    node: NodeFacts | None = None


UNKNOWN = Facts()
