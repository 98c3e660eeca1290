"""Keeps a reader told of all objects of a kind: list, then watch, then watch on, for ever."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import structlog
import trio

from sandman.service.kube import errors, objects, retry
from sandman.service.kube.client import PAGE_SIZE, Selection
from sandman.service.kube.watch import Change, Driver, ListRequest, Synced, WatchRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sandman.service.kube.client import Kube
    from sandman.service.kube.connection import Connection
    from sandman.service.kube.resources import Resource

K = TypeVar("K", bound=objects.KubeObject)

READ_DEADLINE_S = 120.0
"""Seconds without a byte after which a watch is taken for dead. Bookmarks come about once a minute; a
control plane that is replaced leaves half-open connections that would stay silent for ever."""
CONNECT_DEADLINE_S = 30.0
"""Seconds for a watch to be answered; the server answers as soon as its cache is at the version."""
HEALTHY_S = 5.0
"""A watch that lasted so long ends the count of failures. A shorter one is a failure itself, however it
ended: a server that closes each watch at once, or calls each version too old, is asked ever slower."""
FIRST_DELAY_S = 0.5
"""Wait after a first failure; doubles up to `retry.MAX_DELAY_S`."""


class Reflector(Generic[K]):
    """Sends every change of the selected objects into a channel.

        send, receive = trio.open_memory_channel[kube.Change[kube.Pod]](64)
        reflector = kube.Reflector(api, kube.PODS, namespace="x", label_selector="a=b")
        nursery.start_soon(reflector.run, send)
        async for change in receive:
            match change: ...           # Added, Modified, Deleted: `.object`; Synced after each list

    A full channel stops the reading; a server that does not want to wait ends the watch, and the
    next one goes on from there. Every failure is survived; `statistics` tells of it.

    Args:
        kube: the API server.
        resource: the kind, typed.
        namespace: one namespace; None: all.
        label_selector: only objects with these labels.
        field_selector: only objects with these fields.
        from_cache: begin with what the server's cache holds (resourceVersion=0): cheaper for it, and
            possibly older than what this program has seen before. The default is the newest state,
            which who decides must have: a new leader has to see its predecessor's last write.
        luck: random numbers of [0, 1) for the jitter of waits.
    """

    def __init__(
        self,
        kube: Kube,
        resource: Resource[K],
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        from_cache: bool = False,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self.synced = trio.Event()
        """Set once the first list has been sent whole."""
        self.most_s = retry.MAX_DELAY_S
        """The longest wait after failures, seconds; to be set before it runs."""
        self._kube = kube
        self._resource = resource
        self._selection = Selection(namespace, label_selector, field_selector)
        self._list_version = "0" if from_cache else None
        self._luck = luck
        self._driver = Driver(resource)
        self._log = structlog.get_logger().bind(resource=resource.plural)
        self._failures = 0
        self._was_gone = False
        """Whether the last failure was a version that is too old."""
        self._counts = {"lists": 0, "watches": 0, "changes": 0, "failures": 0}
        self._last_error = ""

    def __repr__(self) -> str:
        return f"<Reflector {self._resource.plural} {self._driver!r} {self._counts}>"

    def statistics(self) -> dict[str, Any]:
        """Counts of lists, watches, changes and failures; objects known; the last error's words."""
        return {**self._counts, "known": len(self._driver), "last_error": self._last_error}

    async def run(self, send: trio.MemorySendChannel[Change[K]]) -> None:
        """Run until cancelled, or until nobody holds the receiving end. Closes `send`."""
        async with send:
            try:
                while True:
                    await self._step(send)
            except trio.BrokenResourceError:
                self._log.debug("reflector_unread")

    async def _step(self, send: trio.MemorySendChannel[Change[K]]) -> None:
        try:
            request = self._driver.next_request()
            if isinstance(request, ListRequest):
                await self._list(request, send)
            else:
                await self._watch(request, send)
        except errors.KubeError as error:
            self._driver.receive_failure(error)
            await self._wait_after(error)

    async def _wait_after(self, error: errors.KubeError) -> None:
        self._failures += 1
        self._counts["failures"] += 1
        self._last_error = str(error)
        wait = retry.backoff(
            self._failures, self._luck(), first_s=FIRST_DELAY_S, most_s=self.most_s
        )
        wait = max(wait, min(error.retry_after or 0.0, retry.MAX_DELAY_S))
        # A version that is too old is how a watch ages, or what a server says that was away: list again at once.
        is_gone = isinstance(error, errors.GoneError)
        if is_gone and not self._was_gone:
            wait = 0.0
        self._was_gone = is_gone
        self._log.info("reflector_failed", error=str(error), failures=self._failures, wait_s=wait)
        await trio.sleep(wait)

    async def _list(self, request: ListRequest, send: trio.MemorySendChannel[Change[K]]) -> None:
        page = await self._kube.list_page(
            self._resource,
            self._selection,
            continue_=request.continue_,
            resource_version=self._list_version,
            limit=PAGE_SIZE,
        )
        self._counts["lists"] += not request.continue_
        await self._send_all(self._driver.receive_page(page), send)

    async def _watch(self, request: WatchRequest, send: trio.MemorySendChannel[Change[K]]) -> None:
        self._counts["watches"] += 1
        with trio.move_on_after(CONNECT_DEADLINE_S) as connecting:
            opening = self._kube.open_watch(self._resource, self._selection, request.params())
            async with opening as stream:
                connecting.deadline = float("inf")
                opened = trio.current_time()
                try:
                    await self._read(stream, send)
                finally:
                    lasted = trio.current_time() - opened
                    if lasted >= HEALTHY_S:
                        self._failures, self._was_gone = 0, False
        if connecting.cancelled_caught:
            raise errors.RequestTimeoutError(f"no answer to a watch in {CONNECT_DEADLINE_S:g} s")
        self._driver.receive_end()
        if lasted < HEALTHY_S:
            raise errors.UnavailableError("the server ended a watch at once")

    async def _read(self, stream: Connection, send: trio.MemorySendChannel[Change[K]]) -> None:
        while True:
            with trio.move_on_after(READ_DEADLINE_S) as reading:
                data = await stream.receive()
            if reading.cancelled_caught:
                raise errors.RequestTimeoutError(f"a watch was silent for {READ_DEADLINE_S:g} s")
            if not data:
                return
            await self._send_all(self._driver.receive_data(data), send)

    async def _send_all(
        self, changes: Iterable[Change[K]], send: trio.MemorySendChannel[Change[K]]
    ) -> None:
        for change in changes:
            await send.send(change)
            self._counts["changes"] += 1
            if isinstance(change, Synced):
                self.synced.set()
