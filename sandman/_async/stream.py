"""A command's stream of frames, as events and a result."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from sandman import names, wire
from sandman._core import faults
from sandman._core.values import Event, Stderr, Stdout
from sandman.errors import (
    BadRequestError,
    OutcomeUnknownError,
    SandmanError,
    UnreachableError,
)
from sandman.handles import STREAMS, Gap
from sandman.problems import from_problem
from sandman.wire import ExecResult, Frame

if TYPE_CHECKING:
    from sandman._async.transport import Answer, Chunks

_SIGNS_OF_LIFE = frozenset({wire.STDOUT, wire.STDERR, wire.GAP, wire.KEEPALIVE})


class ExecStream:
    """A running command: iterate over its output, then read `result`.

    Made by `Sandbox.stream`. Nothing is kept here: a reader who is slow slows the command down.

        async with box.stream(["make"]) as stream:
            async for event in stream:
                ...  # Stdout(data) or Stderr(data)
        print(stream.result.exit_code)
    """

    def __init__(self, answer: Answer, sandbox: str) -> None:
        self._chunks: Chunks = answer.chunks
        self._sandbox = sandbox
        self._decoder = wire.FrameDecoder()
        self._events: deque[Event | Gap] = deque()
        self._result: ExecResult | None = None
        self._failure: SandmanError | None = None
        self.exec_id: str | None = None
        """The command's id, known once it runs."""
        self.offsets = dict.fromkeys(STREAMS, 0)
        """Where each stream stands after the events so far."""
        self.gaps: list[Gap] = []
        """Bytes that the sandbox no longer had, each told here in its turn."""
        self.is_alive = False
        """Something came that shows the command to go on: output, or a keepalive."""

    @classmethod
    def of(cls, answer: Answer, sandbox: str) -> Self:
        """The stream in this answer.

        Raises:
            OutcomeUnknownError: what answered is not our gateway.
        """
        if answer.response.headers.get("content-type") != names.MEDIA_FRAMES:
            raise faults.unknown_outcome(faults.not_ours(answer.response).detail, sandbox)
        return cls(answer, sandbox)

    @property
    def result(self) -> ExecResult:
        """How the command ended; its `stdout` and `stderr` are empty, they were the events.

        Raises:
            RuntimeError: it has not ended yet: iterate to the end, or `wait()`.
        """
        if self._result is None:
            raise RuntimeError("the command has not ended yet: iterate to the end, or call wait()")
        return self._result

    async def wait(self) -> ExecResult:
        """Read on to the end, drop the output, give the result.

        Raises:
            OutcomeUnknownError: the stream ended without one.
            SandmanError: what the sandbox or the gateway reported instead.
        """
        async for _ in self:
            pass
        return self.result

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while True:
            while self._events:
                event = self._events.popleft()
                if not isinstance(event, Gap):
                    name = "stdout" if isinstance(event, Stdout) else "stderr"
                    self.offsets[name] += len(event.data)
                    return event
                self.offsets[event.stream] = event.end
                self.gaps.append(event)
            if self._failure is not None:
                raise self._failure
            if self._result is not None:
                raise StopAsyncIteration
            await self._receive()

    async def _receive(self) -> None:
        try:
            data = await anext(self._chunks, None)
            if data is None:
                raise self._lost("the stream ended without a result")
            for frame in self._decoder.feed(data):
                self._take(frame)
        except UnreachableError as error:
            self._failure = self._lost(error.detail)
        except BadRequestError as error:  # the word of `wire` for what it cannot read
            self._failure = self._lost(f"the stream is broken: {error.detail}")
        except OutcomeUnknownError as error:
            self._failure = error
        if self._result is not None:
            await self._finish()

    async def _finish(self) -> None:
        # The body's end is on its way: once it is read the connection can serve the next call.
        with suppress(UnreachableError):  # the result is here already
            async for _ in self._chunks:
                pass

    def _take(self, frame: Frame) -> None:
        self.is_alive = self.is_alive or frame.type in _SIGNS_OF_LIFE
        if frame.type == wire.STDOUT:
            self._events.append(Stdout(frame.payload))
        elif frame.type == wire.STDERR:
            self._events.append(Stderr(frame.payload))
        elif frame.type == wire.GAP:
            self._events.append(Gap.from_json(wire.load_object(frame.payload)))
        elif frame.type == wire.STARTED:
            self.exec_id = str(wire.load_object(frame.payload).get("exec_id"))
        elif frame.type == wire.EXIT:
            self._result = self._read_result(frame)
        elif frame.type == wire.ERROR:
            self._failure = from_problem(wire.load_object(frame.payload))
            self._failure.sandbox = self._failure.sandbox or self._sandbox

    def _read_result(self, frame: Frame) -> ExecResult:
        try:
            return ExecResult.from_json(wire.load_object(frame.payload))
        except (TypeError, ValueError) as error:
            raise self._lost(f"the result cannot be read: {error}") from error

    def _lost(self, detail: str) -> OutcomeUnknownError:
        return faults.unknown_outcome(detail, self._sandbox)
