"""What went wrong, whose fault it was, and whether it earns another attempt."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from sandman.errors import CALLER, INFRASTRUCTURE, SANDBOX, SandmanError
from sandman.wire import BUSY, NO_ROOM, ExecResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
SETUP = "setup"
"""The caller's own preparation of the sandbox failed."""
STEP_TIMED_OUT = "step_timed_out"
"""A command around the script took longer than any should."""

RETRIES = 3
OWN_RETRIES = 1

FATAL = frozenset({"unauthenticated", "forbidden", "configuration", "method_not_allowed"})
"""Nothing else of the run would go better."""

ALL_TAKEN = frozenset({"capacity", "unschedulable"})
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


def of(error: SandmanError, *, begun: bool = True) -> Fault:
    """The fault that an error of the client is. `begun`: the patch was there, and may have brought it about."""
    cause = error.cause if begun or error.cause != SANDBOX else INFRASTRUCTURE
    passing = cause != CALLER or error.retryable
    return Fault(error.reason, cause, error.detail, passing, error.retry_after)


def of_result(result: ExecResult, what: str) -> Fault | None:
    """Why a command around the script says nothing; None: its exit code does."""
    if result.start_error is not None:
        return not_started(result.start_error, what)
    if result.ok:
        return None
    if result.oom_killed:
        return own(OOM_KILLED, f"{what}: the kernel killed a process for want of memory")
    if result.timed_out:
        return own(STEP_TIMED_OUT, f"{what} was not done after {result.wall_s:.0f} s")
    return None


def not_started(why: str, what: str) -> Fault:
    """Why a program did not start: for want of room, or since somebody writes it just now; else it is the image's."""
    kinds: dict[str, Callable[[str, str], Fault]] = {NO_ROOM: own, BUSY: infrastructure}
    return kinds.get(why, settings)(NOT_STARTED, f"{what}: {why.replace('_', ' ')}")


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
