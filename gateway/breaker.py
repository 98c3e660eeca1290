"""Which pools must be stopped: their placeholders die, one after the other, before they are of any use. Pure.

    closed ──▶ several in a row that never came up ──▶ open: replicas 0, the reason on the Deployment
       ▲                                                │
       └── its template was changed, or a person took the reason off ◀──┘

A ReplicaSet replaces a pod that failed at once and without end: with a daemon that does not start, or an
image that is not there, it would fill the namespace's quota and keep nodes, registry and API server
busy. What is open stands in the annotation `names.ANNOTATION_BROKEN`, so that it survives every gateway.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from gateway.model import Broken
from gateway.provider import endings
from gateway.provider.pods import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gateway.model import Instance, PoolSpec

LEAST_IN_A_ROW, MOST_IN_A_ROW = 2, 3
"""Placeholders in a row that did not come up, of a pool of which none is of use: as many as it wants, within
these. So it makes twice its size in pods at most: each that failed was replaced once."""
STUCK_S = 300.0
"""Seconds after which a placeholder whose image cannot be pulled for a passing reason counts as failed: as
long as a sandbox's image may take. Nothing floods meanwhile, for it is pending and is not replaced."""
FAULTS = frozenset({"died", "oom", "image_not_found", "image_denied", "image_pull"})
"""Ends that the template may be to blame for; evictions, lost nodes and deletions are the cluster's."""
CERTAIN = frozenset({"missing", "denied", "invalid", "never"})
"""Ways in which a pull fails that no waiting mends (`provider.endings`)."""


class PoolKey(NamedTuple):
    """A pool of one namespace: others may have one of the same name."""

    namespace: str
    pool: str


class Trip(NamedTuple):
    """A pool that must be stopped, and why."""

    spec: PoolSpec
    reason: str


@dataclasses.dataclass(slots=True)
class _Row:
    """What was seen of one pool since a placeholder of it was last of use."""

    streak: int = 0
    why: str = ""
    stuck: dict[str, tuple[float, str]] = dataclasses.field(default_factory=dict)
    """By uid: since when, and what it says."""
    counted: set[str] = dataclasses.field(default_factory=set)


class Breaker:
    """Counts placeholders that never came up, for all pools."""

    def __init__(self) -> None:
        self._rows: dict[PoolKey, _Row] = {}

    def __repr__(self) -> str:
        streaks = {key.pool: row.streak for key, row in self._rows.items() if row.streak}
        return f"<Breaker in_a_row={streaks}>"

    # --- what is seen ---

    def saw(self, instance: Instance, clock: Callable[[], float], *, is_new: bool = True) -> None:
        """A placeholder that was not of use yet, as it is now.

        Args:
            clock: seconds, going forward only.
            is_new: False for what had failed before this gateway began: others have dealt with it.
        """
        key, uid = _key(instance), instance.uid
        row = self._rows.setdefault(key, _Row())
        if instance.ending is not None:
            row.stuck.pop(uid, None)
            if is_new and not instance.deleting and instance.ending.reason in FAULTS:
                self._count(row, uid, instance.ending.detail)
        elif instance.is_stuck and instance.waiting is not None and not instance.deleting:
            reason, message = instance.waiting
            told = f"{reason}: {message}" if message else reason
            if endings.pull_kind(told, instance.image) in CERTAIN or reason == "InvalidImageName":
                self._count(row, uid, told)
            else:
                row.stuck.setdefault(uid, (clock(), told))
        else:
            row.stuck.pop(uid, None)

    def useful(self, instance: Instance) -> None:
        """A placeholder's daemon answered: what failed before was not the template's fault."""
        self._rows.pop(_key(instance), None)

    def gone(self, instance: Instance) -> None:
        """The pod is no more."""
        row = self._rows.get(_key(instance))
        if row is not None:
            row.stuck.pop(instance.uid, None)
            row.counted.discard(instance.uid)

    def forget(self, spec: PoolSpec) -> None:
        """Count anew: the pool was stopped, or begins again."""
        self._rows.pop(PoolKey(spec.namespace, spec.name), None)

    def _count(self, row: _Row, uid: str, why: str) -> None:
        if uid not in row.counted:
            row.counted.add(uid)
            row.streak += 1
            row.why = why

    # --- the decision ---

    @property
    def is_calm(self) -> bool:
        """Whether no pool can be due: nothing has failed since something last came up."""
        return not any(row.streak or row.stuck for row in self._rows.values())

    def due(
        self, specs: Iterable[PoolSpec], useful: Mapping[PoolKey, int], now: float
    ) -> list[Trip]:
        """Pools to be stopped now.

        Args:
            specs: all pools.
            useful: by pool, how many placeholders are of use just now.
            now: on the clock of `saw`.
        """
        found = []
        for spec in specs:
            key = PoolKey(spec.namespace, spec.name)
            row = self._rows.get(key)
            if row is None or is_open(spec) or not spec.wanted:
                continue
            for uid, (since, why) in list(row.stuck.items()):
                if now - since >= STUCK_S:
                    del row.stuck[uid]
                    self._count(row, uid, why)
            if row.streak >= limit(spec.wanted, useful.get(key, 0)):
                text = f"{row.streak} placeholders in a row did not come up, the last: {row.why}"
                found.append(Trip(spec, text))
        return found


def limit(wanted: int, useful: int) -> int:
    """How many in a row stop a pool. One of which some are of use has no bad template, but perhaps a bad node:
    it is stopped when as many have failed as it has."""
    least = min(max(LEAST_IN_A_ROW, wanted), MOST_IN_A_ROW)
    return max(least, wanted) if useful else least


def is_open(spec: PoolSpec) -> bool:
    """Whether the pool is stopped: it must be neither scaled nor asked for sandboxes."""
    return spec.stopped


def is_to_restart(spec: PoolSpec) -> bool:
    """Whether what stopped it holds no more: its template was changed."""
    return spec.broken is not None and not spec.stopped


def is_to_stop_again(spec: PoolSpec) -> bool:
    """Whether somebody has scaled a pool that is open: a tool that keeps Deployments as they are in some
    repository, or a person who did not see why. The reason must be taken off first."""
    return spec.stopped and spec.wanted > 0


def opened(trip: Trip, now: float) -> Broken:
    """What is written on the Deployment. `now`: seconds since the epoch."""
    return Broken(trip.reason, now, trip.spec.wanted, fingerprint(trip.spec.template))


def _key(instance: Instance) -> PoolKey:
    return PoolKey(instance.namespace, instance.pool)
