"""Hands an allocation call to the replica that decides, and its answer back.

The call goes on as it came, with the caller's own token: the allocator authenticates and authorizes
it itself, so replicas need no trust in each other beyond TLS, and a gateway cannot be made to speak
for somebody else.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Protocol

import httpx
from starlette.responses import StreamingResponse

from sandman import names
from sandman.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from starlette.requests import Request

FORWARDED_HEADERS = (
    "authorization",
    "content-type",
    "content-length",
    names.HEADER_IDEMPOTENCY_KEY.lower(),
)
TIMEOUT = httpx.Timeout(connect=2.0, read=None, write=30.0, pool=None)
"""An allocation may take as long as the caller's `wait_s`; the caller's going away ends it."""
NO_LIMIT = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30)


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

    @property
    def is_allocator(self) -> bool:
        """Whether this replica decides itself."""
        return self._leadership.is_leader

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def forward(self, request: Request) -> StreamingResponse:
        """The allocator's answer to this call.

        Raises:
            UnreachableError: there is no allocator just now, or it was lost meanwhile: repeating the
                call with the same idempotency key is safe.
        """
        address = self._leadership.address
        if address is None or names.HEADER_HOP.lower() in request.headers:
            raise _nobody("no replica is the allocator just now")
        client = self._connect()
        call = client.build_request(
            request.method,
            f"https://{address}{request.url.path}",
            headers=self._headers(request),
            content=request.stream(),
            extensions={"sni_hostname": self._server_name},
        )
        try:
            answer = await client.send(call, stream=True)
        except httpx.TransportError as error:
            raise _nobody(f"the allocator at {address} was lost: {error!r}") from error
        kept = {k: v for k, v in answer.headers.items() if k in {"content-type", "retry-after"}}
        return StreamingResponse(_body(answer), status_code=answer.status_code, headers=kept)

    def _connect(self) -> httpx.AsyncClient:
        """The client for the authority of now; calls in flight keep the one that they began with."""
        authority = self._authority()
        if self._client is None or authority != self._trusted:
            trust = ssl.create_default_context(cadata=authority.decode("ascii"))
            # An operator may have given a certificate without its issuer: then it vouches for itself.
            trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            self._client = httpx.AsyncClient(
                verify=trust, timeout=TIMEOUT, limits=NO_LIMIT, trust_env=False
            )
            self._trusted = authority
        return self._client

    def _headers(self, request: Request) -> dict[str, str]:
        passed = {k: request.headers[k] for k in FORWARDED_HEADERS if k in request.headers}
        return {**passed, "host": self._server_name, names.HEADER_HOP: "1"}


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()


def _nobody(detail: str) -> UnreachableError:
    return UnreachableError(f"{detail}; repeat the call with the same key", retry_after=1.0)
