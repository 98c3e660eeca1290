"""Which free placeholders are on which node, so that one near its image is found at once. Pure."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection

LOOKS = 16
"""Nodes compared for one choice: enough to spread a burst; to compare all of 500 cost 0.2 ms a claim."""


class Placed(Protocol):
    """What the index needs to know of a placeholder."""

    @property
    def uid(self) -> str:
        """The pod's."""

    @property
    def pool(self) -> str:
        """Whose it is."""

    @property
    def node(self) -> str:
        """Where it is."""


T = TypeVar("T", bound=Placed)


class ByNode(Generic[T]):
    """Placeholders by pool, what they serve, and node. What they serve is empty for those whose image may be changed."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], dict[str, OrderedDict[str, T]]] = {}

    def add(self, slot: T, what: str = "") -> None:
        """One may be chosen."""
        nodes = self._kinds.setdefault((slot.pool, what), {})
        nodes.setdefault(slot.node, OrderedDict())[slot.uid] = slot

    def remove(self, slot: T, what: str = "") -> None:
        """It may not any more; one that was not added is no error."""
        nodes = self._kinds.get((slot.pool, what), {})
        here = nodes.get(slot.node)
        if here is None or here.pop(slot.uid, None) is None:
            return
        if not here:
            del nodes[slot.node]
        if not nodes:
            del self._kinds[slot.pool, what]

    def best(self, pool: str, *, near: Collection[str], avoid: Collection[str] = ()) -> T | None:
        """One on a node of `near`: of the first `LOOKS` that have any, on the one with the most, which spreads
        what is asked for at once. None when there is none on these nodes, or on those to be avoided alone."""
        nodes = self._kinds.get((pool, ""), {})
        # The shorter side is walked: there may be a thousand nodes that hold an image, or are free.
        few, many = (near, nodes) if len(near) < len(nodes) else (nodes, near)
        fit = (name for name in few if name in many and name not in avoid)
        found = list(itertools.islice(fit, LOOKS))
        if not found:
            return None
        return next(iter(nodes[max(found, key=lambda name: len(nodes[name]))].values()))

    def elsewhere(self, pool: str, avoid: Collection[str], what: str = "") -> T | None:
        """One on any node but these: no more nodes are looked at than these and one."""
        nodes = self._kinds.get((pool, what), {})
        name = next((one for one in nodes if one not in avoid), None)
        return None if name is None else next(iter(nodes[name].values()))
