"""HTTP requests to the API server: httpx stops here, its exceptions too.

HTTP/1.1 only. Over HTTP/2 all calls would share one connection, where the API server's limit of
streams and a burst of writes hold watch events up for a second. Requests share a bounded pool; each
watch has a connection of its own (`stream.py`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import httpx
import trio

from sandman.service.kube import config, errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_REQUESTS = 32
"""Requests in flight at once. More only queue at the server: API priority and fairness gives an
ordinary account some tens of seats, and 429s beyond its queues."""
KEEPALIVE_EXPIRY_S = 60.0
"""Seconds an idle connection is kept. Below the API server's own 90, so that a request does not meet
a connection that is just being closed."""
USER_AGENT = "sandman"


@dataclasses.dataclass(frozen=True)
class Request:
    """One call, ready to send.

    Args:
        method: GET, POST, PUT, PATCH or DELETE.
        path: below the target's base URL.
        params: the query.
        body: JSON, or None.
        content_type: of the body.
    """

    method: str
    path: str
    params: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{urlencode(self.params)}" if self.params else self.path

    def headers(self, token: str) -> dict[str, str]:
        """Headers but for Host and Content-Length; the token is in them, so do not log them."""
        headers = {"Accept": "application/json", "User-Agent": USER_AGENT}
        if self.body is not None:
            headers["Content-Type"] = self.content_type
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """httpx's exceptions as ours. Without a connection nothing was sent, so nothing was applied."""
    try:
        yield
    except (httpx.ConnectError, httpx.UnsupportedProtocol) as error:
        message = f"cannot connect: {_words(error)}"
        raise errors.UnavailableError(message, maybe_applied=False) from error
    except httpx.TransportError as error:
        raise errors.UnavailableError(f"the connection failed: {_words(error)}") from error


def _words(error: BaseException | None) -> str:
    """What went wrong, said by the first in the chain of causes that says anything."""
    found, name = "", type(error).__name__
    while error is not None and not found:
        found, error = str(error), error.__cause__ or error.__context__
    return found or name


class Transport:
    """Sends requests to one target over a bounded pool. Close it with `aclose`.

    The pool of httpcore is not bounded itself: a request that is cancelled while it waits in there
    leaks its slot for ever (httpcore#1093). Bounded from outside, none ever waits in there.
    """

    def __init__(
        self, target: config.Target, token: config.TokenCache, *, max_requests: int = MAX_REQUESTS
    ) -> None:
        self._target = target
        self._token = token
        self._limiter = trio.CapacityLimiter(max_requests)
        self._pool = httpx.AsyncHTTPTransport(
            verify=target.ssl or False,
            trust_env=False,
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=max_requests,
                keepalive_expiry=KEEPALIVE_EXPIRY_S,
            ),
        )

    async def aclose(self) -> None:
        """Close the idle connections."""
        await self._pool.aclose()

    async def send(self, request: Request) -> bytes:
        """The body of the answer.

        Raises:
            KubeError: by the answer's status, or UnavailableError where none came.
        """
        message = self._build(request)
        async with self._limiter:
            with _translated():
                response = await self._pool.handle_async_request(message)
                body = await response.aread()
        if response.status_code < 400:
            return body
        error = errors.from_answer(response.status_code, body, response.headers.get("Retry-After"))
        if isinstance(error, errors.UnauthorizedError):
            self._token.forget()
        raise error

    def statistics(self) -> dict[str, int]:
        """Requests in flight and waiting for a place."""
        held = self._limiter.statistics()
        return {"in_flight": held.borrowed_tokens, "waiting": held.tasks_waiting}

    def _build(self, request: Request) -> httpx.Request:
        server_name = self._target.server_name
        return httpx.Request(
            request.method,
            self._target.base_url + request.target,
            headers=request.headers(self._token.current()),
            content=request.body,
            extensions={"sni_hostname": server_name} if server_name else {},
        )
