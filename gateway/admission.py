"""Who is let into the queue: refused at once, with the reason, is what could only wait in vain."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from gateway import quota
from gateway.model import Purpose
from sandman.errors import CapacityError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from gateway.fulfilment import Fulfilment
    from gateway.model import Share
    from gateway.roster import Roster
    from gateway.wants import Want

EVAL_PART = 8
"""An eighth of the queue's places comes on top of them for evaluations, so that rollouts cannot fill it for those."""
FULL_RETRY_S = 1.0
"""Seconds after which a caller who found the queue full is told to ask again."""


class Admission:
    """The limits of the queue, of pools and of tenants.

    Args:
        roster: what there is.
        fulfilment: knows what is on its way.
        queue_max: most in the queue or being served.
    """

    def __init__(self, roster: Roster, fulfilment: Fulfilment, queue_max: int) -> None:
        self._roster = roster
        self._fulfilment = fulfilment
        self._queue_max = queue_max
        self._buckets: dict[str, quota.Bucket] = {}
        self._asked: dict[str, quota.Amount] = {}
        """By tenant: what those who were let in are to have."""
        self._rollouts: Counter[str] = Counter()
        """By tenant: how many of them are for no evaluation."""
        self._count = 0

    def enter(self, wants: Sequence[Want], now: float) -> None:
        """Let all of these in, of one tenant and one request, or none; each must `leave`.

        Args:
            wants: those who ask.
            now: seconds, on a clock that goes forward.

        Raises:
            CapacityError: the queue is full.
            QuotaError: a limit of the tenant or the pool is reached.
        """
        most = self._queue_max
        if wants and _is_eval(wants[0]):
            most += math.ceil(most / EVAL_PART)
        if self._count + len(wants) > most:
            facts = {"queue": "full", "limit": most, "asked": len(wants)}
            raise CapacityError("the queue is full", retry_after=FULL_RETRY_S, facts=facts)
        if wants:
            self._check_pool(wants)
            self._check_tenant(wants, now)
        for want in wants:
            self._count += 1
            self._asked[want.tenant] = self._asked.get(want.tenant, quota.NOTHING) + want.cost
            self._rollouts[want.tenant] += not _is_eval(want)

    def leave(self, want: Want) -> None:
        """One has what it wanted, or does not want it any more."""
        self._count -= 1
        self._rollouts[want.tenant] -= not _is_eval(want)
        left = self._asked[want.tenant] + want.cost * -1
        # Floats: what nobody asks for is nothing, and not nearly so.
        self._asked[want.tenant] = left if left.count else quota.NOTHING

    def _check_pool(self, wants: Sequence[Want]) -> None:
        """Refuse a gang that its pool can never hold together."""
        spec = self._roster.pools.get(wants[0].request.pool)
        if not wants[0].gang or spec is None:
            return
        room = spec.most if self._roster.allocation.may_make else spec.wanted
        if room is not None and len(wants) > room:
            raise quota.never(
                f"pool {spec.name!r} holds {room} sandboxes at most: no gang of {len(wants)}",
                {"limit": room, "asked": len(wants), "resource": "pool"},
            )

    def _check_tenant(self, wants: Sequence[Want], now: float) -> None:
        tenant, share = wants[0].tenant, wants[0].share
        asked = wants[0].cost * len(wants)
        is_eval = _is_eval(wants[0])
        held = 0 if is_eval else share.eval_reserved or 0
        if not self._is_far_from(share, tenant, asked, held):
            ahead = self._ahead(wants[0])
            quota.check(share, self.used(tenant, ahead), asked)
            if not is_eval:
                quota.check_rollouts(share, self._rollouts_of(tenant, ahead), asked.count)
        if share.rate is not None:
            # Last, so that who is refused for another reason has spent nothing.
            bucket = self._buckets.setdefault(tenant, quota.Bucket())
            bucket.take(len(wants), share.rate, now)

    def _is_far_from(self, share: Share, tenant: str, asked: quota.Amount, held: int) -> bool:
        """Whether nothing need be counted one by one: bursts have thousands of sandboxes."""
        if share.cpu is not None or share.memory is not None:
            return False
        others = self._asked.get(tenant, quota.NOTHING).count + self._roster.registry.most(tenant)
        return share.concurrent is None or others + asked.count <= share.concurrent - held

    def _ahead(self, want: Want) -> set[str | None]:
        """Claims of what is prepared for this, which will be what is asked for."""
        return set() if want.reservation else set(self._roster.prepared_claims(want.prepared))

    def _rollouts_of(self, tenant: str, besides: AbstractSet[str | None]) -> int:
        """How many sandboxes a tenant has or is getting that are for no evaluation."""
        living = self._roster.registry.living(tenant, besides=self._fulfilment.in_hand | besides)
        of_living = sum(one.request.get("purpose") != Purpose.EVAL for one in living)
        return self._rollouts[tenant] + of_living

    def used(self, tenant: str, besides: AbstractSet[str | None] = frozenset()) -> quota.Amount:
        """What a tenant has or is getting, each counted once, but what these claims hold."""
        used = self._asked.get(tenant, quota.NOTHING)
        living = self._roster.registry.living(tenant, besides=self._fulfilment.in_hand | besides)
        for (pool, requests), count in Counter(
            (one.pool, one.bounds.requests) for one in living
        ).items():
            spec = self._roster.pools.get(pool)
            cost = quota.ONE
            if spec is not None:
                base = quota.of_template(spec.template)
                cost = quota.with_requests(base, spec, requests)
            used += cost * count
        return used


def _is_eval(want: Want) -> bool:
    return want.request.purpose is Purpose.EVAL
