"""What a reservation needs next. Pure.

A reservation is a caller's forecast: so many sandboxes of one image, prepared by such steps, until then.
Each of its placeholders is handed out once; what is lost before that is made anew, what is left at the end
is released.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gateway.steps import NO_STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.steps import Steps
    from sandman.errors import SandmanError

COUNT_MAX = 1000
"""Placeholders of one reservation: a third of a namespace."""
LENGTH_MAX_S = 24 * 3600.0
"""Seconds until a reservation's end: what is wanted for longer is a pool."""
TENANT_MAX = 64
"""Reservations of one tenant at once: the images of one training step."""
AT_ONCE = 32
"""Placeholders of one reservation in preparation: a limit of the gateway's holds for all together."""
FAILURES_MAX = 3
"""Failures in a row, each the caller's own fault, that end the preparing: a fourth would fail likewise."""
PAUSE_S = 1.0
"""Seconds without a try after a failure; twice as many after each further one."""
PAUSE_MAX_S = 30.0
TOLD_MAX = 5
"""Failures of one reservation that are told, the latest."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """A reservation as it is kept. Times in seconds since the epoch."""

    id: str
    tenant: str
    key_id: str
    """The API key that it was made with: its share and its revocation hold."""
    image: str
    pool: str
    count: int
    until: float
    created_at: float
    steps: Steps = NO_STEPS
    run: str | None = None
    used: int = 0
    """How many of its placeholders were handed out."""

    def is_same(self, other: Reservation) -> bool:
        """Whether the same was asked for. Times apart: a call that is repeated comes later."""
        kept = ("tenant", "image", "pool", "count", "run", "steps")
        return all(getattr(self, name) == getattr(other, name) for name in kept)


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why one placeholder could not be prepared; `at` in seconds since the epoch."""

    reason: str
    detail: str
    facts: Mapping[str, object]
    at: float


@dataclasses.dataclass(frozen=True, slots=True)
class Trouble:
    """What went wrong with one reservation so far."""

    failures: tuple[Failure, ...] = ()
    """The latest `TOLD_MAX`."""
    count: int = 0
    in_a_row: int = 0
    own_fault_in_a_row: int = 0
    not_before: float = 0.0
    """Seconds since the epoch of the next try."""

    @property
    def is_final(self) -> bool:
        """Whether to try again is of no use."""
        return self.own_fault_in_a_row >= FAILURES_MAX

    def after(self, error: SandmanError, now: float) -> Trouble:
        """The same after one more failure."""
        failure = Failure(error.reason, error.detail, error.facts, now)
        pause = min(PAUSE_S * 2.0 ** min(self.in_a_row, 16), PAUSE_MAX_S)
        is_own = error.cause == "caller" and not error.retryable
        return Trouble(
            (*self.failures, failure)[-TOLD_MAX:],
            self.count + 1,
            self.in_a_row + 1,
            self.own_fault_in_a_row + 1 if is_own else 0,
            now + max(pause, error.retry_after or 0.0),
        )

    def after_success(self) -> Trouble:
        """The same after one was prepared."""
        return dataclasses.replace(self, in_a_row=0, own_fault_in_a_row=0, not_before=0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """How far a reservation is."""

    ready: int
    """Prepared, and not yet handed out."""
    preparing: int
    trouble: Trouble


def missing(reservation: Reservation, progress: Progress) -> int:
    """How many are neither handed out nor prepared nor being prepared."""
    got = reservation.used + progress.ready + progress.preparing
    return max(0, reservation.count - got)


def to_begin(reservation: Reservation, progress: Progress, now: float) -> int:
    """How many placeholders to begin to prepare now.

    The first goes alone, and so does the next after a failure: image and steps may be bad, and each try
    costs a placeholder.
    """
    trouble = progress.trouble
    if now >= reservation.until or now < trouble.not_before or trouble.is_final:
        return 0
    has_proof = progress.ready + reservation.used > 0 and trouble.in_a_row == 0
    room = (AT_ONCE if has_proof else 1) - progress.preparing
    return max(0, min(missing(reservation, progress), room))


def state(reservation: Reservation, progress: Progress) -> str:
    """`preparing`; `ready` when all that were not handed out yet are prepared; `failed` when no more
    tries are made."""
    if reservation.used + progress.ready >= reservation.count:
        return "ready"
    return "failed" if progress.trouble.is_final else "preparing"
