# Written by scripts/unasync.py from sandman/_async/transport.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Calls over HTTP: what went wrong becomes one of our errors here, and nowhere else."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

import httpx

from sandman import names
from sandman._core import blocking as anyio
from sandman._core import faults
from sandman._core.retry import Patience, Repeat, Retry, Voice
from sandman._sync.bodies import Body, FramedBody, Source
from sandman._sync.lanes import CLOSE_LIMIT_S, Lane, Lanes
from sandman.errors import SandmanError, UnreachableError
from sandman.version import __version__

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping

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
    """The bytes of an answer as they arrive; `close` ends it at any point, without leftovers."""

    def __init__(self, response: httpx.Response, url: str) -> None:
        self._response = response
        self._parts = response.iter_raw()
        self._url = url

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._parts)
        except httpx.HTTPError as error:
            raise faults.from_transport(error, self._url) from error

    def close(self) -> None:
        """Close the connection, unless the answer was read to its end; then it is kept."""
        with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
            self._response.close()
            # httpx reads through a pile of generators. Reading on lets the closed connection's error
            # run through all of them, where else the garbage collector would have to end them.
            with suppress(httpx.HTTPError, httpx.StreamError):
                for _ in self._parts:
                    pass


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """An answer 2xx: its head, and its body yet to be read."""

    response: httpx.Response
    chunks: Chunks
    lane: Lane
    """Is given back when the answer is closed."""

    def read(self) -> bytes:
        """All of the body."""
        parts = []
        while (part := next(self.chunks, None)) is not None:
            parts.append(part)
        return b"".join(parts)

    def json(self) -> object:
        """The body's JSON; None where there is none to be.

        Raises:
            InternalError: it is none: not our gateway's answer.
        """
        # Nothing is read to its end too: else its connection is closed, and the next call shakes hands anew.
        body = self.read()
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

    def close(self) -> None:
        """Close all connections."""
        self._lanes.close()

    def trust(self) -> ssl.SSLContext:
        """The certificates that the gateway's must be of."""
        return self._lanes.trust()

    def json(self, call: Call) -> object:
        """Make the call, read its JSON; None for an answer without a body.

        An answer that breaks off is as good as none: a call that may be repeated is.
        """
        _, document = self._persist(call, read=True)
        return document

    @contextmanager
    def open(self, call: Call) -> Iterator[Answer]:
        """Make the call; the answer is 2xx and its body open inside the block.

        Raises:
            SandmanError: any other answer, and any failure of the way there.
        """
        answer = self.begin(call)
        whole = True
        try:
            yield answer
        except BaseException as error:
            whole = isinstance(error, Exception)
            raise
        finally:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                self.end(answer, whole=whole)

    def begin(self, call: Call) -> Answer:
        """The same for an answer that outlives the block, until `end`."""
        answer, _ = self._persist(call, read=False)
        return answer

    def end(self, answer: Answer, *, whole: bool = True) -> None:
        """Close an answer, read to its end or not; not `whole`: it was cancelled somewhere."""
        answer.chunks.close()
        self._lanes.give(answer.lane, whole=whole)

    def _attempt(self, attempt: Attempt) -> Answer:
        lane = self._lanes.take()
        try:
            return attempt.run(lane)
        except BaseException as error:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                self._lanes.give(lane, whole=isinstance(error, Exception))
            raise

    def _read(self, answer: Answer) -> object:
        whole = True
        try:
            return answer.json()
        except BaseException as error:
            whole = isinstance(error, Exception)
            raise
        finally:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                self.end(answer, whole=whole)

    def _persist(self, call: Call, *, read: bool) -> tuple[Answer, object]:
        limits = self.settings.limits
        wait = limits.retry_s if call.patience_s is None else call.patience_s
        patience = Patience.begin(call.repeat, anyio.current_time(), wait)
        while True:
            # The first try may take what the gateway grants; where patience runs already, what is left of it.
            limited = patience.attempt > 0 or call.patience_s is not None
            within = patience.left(anyio.current_time()) if limited else None
            attempt = Attempt(call, self.settings, within)
            try:
                answer = self._attempt(attempt)
                self._has_worked = True
                return answer, self._read(answer) if read else None
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
            anyio.sleep(pause)

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

    def run(self, lane: Lane) -> Answer:
        """Send it; the answer is 2xx.

        Raises:
            SandmanError: what else became of it.
        """
        url = self._settings.url
        try:
            response = lane.http.send(self._request(lane), stream=True, follow_redirects=False)
        except httpx.HTTPError as error:
            fault = faults.from_transport(error, url)
            raise (self._unanswered(fault) if self.sent else fault) from error
        chunks = Chunks(response, url)
        if response.status_code == 101 if self._call.upgrade else response.is_success:
            return Answer(response, chunks, lane)
        raise self._refusal(response, chunks)

    def _refusal(self, response: httpx.Response, chunks: Chunks) -> SandmanError:
        body = bytearray()
        try:
            with suppress(SandmanError):
                for chunk in chunks:
                    body += chunk
                    if len(body) > MOST_ERROR_BYTES:
                        break
        finally:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                chunks.close()
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

        def trace(event: str, info: Mapping[str, Any]) -> None:
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
