"""Hands an allocation call to the replica that decides, and its answer back.

The call goes on as it came, with the caller's own token: the allocator authenticates and authorizes
it itself, so replicas need no trust in each other beyond TLS, and a gateway cannot be made to speak
for somebody else.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, NamedTuple, Protocol

import httpx
import trio
from starlette.responses import StreamingResponse

from sandman import names
from sandman.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

FORWARDED_HEADERS = (
    b"authorization",
    b"content-type",
    names.HEADER_IDEMPOTENCY_KEY.lower().encode(),
)
RETURNED_HEADERS = {
    "content-type", "content-length", "location", "retry-after", "www-authenticate",
}  # fmt: skip
TIMEOUT = httpx.Timeout(connect=2.0, read=None, write=30.0, pool=None)
"""An allocation may take as long as the caller's `wait_s`; the caller's going away ends it."""
ONE = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=30)
"""Each call in hand has a transport of its own, of one connection. A pool of them all is looked through at each call's
beginning and end: with thousands that wait for a sandbox it took the processor for itself."""
IDLE_MAX = 64
"""Transports that are kept for the next calls."""
CONNECTING_AT_ONCE = 16
"""Calls that connect at the same time; the time limit of each counts from its turn. Of a burst of hundreds that connect
all at once each would be late, would be told so, and would come again."""
TURN_S = 5.0
"""Seconds that a call waits for its turn: longer than a busy allocator takes for hundreds of handshakes; where it is
lost, its caller hears so while the next one is elected."""
ASK_S = 5.0
"""Seconds for an answer to `ask`: a look into its memory, and somebody waits for it."""
LITTLE = 16 * 1024
"""Bytes of an answer that are read although nobody wants them: a problem has some hundred."""
SENDING = "http11.send_request_headers.started"
"""What httpcore tells when a call has its connection."""


class Leadership(Protocol):
    """Who is the allocator."""

    @property
    def is_leader(self) -> bool:
        """Whether this replica is."""

    @property
    def address(self) -> str | None:
        """`host:port` of the one who is; None when there is none just now."""


class Handoff:
    """Calls to the allocator.

    Args:
        leadership: who it is.
        server_name: the name in its certificate: replicas are dialled by address.
        authority: PEM of what verifies that certificate, as it is now.
    """

    def __init__(
        self, leadership: Leadership, server_name: str, authority: Callable[[], bytes]
    ) -> None:
        self._leadership = leadership
        self._server_name = server_name
        self._authority = authority
        self._trusted = b""
        self._trust: ssl.SSLContext | None = None
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._connecting = trio.Semaphore(CONNECTING_AT_ONCE)

    @property
    def is_allocator(self) -> bool:
        """Whether this replica decides itself."""
        return self._leadership.is_leader

    async def aclose(self) -> None:
        """Close the connections."""
        while self._idle:
            await self._idle.pop().aclose()

    async def forward(
        self, request: Request, made: Callable[[str], None] = lambda _location: None
    ) -> Answer:
        """The allocator's answer to this call.

        Args:
            request: the call.
            made: told the `Location` of what the allocator has made.

        Raises:
            UnreachableError: there is no allocator just now, or it was lost meanwhile: repeating the
                call with the same idempotency key is safe.
        """
        if names.HEADER_HOP.lower() in request.headers:
            raise _nobody("no replica is the allocator just now")
        call = _Call(request.method, _target(request), self._headers(request), request.stream())
        async with self._turn() as connected:
            answer = await self._send(call, connected)
        if answer.status == 201:
            made(answer.location)
        return answer

    async def ask(self, path: str, token: str) -> int:
        """Ask the allocator for something of our own, by POST; the status of its answer.

        Args:
            path: of the call.
            token: what it is asked with, as a bearer token.

        Raises:
            UnreachableError: as `forward`.
        """
        headers = [
            (b"authorization", b"Bearer " + token.encode("ascii")),
            (b"content-length", b"0"),
            *self._own_headers(),
        ]
        with trio.move_on_after(ASK_S):
            async with self._turn() as connected:
                answer = await self._send(_Call("POST", path.encode(), headers, None), connected)
            await answer.drain()
            return answer.status
        raise _nobody("the allocator did not answer in time")

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[Callable[[], None]]:
        """A turn to connect. It is over when what is yielded is called, or the block ends."""
        with trio.move_on_after(TURN_S) as scope:
            await self._connecting.acquire()
        if scope.cancelled_caught:
            raise _nobody("the allocator does not take more calls just now")
        with contextlib.ExitStack() as stack:
            stack.callback(self._connecting.release)
            yield stack.close

    async def _send(self, call: _Call, connected: Callable[[], None]) -> Answer:
        address = self._leadership.address
        if address is None:
            raise _nobody("no replica is the allocator just now")

        async def trace(event: str, _info: object) -> None:
            if event == SENDING:
                connected()

        transport, trust = await self._take()
        try:
            request = httpx.Request(
                call.method,
                f"https://{address}",
                headers=call.headers,
                content=call.content,
                extensions={
                    "sni_hostname": self._server_name,
                    "timeout": TIMEOUT.as_dict(),
                    "trace": trace,
                    "target": call.target,
                },
            )
            answer = await transport.handle_async_request(request)
        except BaseException as error:
            with trio.move_on_after(1.0, shield=True):
                await transport.aclose()
            if isinstance(error, (httpx.TransportError, httpx.InvalidURL)):
                raise _nobody(f"the allocator at {address} was lost: {error!r}") from error
            raise

        async def over() -> None:
            # One that broke off may hold its connection for ever.
            is_whole = answer.is_closed
            await answer.aclose()
            await self._give_back(transport, trust if is_whole else None)

        return Answer(answer, over)

    async def _take(self) -> tuple[httpx.AsyncHTTPTransport, ssl.SSLContext]:
        """A transport for the authority of now; calls in flight keep the one that they began with."""
        authority = self._authority()
        if self._trust is None or authority != self._trusted:
            self._trust = ssl.create_default_context(cadata=authority.decode("ascii"))
            # An operator may have given a certificate without its issuer: then it vouches for itself.
            self._trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            self._trusted = authority
            old, self._idle = self._idle, []
            for one in old:
                await _close(one)
        if self._idle:
            return self._idle.pop(), self._trust
        made = httpx.AsyncHTTPTransport(verify=self._trust, limits=ONE, trust_env=False)
        return made, self._trust

    async def _give_back(
        self, transport: httpx.AsyncHTTPTransport, trust: ssl.SSLContext | None
    ) -> None:
        """Keep it for the next call, unless it trusts others than are to be trusted now."""
        if trust is not None and trust is self._trust and len(self._idle) < IDLE_MAX:
            self._idle.append(transport)
        else:
            await _close(transport)

    def _headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        # As bytes: a key need not be ASCII.
        passed = [item for item in request.scope["headers"] if item[0] in FORWARDED_HEADERS]
        return [*passed, *self._own_headers()]

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"host", self._server_name.encode()), (names.HEADER_HOP.encode(), b"1")]


class _Call(NamedTuple):
    """What is sent to the allocator; path and query as they came."""

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    content: AsyncIterator[bytes] | None


async def _close(transport: httpx.AsyncHTTPTransport) -> None:
    with trio.move_on_after(1.0, shield=True):
        await transport.aclose()


def _target(request: Request) -> bytes:
    """Path and query as they came. Decoded and written anew they could be others: `%3F` begins a query, dots climb."""
    path: bytes = request.scope["raw_path"].partition(b"?")[0]
    query: bytes = request.scope["query_string"]
    return path + b"?" + query if query else path


class Answer:
    """The allocator's answer as a response that Starlette runs: an ASGI application.

    Args:
        answer: whose body is still to come.
        over: closes it; called when all of it has come, or it never will.
    """

    def __init__(self, answer: httpx.Response, over: Callable[[], Awaitable[None]]) -> None:
        self.status = answer.status_code
        self.location = answer.headers.get("location", "")
        self._answer = answer
        self._over = over

    async def drain(self) -> None:
        """Nobody reads it: to its end, if that is near, or its connection is of no more use."""
        try:
            size = 0
            async for piece in self._answer.aiter_raw():
                size += len(piece)
                if size > LITTLE:
                    break
        except httpx.TransportError as error:
            raise _nobody(f"the allocator was lost: {error!r}") from error
        finally:
            with trio.move_on_after(1.0, shield=True):
                await self._over()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on; its connection is given back however that ends."""
        answer = self._answer
        kept = {k: v for k, v in answer.headers.items() if k in RETURNED_HEADERS}
        response = StreamingResponse(
            answer.aiter_raw(), status_code=answer.status_code, headers=kept
        )
        try:
            await response(scope, receive, send)
        except httpx.TransportError as error:
            raise BrokenAnswerError(str(error)) from error
        finally:
            with trio.move_on_after(1.0, shield=True):
                await self._over()


class BrokenAnswerError(Exception):
    """The allocator was lost in the middle of its answer; the connection to the caller is cut."""


def _nobody(detail: str) -> UnreachableError:
    return UnreachableError(f"{detail}; repeat the call with the same key", retry_after=1.0)
