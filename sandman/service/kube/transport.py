"""Calls over a bounded pool of connections.

HTTP/1.1 only. Over HTTP/2 all calls would share one connection, where the API server's limit of
streams and a burst of writes hold watch events up for a second. Each watch has a connection of its own.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

import trio

from sandman.service.kube import connection, errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sandman.service.kube import config

MAX_REQUESTS = 32
"""Requests in flight at once. More only queue at the server: API priority and fairness gives an
ordinary account some tens of seats, and 429s beyond its queues."""
KEEPALIVE_EXPIRY_S = 60.0
"""Seconds an idle connection is kept. Below the API server's own 90, so that a request does not meet
a connection that is just being closed."""


class Transport:
    """Sends requests to one target. Close it with `aclose`."""

    def __init__(
        self, target: config.Target, token: config.TokenCache, *, max_requests: int = MAX_REQUESTS
    ) -> None:
        self._target = target
        self._token = token
        self._limiter = trio.CapacityLimiter(max_requests)
        self._idle: deque[tuple[float, connection.Connection]] = deque()
        """Idle since when, and which; the one used last at the right end, and used first."""

    async def aclose(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop()[1].aclose()

    async def send(self, request: connection.Request) -> bytes:
        """The body of the answer.

        Raises:
            KubeError: by the answer's status, or UnavailableError where none came.
        """
        async with self._limiter:
            link = await self._take()
            try:
                with self._watching_the_token():
                    return await link.call(request, self._token.current())
            finally:
                if link.reset():
                    self._idle.append((trio.current_time(), link))
                else:
                    await link.aclose()

    @contextlib.asynccontextmanager
    async def open_stream(
        self, request: connection.Request
    ) -> AsyncIterator[connection.Connection]:
        """An answer that does not end by itself; leaving the block closes its connection at once.

        Raises:
            KubeError: by the answer's status, or UnavailableError where none came.
        """
        link = await connection.connect(self._target)
        try:
            with self._watching_the_token():
                await link.start(request, self._token.current())
            yield link
        finally:
            await link.aclose()

    def statistics(self) -> dict[str, int]:
        """Requests in flight and waiting for a place, and idle connections."""
        held = self._limiter.statistics()
        return {
            "in_flight": held.borrowed_tokens,
            "waiting": held.tasks_waiting,
            "idle": len(self._idle),
        }

    async def _take(self) -> connection.Connection:
        await self._close_expired()
        while self._idle:
            _, link = self._idle.pop()
            if not link.is_stale():
                return link
            await link.aclose()
        return await connection.connect(self._target)

    async def _close_expired(self) -> None:
        oldest = trio.current_time() - KEEPALIVE_EXPIRY_S
        while self._idle and self._idle[0][0] < oldest:
            await self._idle.popleft()[1].aclose()

    @contextlib.contextmanager
    def _watching_the_token(self) -> Iterator[None]:
        try:
            yield
        except errors.UnauthorizedError:
            self._token.forget()
            raise
