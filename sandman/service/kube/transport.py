"""HTTP requests to the API server: httpcore stops here, its exceptions too.

HTTP/1.1 only. Over HTTP/2 all calls would share one connection, where the API server's limit of
streams and a burst of writes hold watch events up for a second. Requests share a bounded pool; each
watch has a connection of its own (`stream.py`). httpcore is what httpx is made of; used by itself it
lets the connecting be put right (`_Backend`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

import httpcore
import trio

from sandman.service.kube import config, errors

if TYPE_CHECKING:
    import ssl
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

    def headers(self, host: str, token: str) -> dict[str, str]:
        """Its headers; the token is among them, so do not log them."""
        headers = {"Host": host, "Accept": "application/json", "User-Agent": USER_AGENT}
        if self.body is not None:
            headers["Content-Type"] = self.content_type
            headers["Content-Length"] = str(len(self.body))
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """httpcore's exceptions as ours. Without a connection nothing was sent, so nothing was applied."""
    try:
        yield
    except (httpcore.ConnectError, httpcore.UnsupportedProtocol) as error:
        message = f"cannot connect: {_words(error)}"
        raise errors.UnavailableError(message, maybe_applied=False) from error
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
        raise errors.UnavailableError(f"the connection failed: {_words(error)}") from error


def _words(error: BaseException | None) -> str:
    """What went wrong, said by the first in the chain of causes that says anything."""
    found, name = "", type(error).__name__
    while error is not None and not found:
        found, error = str(error), error.__cause__ or error.__context__
    return found or name


class _Plain(httpcore.AsyncNetworkStream):
    """A new connection before TLS: closed when the handshake is cancelled, which httpcore forgets."""

    def __init__(self, inner: httpcore.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - as its base
        return self._inner.get_extra_info(info)

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        try:
            return await self._inner.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            with trio.move_on_after(1.0, shield=True):
                await self._inner.aclose()
            raise


class _Backend(httpcore.TrioBackend):
    """Connects as httpcore does, into `_Plain`."""

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:  # noqa: ANN401
        return _Plain(await super().connect_tcp(*args, **kwargs))


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
        self._host = urlsplit(target.base_url).netloc
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=target.ssl,
            max_connections=None,
            max_keepalive_connections=max_requests,
            keepalive_expiry=KEEPALIVE_EXPIRY_S,
            network_backend=_Backend(),
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
                try:
                    body = await response.aread()
                finally:
                    with trio.move_on_after(1.0, shield=True):
                        await response.aclose()
        if response.status < 400:
            return body
        headers = {name.lower(): value.decode("latin-1") for name, value in response.headers}
        error = errors.from_answer(response.status, body, headers.get(b"retry-after"))
        if isinstance(error, errors.UnauthorizedError):
            self._token.forget()
        raise error

    def statistics(self) -> dict[str, int]:
        """Requests in flight and waiting for a place."""
        held = self._limiter.statistics()
        return {"in_flight": held.borrowed_tokens, "waiting": held.tasks_waiting}

    def _build(self, request: Request) -> httpcore.Request:
        server_name = self._target.server_name
        return httpcore.Request(
            request.method,
            self._target.base_url + request.target,
            headers=list(request.headers(self._host, self._token.current()).items()),
            content=request.body,
            extensions={"sni_hostname": server_name} if server_name else {},
        )
