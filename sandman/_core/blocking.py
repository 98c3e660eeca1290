"""The few names of anyio that the client uses, for its sync twin.

`scripts/unasync.py` puts this module in anyio's place, so that both twins read alike.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable

Args = TypeVarTuple("Args")
Result = TypeVar("Result")


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)  # noqa: TID251 - this is the sync client


def current_time() -> float:
    """The clock, in seconds from an arbitrary start."""
    return time.monotonic()


def move_on_after(seconds: float, *, shield: bool = False) -> AbstractContextManager[None]:
    """No scope: nothing cancels a thread, and each call has its own limits."""
    del seconds, shield
    return nullcontext()


Semaphore = threading.Semaphore
Lock = threading.Lock


class to_thread:  # noqa: N801 - a module in anyio
    """The thread is this one."""

    @staticmethod
    def run_sync(call: Callable[[*Args], Result], *args: *Args) -> Result:
        """Call it."""
        return call(*args)


__all__ = ["Lock", "Semaphore", "current_time", "move_on_after", "sleep", "to_thread"]
