"""SIGTERM ends a program that holds sandboxes as Ctrl-C does: blocks are left, and what they hold is released.

For the synchronous client alone. In an event loop a signal's handler may not raise: who is asked to end there cancels,
and cancellation releases.
"""

from __future__ import annotations

import signal
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from types import TracebackType

EXIT_CODE = 128 + signal.SIGTERM
"""What a shell tells of a program that SIGTERM ended."""


def block(client: object) -> AbstractContextManager[object]:
    """A block of that client which SIGTERM leaves; of an asynchronous one, an ordinary block."""
    return Termination() if hasattr(client, "__enter__") else nullcontext()


class Termination:
    """Has SIGTERM raise SystemExit in the main thread, where nobody else has a use for it."""

    _users = 0

    def __init__(self) -> None:
        self._is_set = False

    def __enter__(self) -> None:
        self.watch()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.forget()

    def watch(self) -> None:
        """From now on."""
        if threading.current_thread() is not threading.main_thread():
            return
        mine = Termination._users > 0
        if not mine and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return
        Termination._users += 1
        self._is_set = True
        if not mine:
            signal.signal(signal.SIGTERM, _leave)

    def forget(self) -> None:
        """No more."""
        if not self._is_set:
            return
        self._is_set = False
        Termination._users -= 1
        if Termination._users == 0 and signal.getsignal(signal.SIGTERM) is _leave:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(_number: int, _frame: object) -> NoReturn:
    raise SystemExit(EXIT_CODE)
