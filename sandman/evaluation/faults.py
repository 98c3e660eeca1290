"""What went wrong, whose fault it was, and whether it earns another attempt."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sandman.errors import CALLER, INFRASTRUCTURE, SANDBOX, SandmanError

if TYPE_CHECKING:
    from collections.abc import Sequence

LOG_LOST = "log_lost"
"""Bytes of the log are missing: whatever it says, it is not the whole."""
ABANDONED = "abandoned"
"""The sandbox ended the script because its reader was away for too long."""
OOM_KILLED = "oom"
"""The kernel killed a process of the script for want of memory: its tests did not fail by themselves."""
NOT_STARTED = "not_started"
"""The image lacks a program that the flow needs, or the working directory."""
GRADING = "grading"
"""The grader itself failed."""

RETRIES = 3
OWN_RETRIES = 1

FATAL = frozenset({"unauthenticated", "forbidden", "configuration", "method_not_allowed"})
"""Nothing else of the run would go better."""

NO_ROOM = frozenset({"capacity", "unschedulable"})
"""Where no other node had room, the one to be avoided is better than none."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an attempt has no verdict. `cause` is infrastructure, sandbox or caller; `retry_after` in seconds."""

    reason: str
    cause: str
    detail: str
    passing: bool = True
    retry_after: float | None = None

    def to_json(self) -> dict[str, object]:
        """For the journal."""
        return asdict(self)

    @property
    def is_infrastructure(self) -> bool:
        """Whether it is reported so; a caller's error that time does not mend is an error of the run's settings."""
        return self.cause != CALLER or self.passing


def of(error: SandmanError) -> Fault:
    """The fault that an error of the client is."""
    passing = error.cause != CALLER or error.retryable
    return Fault(error.reason, error.cause, error.detail, passing, error.retry_after)


def infrastructure(reason: str, detail: str) -> Fault:
    """One that nobody in the sandbox is to blame for."""
    return Fault(reason, INFRASTRUCTURE, detail)


def own(reason: str, detail: str) -> Fault:
    """One that the sandbox may have brought about itself."""
    return Fault(reason, SANDBOX, detail)


def settings(reason: str, detail: str) -> Fault:
    """One of the row, or of how the run was asked for."""
    return Fault(reason, CALLER, detail, passing=False)


def again(faults: Sequence[Fault], retries: int = RETRIES, own_retries: int = OWN_RETRIES) -> bool:
    """Whether the evaluation that met these faults is tried in another sandbox.

    Both kinds are bounded, and apart: what the code under test can bring about itself (want of memory, the end of process 1, a full
    disk) must not buy it attempts, or a patch that mostly fails would kill its sandbox until it does not.
    """
    if not faults or not faults[-1].is_infrastructure:
        return False
    of_its_own = sum(fault.cause == SANDBOX for fault in faults)
    if faults[-1].cause == SANDBOX:
        return of_its_own <= own_retries
    return len(faults) - of_its_own <= retries
