"""Calls over HTTP: what went wrong becomes one of our errors here, and nowhere else."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import anyio
import httpx

from sandman import names
from sandman._async.bodies import Body, FramedBody, Source
from sandman._async.lanes import CLOSE_LIMIT_S, Lane, Lanes
from sandman._core import faults
from sandman._core.retry import Patience, Repeat, Retry, Voice
from sandman.errors import SandmanError, UnreachableError
from sandman.version import __version__

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Mapping

    from sandman._core.config import Settings

MOST_ERROR_BYTES = 1024 * 1024
"""An error's body beyond this is not read."""

logger = logging.getLogger("sandman")


@dataclasses.dataclass(slots=True)
class Call:
    """One call of the API: what to send, how long to wait, whether it may be repeated.

    `sent` tells afterwards whether a byte of any attempt may have left.
    """

    method: str
    path: str
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    body: Body | None = None
    repeat: Repeat = Repeat.SAFE
    sandbox: str | None = None
    silence_s: float | None = None
    patience_s: float | None = None
    upgrade: bool = False
    """The answer is to be 101: from then on the connection speaks another protocol."""
    sent: bool = False

    @classmethod
    def with_json(cls, method: str, path: str, document: object) -> Self:
        """A call with a JSON body."""
        body = Body(Source(json.dumps(document)))
        return cls(method, path, {"content-type": names.MEDIA_JSON}, body)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Chunks:
    """The bytes of an answer as they arrive; `aclose` ends it at any point, without leftovers."""

    def __init__(self, response: httpx.Response, url: str) -> None:
        self._response = response
        self._parts = response.aiter_raw()
        self._url = url

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._parts)
        except httpx.HTTPError as error:
            raise faults.from_transport(error, self._url) from error

    async def aclose(self) -> None:
        """Close the connection, unless the answer was read to its end; then it is kept."""
        with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
            await self._response.aclose()
            # httpx reads through a pile of generators. Reading on lets the closed connection's error
            # run through all of them, where else the garbage collector would have to end them.
            with suppress(httpx.HTTPError, httpx.StreamError):
                async for _ in self._parts:
                    pass


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """An answer 2xx: its head, and its body yet to be read."""

    response: httpx.Response
    chunks: Chunks
    lane: Lane
    """Is given back when the answer is closed."""

    async def read(self) -> bytes:
        """All of the body."""
        parts = []
        while (part := await anext(self.chunks, None)) is not None:
            parts.append(part)
        return b"".join(parts)

    async def json(self) -> object:
        """The body's JSON; None where there is none to be.

        Raises:
            InternalError: it is none: not our gateway's answer.
        """
        # Nothing is read to its end too: else its connection is closed, and the next call shakes hands anew.
        body = await self.read()
        if self.response.status_code == 204:
            return None
        try:
            return json.loads(body)
        except ValueError:
            raise faults.not_ours(self.response) from None


class Transport:
    """One gateway, many connections."""

    def __init__(self, settings: Settings, on_retry: Callable[[Retry], None] | None = None) -> None:
        self.settings = settings
        self._on_retry = on_retry
        self._lanes = Lanes(settings)
        self._voice = Voice()
        self._has_worked = False

    async def aclose(self) -> None:
        """Close all connections."""
        await self._lanes.aclose()

    def trust(self) -> ssl.SSLContext:
        """The certificates that the gateway's must be of."""
        return self._lanes.trust()

    async def json(self, call: Call) -> object:
        """Make the call, read its JSON; None for an answer without a body.

        An answer that breaks off is as good as none: a call that may be repeated is.
        """
        _, document = await self._persist(call, read=True)
        return document

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncIterator[Answer]:
        """Make the call; the answer is 2xx and its body open inside the block.

        Raises:
            SandmanError: any other answer, and any failure of the way there.
        """
        answer = await self.begin(call)
        whole = True
        try:
            yield answer
        except BaseException as error:
            whole = isinstance(error, Exception)
            raise
        finally:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                await self.end(answer, whole=whole)

    async def begin(self, call: Call) -> Answer:
        """The same for an answer that outlives the block, until `end`."""
        answer, _ = await self._persist(call, read=False)
        return answer

    async def end(self, answer: Answer, *, whole: bool = True) -> None:
        """Close an answer, read to its end or not; not `whole`: it was cancelled somewhere."""
        await answer.chunks.aclose()
        await self._lanes.give(answer.lane, whole=whole)

    async def _attempt(self, attempt: Attempt) -> Answer:
        lane = await self._lanes.take()
        try:
            return await attempt.run(lane)
        except BaseException as error:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                await self._lanes.give(lane, whole=isinstance(error, Exception))
            raise

    async def _read(self, answer: Answer) -> object:
        whole = True
        try:
            return await answer.json()
        except BaseException as error:
            whole = isinstance(error, Exception)
            raise
        finally:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                await self.end(answer, whole=whole)

    async def _persist(self, call: Call, *, read: bool) -> tuple[Answer, object]:
        limits = self.settings.limits
        wait = limits.retry_s if call.patience_s is None else call.patience_s
        patience = Patience.begin(call.repeat, anyio.current_time(), wait)
        while True:
            # The first try may take what the gateway grants; where patience runs already, what is left of it.
            limited = patience.attempt > 0 or call.patience_s is not None
            within = patience.left(anyio.current_time()) if limited else None
            attempt = Attempt(call, self.settings, within)
            try:
                answer = await self._attempt(attempt)
                self._has_worked = True
                return answer, await self._read(answer) if read else None
            except SandmanError as error:
                if self._has_worked and isinstance(error, UnreachableError):
                    # Names and TLS were right before: a handshake that broke off will be again.
                    error.retryable = True
                pause = patience.pause(
                    error,
                    sent=attempt.sent,
                    now=anyio.current_time(),
                    dice=random.random(),  # noqa: S311 - spreads callers, guards nothing
                )
                if pause is None:
                    error.sandbox = error.sandbox or call.sandbox
                    error.facts.setdefault("attempts", patience.attempt)
                    raise
                self.tell(Retry(str(call), error, patience.attempt, pause))
            await anyio.sleep(pause)

    def tell(self, retry: Retry) -> None:
        """Let the caller, and the log, know of a retry before its pause."""
        logger.log(
            self._voice.level(retry.error, anyio.current_time()),
            "%s: %s; attempt %d follows in %.1f s",
            retry.call, retry.error, retry.attempt + 1, retry.pause_s,
        )  # fmt: skip
        if self._on_retry is not None:
            self._on_retry(retry)


