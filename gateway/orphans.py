"""Which pods nobody holds, and nobody ever will. Pure; moments on one replica's monotonic clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandman import names

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from gateway.model import Instance

HANDOVER_S = 60.0
"""Seconds from the claim to the handshake of one that runs; a swap takes a fifth of one. Its allocator may
have ended in between, and the caller may come back with its key meanwhile."""
START_S = 600.0
"""Seconds after which a claimed pod that does not run is given up: twice what an allocation waits for an
image (`SANDMAN_GATEWAY_IMAGE_S`), so that a living allocator always comes first."""
POOLLESS_S = 60.0
"""Seconds that free pods outlive their pool: it may only be made anew."""
LOST_S = 10.0
"""Seconds that a node is lost before its sandboxes are looked at. It takes the node controller 40 to 50 s
to say so, and with the two looks it is said within 90 s that a sandbox is lost."""
BURY_S = 30.0
"""Seconds that a deleted pod of a lost node is left to its kubelet, should it come back."""


class Watched:
    """How long this replica has seen pods as they are."""

    def __init__(self) -> None:
        self._met: set[str] = set()
        self._unmet: dict[str, float] = {}
        self._poolless: dict[str, float] = {}
        self._deleting: dict[str, float] = {}
        self._silent: set[str] = set()

    def met(self, uid: str) -> None:
        """Its daemon has taken its claim."""
        self._met.add(uid)
        self._unmet.pop(uid, None)

    def unmet(
        self, found: Iterable[Instance], now: float, in_hand: Container[str | None]
    ) -> list[Instance]:
        """Claimed pods whose handshake nobody here knows of, long after their claim.

        Args:
            found: every pod.
            now: the clock.
            in_hand: claims that are being carried out.
        """
        held = {
            one.uid: one
            for one in found
            if one.state == names.STATE_LEASED
            and one.ending is None
            and not one.deleting
            and one.claim_id not in in_hand
        }
        self._met &= held.keys()
        self._unmet = {uid: self._unmet.get(uid, now) for uid in held if uid not in self._met}
        return [held[uid] for uid, since in self._unmet.items() if now - since >= HANDOVER_S]

    def is_hopeless(self, one: Instance, now: float) -> bool:
        """Whether a claimed pod that does not answer never ran."""
        since = self._unmet.get(one.uid, now)
        return not one.running and now - since >= START_S

    def to_delete(
        self, found: Iterable[Instance], pools: Container[str], now: float
    ) -> list[Instance]:
        """Free pods of pools that are no more, and sandboxes that were told to end and run on: whoever told
        them did not live to delete them."""
        living = [one for one in found if not one.deleting]
        poolless = {
            one.uid: one
            for one in living
            if one.state == names.STATE_FREE and one.pool not in pools
        }
        self._poolless = {uid: self._poolless.get(uid, now) for uid in poolless}
        left = [
            one
            for one in living
            if one.state == names.STATE_LEASED and one.ending is not None and one.running
        ]
        old = [uid for uid, since in self._poolless.items() if now - since >= POOLLESS_S]
        return [*(poolless[uid] for uid in old), *left]

    def to_bury(
        self, found: Iterable[Instance], lost_nodes: Container[str], now: float
    ) -> list[Instance]:
        """Deleted pods whose kubelet will not say that they are gone."""
        deleting = {one.uid: one for one in found if one.deleting and one.node in lost_nodes}
        self._deleting = {uid: self._deleting.get(uid, now) for uid in deleting}
        return [deleting[uid] for uid, since in self._deleting.items() if now - since >= BURY_S]

    def silent(self, suspects: Iterable[Instance], silent: Iterable[Instance]) -> list[Instance]:
        """Sandboxes of lost nodes that did not answer twice in a row.

        Args:
            suspects: those that were asked.
            silent: those of them that did not answer.
        """
        known = self._silent & {one.uid for one in suspects}
        self._silent = {one.uid for one in silent}
        return [one for one in silent if one.uid in known]


def on_lost_nodes(
    leased: Iterable[Instance], lost_nodes: Mapping[str, float], now: float
) -> list[Instance]:
    """Sandboxes of nodes that are lost for a while. `lost_nodes`: name → since when."""
    old = {name for name, since in lost_nodes.items() if now - since >= LOST_S}
    return [one for one in leased if one.node in old]
