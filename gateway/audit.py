"""One line for each sandbox that was handed over, and one for each that ended: who, which, why; for attachments to
workloads alike."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import structlog

from sandman import errors, problems

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.model import Ending, Identity, Instance, Ready

log = structlog.get_logger()

RELEASE, RECLAIM, END = "release", "reclaim", "end"
DETACH = "detach"
"""The end of an attachment, whatever its reason: the workload goes on."""
_ACTIONS = {"released": RELEASE, "expired": RECLAIM, "idle": RECLAIM, "node_lost": RECLAIM}
"""By reason: of its owner's will, by Sandman, or by what became of its pod."""


def allocated(made: Ready) -> Ready:
    """A sandbox was handed over; it is handed back."""
    timings = made.timings
    total = timings.queued_ms + timings.claim_ms + timings.ready_ms
    log.info(
        "audit", action="allocation", tier=made.instance.tier, ms=round(total), **_of(made.instance)
    )
    return made


def attached(instance: Instance, who: Identity | None) -> None:
    """Somebody was attached to a workload: this Kubernetes user, whose right it was."""
    log.info("audit", action="attach", user=who.user if who else None, **_of(instance))


def network(changed: Instance) -> Instance:
    """A sandbox was given another egress profile; it is handed back."""
    log.info("audit", action="network", network=changed.network, **_of(changed))
    return changed


class Audit:
    """Tells of ends, and counts them.

    Args:
        speaks: whether this replica tells: each replica sees each end, and one is to tell of it.
    """

    def __init__(self, speaks: Callable[[], bool]) -> None:
        self._speaks = speaks
        self.counts: Counter[tuple[str, str]] = Counter()
        """Ends by reason and cause."""
        self.detached_counts: Counter[tuple[str, str]] = Counter()
        """Those of attachments."""

    def ended(self, instance: Instance, ending: Ending) -> None:
        """A sandbox has ended."""
        self._tell(instance, ending, _ACTIONS.get(ending.reason, END), self.counts)

    def detached(self, instance: Instance, ending: Ending) -> None:
        """An attachment to a workload has ended."""
        self._tell(instance, ending, DETACH, self.detached_counts)

    def _tell(
        self, instance: Instance, ending: Ending, action: str, counts: Counter[tuple[str, str]]
    ) -> None:
        if not self._speaks():
            return
        kind = problems.by_reason().get(ending.reason, errors.DiedError)
        cause = ending.cause or kind.cause
        counts[ending.reason, cause] += 1
        log.info(
            "audit", action=action, reason=ending.reason, cause=cause, detail=ending.detail,
            **_of(instance),
        )  # fmt: skip


def _of(instance: Instance) -> dict[str, object]:
    told: dict[str, object] = {
        "sandbox": instance.id,
        "tenant": instance.tenant,
        "run": instance.run,
        "node": instance.node,
    }
    place = instance.place
    if place is None:
        return {**told, "pool": instance.pool}
    return {
        **told,
        "namespace": instance.namespace,
        "pod": place.pod,
        "container": place.container,
    }