class Attempt:
    """One try of one call. `sent`: whether a byte of it may have left.

    `within`: seconds in which the gateway is to have found the sandbox; None: as it sees fit.
    """

    def __init__(self, call: Call, settings: Settings, within: float | None) -> None:
        self._call = call
        self._settings = settings
        self._within = within
        self.sent = False

    async def run(self, lane: Lane) -> Answer:
        """Send it; the answer is 2xx.

        Raises:
            SandmanError: what else became of it.
        """
        url = self._settings.url
        try:
            response = await lane.http.send(
                self._request(lane), stream=True, follow_redirects=False
            )
        except httpx.HTTPError as error:
            fault = faults.from_transport(error, url)
            raise (self._unanswered(fault) if self.sent else fault) from error
        chunks = Chunks(response, url)
        if response.status_code == 101 if self._call.upgrade else response.is_success:
            return Answer(response, chunks, lane)
        raise await self._refusal(response, chunks)

    async def _refusal(self, response: httpx.Response, chunks: Chunks) -> SandmanError:
        body = bytearray()
        try:
            with suppress(SandmanError):
                async for chunk in chunks:
                    body += chunk
                    if len(body) > MOST_ERROR_BYTES:
                        break
        finally:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                await chunks.aclose()
        fault = faults.from_answer(response, bytes(body))
        # A proxy that gives up on an answer does not say whether the gateway had the question.
        lost = fault.facts.get("foreign") is True and response.status_code in {502, 503, 504}
        return self._unanswered(fault) if lost else fault

    def _unanswered(self, fault: SandmanError) -> SandmanError:
        if self._call.repeat is Repeat.SAFE:
            return fault
        return faults.unknown_outcome(fault.detail)

    def _request(self, lane: Lane) -> httpx.Request:
        call, settings = self._call, self._settings

        async def trace(event: str, info: Mapping[str, Any]) -> None:
            if event == "connection.connect_tcp.complete":
                lane.half_made = info["return_value"]
            if event == "http11.send_request_headers.started":
                self.sent = call.sent = True
                lane.connected()

        headers = {
            "host": httpx.URL(settings.url).netloc.decode("ascii"),
            "accept": names.MEDIA_JSON,
            "accept-encoding": "identity",
            "user-agent": f"sandman/{__version__}",
            "authorization": f"Bearer {settings.bearer}",
            **({} if self._within is None else {names.HEADER_WITHIN: f"{self._within:.1f}"}),
            **call.headers,
            **(call.body.headers() if call.body is not None else {}),
        }
        extensions = {"timeout": self._timeout().as_dict(), "trace": trace}
        if settings.server_name is not None:
            extensions["sni_hostname"] = settings.server_name
        return httpx.Request(
            call.method,
            settings.url + call.path,
            headers=headers,
            stream=call.body if call.body is not None else Body(Source(b"")),
            extensions=extensions,
        )

    def _timeout(self) -> httpx.Timeout:
        limits = self._settings.limits
        silence = limits.silence_s if self._call.silence_s is None else self._call.silence_s
        # A command that does not read its stdin may hold up the sending for as long as it likes.
        write = None if isinstance(self._call.body, FramedBody) else silence
        return httpx.Timeout(connect=limits.connect_s, read=silence, write=write, pool=None)
