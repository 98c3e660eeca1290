"""The keys of issuers: fetched, kept fresh, asked for once more when a token names one that is not there."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import ssl
from typing import TYPE_CHECKING, Protocol

import httpx
import structlog
import trio

from gateway import jose
from sandman.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from gateway.callers import Issuer

log = structlog.get_logger()

FRESH_S = 600.0
"""Seconds after which keys are fetched anew: so long a key that its issuer has taken away is taken."""
LEAST_S = 10.0
"""Least seconds between two fetches from one issuer, whatever callers send."""
STALE_S = 3600.0
"""Seconds for which keys are used whose issuer does not answer: an hour, the life of most tokens."""
FETCH_S = 5.0
"""Seconds for one fetch, all of it."""
DOCUMENT_MAX = 256 * 1024
"""Bytes of a key set: a hundred RSA keys with their certificates."""
LOOK_S = 5.0
"""Seconds between two looks at what is to be fetched."""


class FetchError(Exception):
    """The keys could not be had; the text says why."""


class Fetch(Protocol):
    """Where key sets come from."""

    async def __call__(self, url: str, ca: str | None) -> bytes:
        """The document.

        Raises:
            FetchError: it could not be had.
        """


async def fetch(url: str, ca: str | None) -> bytes:
    """A key set over HTTPS: within FETCH_S, DOCUMENT_MAX and this one address.

    Raises:
        FetchError: it could not be had.
    """
    try:
        with trio.fail_after(FETCH_S):
            # httpx brings a bundle of CAs along: the image may have none.
            trust = ssl.create_default_context(cadata=ca) if ca else httpx.create_ssl_context()
            async with httpx.AsyncClient(verify=trust, trust_env=False) as client:
                return await _read(client, url)
    except trio.TooSlowError:
        raise FetchError(f"no answer within {FETCH_S:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, ValueError) as error:
        raise FetchError(repr(_root(error))) from error


def _root(error: BaseException) -> BaseException:
    """What all came of: httpx's own words are empty where TLS fails."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


async def _read(client: httpx.AsyncClient, url: str) -> bytes:
    asked = client.build_request("GET", url, headers={"accept": "application/json"})
    # As it comes: what unpacks to more than it is would be another limit to keep.
    asked.headers["accept-encoding"] = "identity"
    answer = await client.send(asked, stream=True)
    parts = answer.aiter_raw()
    try:
        # A redirect is none of ours to follow: the operator named an address.
        if answer.status_code != 200:
            raise FetchError(f"status {answer.status_code}")
        return await _whole(parts)
    finally:
        with trio.move_on_after(1.0, shield=True):
            await answer.aclose()
            # httpx reads through a pile of generators: reading on ends all of them.
            with contextlib.suppress(httpx.HTTPError, httpx.StreamError):
                async for _ in parts:
                    pass


async def _whole(parts: AsyncIterator[bytes]) -> bytes:
    data = bytearray()
    while (part := await anext(parts, None)) is not None:
        data += part
        if len(data) > DOCUMENT_MAX:
            raise FetchError(f"over {DOCUMENT_MAX} bytes")
    return bytes(data)


@dataclasses.dataclass
class _Source:
    """The keys of one issuer, on the clock of the event loop."""

    issuer: Issuer
    keys: tuple[jose.Key, ...] = ()
    fetched_at: float = float("-inf")
    tried_at: float = float("-inf")
    lock: trio.Lock = dataclasses.field(default_factory=trio.Lock)


class KeySets:
    """The keys of all issuers that have an address for them.

    Args:
        get: where documents come from.
    """

    def __init__(self, get: Fetch = fetch) -> None:
        self._get = get
        self._sources: dict[str, _Source] = {}

    def take(self, issuers: Iterable[Issuer]) -> None:
        """The issuers as they are now; of those that stay as they were the keys stay."""
        old, self._sources = self._sources, {}
        for one in issuers:
            kept = old.get(one.issuer)
            is_same = kept is not None and (kept.issuer.jwks_url, kept.issuer.ca) == (
                one.jwks_url,
                one.ca,
            )
            source = kept if kept is not None and is_same else _Source(one)
            source.issuer = one
            self._sources[one.issuer] = source

    async def run(self) -> None:
        """Keep them fresh, until cancelled."""
        while True:
            now = trio.current_time()
            due = [one for one in self._sources.values() if now - one.fetched_at >= FRESH_S]
            async with trio.open_nursery() as nursery:
                for source in due:
                    if source.issuer.jwks_url is not None:
                        nursery.start_soon(self._refresh, source)
            await trio.sleep(LOOK_S)

    async def verify(self, token: jose.Token, issuer: Issuer) -> bool:
        """Whether one of the issuer's keys made the token's signature.

        Raises:
            UnreachableError: its keys cannot be had, or not just now.
        """
        if issuer.jwks_url is None:
            return jose.verify(token, issuer.keys)
        return jose.verify(token, await self._keys(token, issuer))

    async def _keys(self, token: jose.Token, issuer: Issuer) -> Sequence[jose.Key]:
        source = self._sources.get(issuer.issuer)
        asked_at = trio.current_time()
        if source is None:
            return ()
        if not self._usable(source) or not jose.matching(token, source.keys):
            # Just rotated, just started, or made up.
            await self._refresh(source)
        keys = self._usable(source)
        if not keys:
            raise UnreachableError(
                f"the keys of {issuer.issuer} cannot be had", retry_after=LEAST_S
            )
        if not jose.matching(token, keys) and source.fetched_at < asked_at:
            # It may have been made in the last seconds, and one fetch more is not to be had yet.
            wait = math.ceil(max(1.0, source.tried_at + LEAST_S - trio.current_time()))
            raise UnreachableError("the token's key is not known yet", retry_after=wait)
        return keys

    def _usable(self, source: _Source) -> Sequence[jose.Key]:
        return source.keys if trio.current_time() - source.fetched_at < STALE_S else ()

    async def _refresh(self, source: _Source) -> None:
        """Fetch, unless that was just done: those that wait for it have what it brought."""
        asked_at = trio.current_time()
        async with source.lock:
            if source.tried_at > asked_at or trio.current_time() - source.tried_at < LEAST_S:
                return
            source.tried_at = trio.current_time()
            try:
                document = await self._get(source.issuer.jwks_url or "", source.issuer.ca)
                source.keys = jose.parse_keys(document)
            except (FetchError, jose.KeySetError) as error:
                log.warning("keys_not_fetched", issuer=source.issuer.name, error=str(error))
            else:
                source.fetched_at = trio.current_time()
