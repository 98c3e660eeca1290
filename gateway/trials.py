"""What the pool does about images that fail: asks `images` for the verdict, tells all whom it concerns."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from gateway.breaker import is_open
from gateway.references import rewrite
from sandman.errors import CapacityError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gateway.fairness import Ticket
    from gateway.images import Failure
    from gateway.model import PoolSpec, Ready, SandboxRequest
    from gateway.orders import Order
    from gateway.references import Mirror
    from gateway.roster import Roster
    from gateway.wants import Want
    from sandman.errors import SandmanError

log = structlog.get_logger()

STOPPED_RETRY_S = 30.0
"""Seconds after which a caller of a stopped pool is told to ask again: a person has to do something."""


class Waiting(Protocol):
    """A request that waits."""

    ticket: Ticket
    order: Order | None
    """What it was given; None while it waits."""

    def refuse(self, error: SandmanError) -> None:
        """It will get nothing, and why."""


class Trials:
    """Verdicts over the pool's orders.

    Args:
        roster: what is there.
        waiting: all requests that wait just now.
        mirrors: where images are pulled from.
    """

    def __init__(
        self,
        roster: Roster,
        waiting: Callable[[], Iterable[Waiting]],
        mirrors: tuple[Mirror, ...] = (),
    ) -> None:
        self._roster = roster
        self._images = roster.allocation.images
        self._waiting = waiting
        self._mirrors = mirrors

    def image(self, request: SandboxRequest, spec: PoolSpec) -> str:
        """The name by which the request's image is pulled. The pool's own is what its operator wrote."""
        if request.image is None or request.image == spec.image:
            return spec.image
        return rewrite(request.image, self._mirrors)

    def refuse(self, want: Want) -> None:
        """Refuse at once what is known to fail.

        Raises:
            SandmanError: why.
        """
        stop = self._stop(want.request.pool)
        if stop is not None:
            raise stop
        now = trio.current_time()
        failure = self._images.failure(want.request.pool, want.image, want.tenant, now)
        if failure is not None:
            raise failure.error(now)

    def pool_seen(self, pool: str) -> None:
        """A pool has changed: who waits for one that was stopped waits in vain."""
        for one in list(self._waiting()):
            if one.ticket.pool == pool and one.order is None:
                stop = self._stop(pool)
                if stop is None:
                    return
                self._refuse(one, stop)

    def _stop(self, pool: str) -> CapacityError | None:
        """Why there is nothing to be had of a pool; None where there is."""
        spec = self._roster.pools.get(pool)
        if spec is None or not is_open(spec):
            return None
        reason = spec.broken.reason if spec.broken is not None else "for a reason not told"
        return CapacityError(
            f"pool {pool!r} was stopped: {reason}",
            retry_after=STOPPED_RETRY_S,
            facts={"pool": "broken"},
        )

    def succeeded(self, order: Order, made: Ready) -> Ready:
        """The order's sandbox runs; answers it with what is known of its image."""
        node, image = made.instance.node or "", order.ticket.image
        self._images.succeeded(order.ticket, node)
        spec = self._roster.pools.get(made.instance.pool)
        if made.instance.image_digest is not None or spec is None or not spec.keeps_images:
            return made
        digest = self._images.digest(node, image)
        instance = dataclasses.replace(made.instance, image_digest=digest)
        return dataclasses.replace(made, instance=instance)

    def failed(self, order: Order, want: Want, error: SandmanError, *, again: bool) -> float:
        """What follows from an order that failed: answers the pause, in seconds, after which it is tried once
        more.

        Args:
            again: whether it may be.

        Raises:
            SandmanError: `error`, for it is final.
        """
        now = trio.current_time()
        where = self._node(order, error)
        left_s = want.deadline - now if again else 0.0
        verdict = self._images.failed(order.ticket, where, error, now, left_s=left_s)
        if verdict.failure is not None:
            log.warning("an image failed", image=want.image, node=where, error=str(error))
            self._tell(order.ticket, verdict.failure, now)
            error.retry_after = error.retry_after or verdict.failure.error(now).retry_after
        if verdict.pause_s is None:
            raise error
        log.info("an image is tried elsewhere", image=want.image, node=where, error=str(error))
        return verdict.pause_s

    def _node(self, order: Order, error: SandmanError) -> str:
        if order.slot is not None:
            return order.slot.node
        node = error.facts.get("node")
        return node if isinstance(node, str) else ""

    def _tell(self, ticket: Ticket, failure: Failure, now: float) -> None:
        """All who wait for the same image hear of it, each its own error, for a traceback is one task's. They
        leave the queue here and now: none of them must be the next canary before it has woken up."""
        for one in self._waiting():
            is_other = one.ticket.number != ticket.number
            if is_other and one.order is None and failure.key.concerns(one.ticket):
                self._refuse(one, failure.error(now))

    def _refuse(self, one: Waiting, error: SandmanError) -> None:
        one.refuse(error)
        self._roster.allocation.leave(one.ticket)
