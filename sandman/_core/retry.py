"""When a call is made again: pure rules, clock and dice handed in."""

from __future__ import annotations

import dataclasses
import enum
import logging
import math
from typing import TYPE_CHECKING, NamedTuple

from sandman import names
from sandman.errors import CapacityError, OutcomeUnknownError, QuotaError

if TYPE_CHECKING:
    from sandman.errors import SandmanError

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
"""Pauses double from the first to the longest, each drawn between its half and itself."""
ANSWER_S = 2.0
"""Kept back of what is left, when the gateway is told how long it may look for a sandbox: for its answer."""
LEAST_TRY_S = 5.0
"""What must be left for another try where the gateway itself has looked for the sandbox: a shorter one would tell
nothing new."""
WARNING_EACH_S = 5.0
"""Least time between two warnings of one client; retries between are logged as INFO."""


class Repeat(enum.Enum):
    """Which failures of a call allow another attempt."""

    SAFE = "safe"
    """The call may be carried out twice: any failure that may pass."""
    UNSENT = "unsent"
    """It must not be: only failures before its first byte went out."""


class Retry(NamedTuple):
    """What `on_retry` is told before the pause: the call, what went wrong, the pause in seconds."""

    call: str
    error: SandmanError
    attempt: int
    pause_s: float


@dataclasses.dataclass(slots=True)
class Voice:
    """How loud a retry is told: thousands of calls that meet one fault are one warning, not thousands."""

    silent_until: float = -math.inf

    def level(self, error: SandmanError, now: float) -> int:
        """The level to log at: INFO, or WARNING for the first fault in a while.

        Waiting for capacity is the ordinary course of a burst and never a warning.
        """
        if isinstance(error, (CapacityError, QuotaError)) or now < self.silent_until:
            return logging.INFO
        self.silent_until = now + WARNING_EACH_S
        return logging.WARNING


@dataclasses.dataclass(slots=True)
class Patience:
    """How long one call is repeated, from the moment when something went wrong.

    Of a sandbox that is out of reach that is when it was last heard of, as the gateway says: what was spent
    there is spent here.

    Args:
        repeat: which failures allow it.
        until: on the clock that `pause` is asked with.
        whole_s: seconds from the fault on; None: what there was of them is known from the start.
    """

    repeat: Repeat
    until: float
    whole_s: float | None = None
    attempt: int = 0

    @classmethod
    def begin(cls, repeat: Repeat, now: float, whole_s: float) -> Patience:
        """The patience of a call that begins, or whose first fault this is."""
        return cls(repeat, now + whole_s, whole_s)

    def left(self, now: float) -> float:
        """Seconds within which an answer is of use."""
        return max(0.0, self.until - now - ANSWER_S)

    def pause(self, error: SandmanError, *, sent: bool, now: float, dice: float) -> float | None:
        """Seconds to wait before the next attempt; None: give up, the error is the answer.

        Args:
            error: how the attempt failed.
            sent: whether a byte of the request may have left.
            now: the clock.
            dice: a number in [0, 1).
        """
        self.attempt += 1
        # What may be carried out twice may also be repeated when nobody knows whether it was.
        may_pass = error.retryable or isinstance(error, OutcomeUnknownError)
        if not may_pass if self.repeat is Repeat.SAFE else sent or not error.retryable:
            return None
        pause = min(FIRST_PAUSE_S * 2 ** min(self.attempt - 1, 10), LONGEST_PAUSE_S)
        pause *= 0.5 + dice / 2
        if error.retry_after is not None:
            # Spread over a quarter more: everybody was told the same moment.
            pause = max(pause, error.retry_after * (1 + dice / 4))
        return pause if now + pause + self._spend(error, now) < self.until else None

    def _spend(self, error: SandmanError, now: float) -> float:
        """Take off what the gateway has spent on it; the least that another try needs."""
        silent_s = error.facts.get(names.FACT_SILENT_S)
        if not isinstance(silent_s, (int, float)):
            return 0.0
        if self.whole_s is not None:
            self.until = min(self.until, now - silent_s + self.whole_s)
        return LEAST_TRY_S
