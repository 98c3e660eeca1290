"""One call at a time for each idempotency key."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

from sandman.errors import CapacityError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class _KeyLock:
    """A lock and how many use it, so that it can be forgotten."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.users = 0


class KeyLocks:
    """The keys in use just now."""

    def __init__(self) -> None:
        self._keys: dict[str, _KeyLock] = {}

    def __len__(self) -> int:
        return len(self._keys)

    @contextlib.asynccontextmanager
    async def alone(self, key: str, deadline: float) -> AsyncIterator[None]:
        """One block at a time for each key: the others wait and then find what the first made.

        Raises:
            CapacityError: it was not this one's turn by the deadline.
        """
        entry = self._keys.setdefault(key, _KeyLock())
        entry.users += 1
        try:
            with trio.CancelScope(deadline=deadline) as waiting:
                await entry.lock.acquire()
            if waiting.cancelled_caught:
                raise CapacityError(
                    "an earlier call with this key is not over within wait_s", retry_after=1.0
                )
            try:
                yield
            finally:
                entry.lock.release()
        finally:
            entry.users -= 1
            if not entry.users:
                del self._keys[key]
