"""The last allocations and how long they took, for whoever looks at the page. Pure; memory of one replica."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gateway.model import Ready

KEPT_MAX = 256
"""Allocations kept of each tenant: what a chart shows as points."""
TENANTS_MAX = 256
"""Tenants kept: those that allocated last. 256 of both are 8 MB."""


class Allocated(NamedTuple):
    """One of them. `at` in seconds since the epoch, the others in milliseconds."""

    at: float
    tier: str
    queued_ms: float
    total_ms: float


class Recent:
    """The last ones of each tenant."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[Allocated]] = OrderedDict()

    def note(self, made: Ready, now: float) -> None:
        """A sandbox was handed over."""
        tenant, timings = made.instance.tenant or "", made.timings
        total = timings.queued_ms + timings.claim_ms + timings.ready_ms
        kept = self._of.setdefault(tenant, deque(maxlen=KEPT_MAX))
        kept.append(Allocated(now, made.instance.tier or "unknown", timings.queued_ms, total))
        self._of.move_to_end(tenant)
        while len(self._of) > TENANTS_MAX:
            self._of.popitem(last=False)

    def of(self, tenant: str) -> list[Allocated]:
        """One tenant's, the oldest first."""
        return list(self._of.get(tenant, ()))
