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
    from collections.abc import AsyncIterator, Callable

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
NO_LIMIT = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30)
CONNECTING_AT_ONCE = 16
"""Calls that connect at the same time; the time limit of each counts from its turn. Of a burst of hundreds that connect
all at once each would be late, would be told so, and would come again."""
TURN_S = 5.0
"""Seconds that a call waits for its turn: longer than a busy allocator takes for hundreds of handshakes; where it is
lost, its caller hears so while the next one is elected."""
ASK_S = 5.0
"""Seconds for an answer to `ask`: a look into its memory, and somebody waits for it."""
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
        self._client: httpx.AsyncClient | None = None
        self._old: list[httpx.AsyncClient] = []
        self._connecting = trio.Semaphore(CONNECTING_AT_ONCE)

    @property
    def is_allocator(self) -> bool:
        """Whether this replica decides itself."""
        return self._leadership.is_leader

    async def aclose(self) -> None:
        """Close the connections."""
        for client in (*self._old, self._client):
            if client is not None:
                await client.aclose()

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
        if answer.status_code == 201:
            made(answer.headers.get("location", ""))
        return Answer(answer)

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
            await answer.aclose()
            return answer.status_code
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

    async def _send(self, call: _Call, connected: Callable[[], None]) -> httpx.Response:
        address = self._leadership.address
        if address is None:
            raise _nobody("no replica is the allocator just now")

        async def trace(event: str, _info: object) -> None:
            if event == SENDING:
                connected()

        client = self._connect()
        try:
            request = client.build_request(
                call.method,
                f"https://{address}",
                headers=call.headers,
                content=call.content,
                extensions={
                    "sni_hostname": self._server_name,
                    "trace": trace,
                    "target": call.target,
                },
            )
            return await client.send(request, stream=True)
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise _nobody(f"the allocator at {address} was lost: {error!r}") from error

    def _connect(self) -> httpx.AsyncClient:
        """The client for the authority of now; calls in flight keep the one that they began with."""
        authority = self._authority()
        if self._client is None or authority != self._trusted:
            if self._client is not None:
                self._old.append(self._client)
            trust = ssl.create_default_context(cadata=authority.decode("ascii"))
            # An operator may have given a certificate without its issuer: then it vouches for itself.
            trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            self._client = httpx.AsyncClient(
                verify=trust, timeout=TIMEOUT, limits=NO_LIMIT, trust_env=False
            )
            self._trusted = authority
        return self._client

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


def _target(request: Request) -> bytes:
    """Path and query as they came. Decoded and written anew they could be others: `%3F` begins a query, dots climb."""
    path: bytes = request.scope["raw_path"].partition(b"?")[0]
    query: bytes = request.scope["query_string"]
    return path + b"?" + query if query else path


class Answer:
    """The allocator's answer as a response that Starlette runs: an ASGI application."""

    def __init__(self, answer: httpx.Response) -> None:
        self.status = answer.status_code
        self._answer = answer

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
                await answer.aclose()


class BrokenAnswerError(Exception):
    """The allocator was lost in the middle of its answer; the connection to the caller is cut."""


def _nobody(detail: str) -> UnreachableError:
    return UnreachableError(f"{detail}; repeat the call with the same key", retry_after=1.0)
