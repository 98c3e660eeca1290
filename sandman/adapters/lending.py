"""One client for all sandboxes of a framework's process, which makes and ends them one by one."""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Self, TypeVar

import anyio
from anyio.lowlevel import current_token

from sandman._core.config import RELEASE_LIMIT_S
from sandman.client import Client, Sandbox, SandboxOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Lent = TypeVar("Lent")
logger = logging.getLogger("sandman")


class Lending(Generic[Lent]):
    """Things by key, each made for the first who borrows it.

    Args:
        make: a thing.
    """

    def __init__(self, make: Callable[[], Lent]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._lent: dict[Hashable, tuple[Lent, int]] = {}

    def borrow(self, key: Hashable = None) -> Lent:
        """The thing of that key, to be given back."""
        with self._lock:
            thing, users = self._lent.get(key) or (self._make(), 0)
            self._lent[key] = thing, users + 1
            return thing

    def give_back(self, key: Hashable = None) -> Lent | None:
        """Of the last who has it, the thing, which is then his to close."""
        with self._lock:
            thing, users = self._lent.pop(key)
            if users > 1:
                self._lent[key] = thing, users - 1
                return None
            return thing


class Afterwards:
    """Does something for what was forgotten, in a thread of its own: garbage collection comes in the middle of anything,
    also of who has a lock that is needed for it, and would wait for himself.

    Args:
        do: what is done.
    """

    def __init__(self, do: Callable[..., object]) -> None:
        self._do = do
        self._asked: queue.SimpleQueue[tuple[object, ...] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._kept: list[weakref.finalize[..., object]] = []

    def keep(self, thing: object, *args: object) -> weakref.finalize[..., object]:
        """Once this thing is forgotten, or at the end, it is done with these; not when what is returned is detached."""
        # Of all that could be done with them then, this takes no lock, and may even interrupt itself.
        kept = weakref.finalize(thing, self._asked.put, args)
        kept.atexit = False
        with self._lock:
            self._kept = [*(one for one in self._kept if one.alive), kept]
            if self._thread is None or not self._thread.is_alive():  # after a fork it is not
                self._thread = threading.Thread(
                    target=self._run, name="sandman-afterwards", daemon=True
                )
                self._thread.start()
        return kept

    def end(self, seconds: float) -> None:
        """Do it for all that are left; wait so long for that."""
        with self._lock:
            kept, self._kept = self._kept, []
            thread, self._thread = self._thread, None
        for one in kept:
            # Not by a call: once the finalizers' own end has come, which may be earlier, none does anything.
            if (found := one.detach()) is not None:
                self._asked.put(found[2][0])
        if thread is not None:
            self._asked.put(None)
            thread.join(seconds)

    def _run(self) -> None:
        while (args := self._asked.get()) is not None:
            try:
                self._do(*args)
            except Exception:
                logger.exception("what was forgotten could not be given back")


_clients: Lending[Client] = Lending(Client)
"""By event loop: connections belong to theirs."""


@dataclass(slots=True)
class Holding:
    """A sandbox that is kept until `release()`, or the end of this process."""

    box: Sandbox
    _client: Client
    _loop: object
    _is_released: bool = False

    @classmethod
    async def acquire(cls, options: SandboxOptions) -> Self:
        """Allocate a sandbox.

        Raises:
            ConfigurationError: it is not said where the gateway is.
            SandmanError: as `Client.create`.
        """
        loop = current_token()
        client = _clients.borrow(loop)
        try:
            return cls(await client.create(**options), client, loop)
        except BaseException:
            with anyio.move_on_after(RELEASE_LIMIT_S, shield=True):
                await _give_back(loop)
            raise

    async def release(self) -> None:
        """Let it go, also when this is cancelled; what cannot be done now is done later, or by its lease. May be repeated."""
        if self._is_released:
            return
        self._is_released = True
        try:
            with anyio.move_on_after(RELEASE_LIMIT_S, shield=True):
                await self._client.release(self.box.id, quietly=True)
        finally:
            with anyio.move_on_after(RELEASE_LIMIT_S, shield=True):
                await _give_back(self._loop)


async def _give_back(loop: object) -> None:
    if (client := _clients.give_back(loop)) is not None:
        await client.aclose()
