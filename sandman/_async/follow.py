"""A command's output over as many connections as it takes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Self

import anyio

from sandman import names
from sandman._async.lanes import CLOSE_LIMIT_S
from sandman._async.stream import ExecStream
from sandman._async.transport import Call
from sandman._core import faults
from sandman._core.config import EXEC_SILENCE_S
from sandman._core.retry import Patience, Repeat, Retry
from sandman.errors import NotFoundError, OutcomeUnknownError, SandmanError
from sandman.handles import STREAMS, Gap

if TYPE_CHECKING:
    from types import TracebackType

    from sandman._async.transport import Answer, Transport
    from sandman._core.values import Event
    from sandman.wire import ExecResult


class Follow:
    """What a command writes, from given offsets on: iterate, then read `result`.

    A connection that breaks is made again from where it broke, no byte lost or repeated, until
    nothing has come for `Limits.retry_s`. Made by `Process.follow`:

        async with process.follow() as output:
            async for event in output:
                ...  # Stdout(data) or Stderr(data)
        print(output.result.exit_code)

    Read to its end it needs no block. Leaving early does nothing to a detached command.

    Args:
        transport: the way to the gateway.
        sandbox: id of the sandbox.
        path: of the command at the gateway.
        offsets: where each stream begins.
        first: starts the command, and gives its output from the beginning.
    """

    def __init__(
        self,
        transport: Transport,
        sandbox: str,
        path: str,
        offsets: dict[str, int],
        first: Call | None = None,
    ) -> None:
        self._transport = transport
        self._sandbox = sandbox
        self._path = path
        self._first = first
        self._starting = first
        self._answer: Answer | None = None
        self._stream: ExecStream | None = None
        self._result: ExecResult | None = None
        self._patience: Patience | None = None
        self._lost: SandmanError | None = None
        self.offsets = offsets
        """Where each stream stands after the events so far."""
        self.gaps: list[Gap] = []
        """Bytes that the sandbox no longer had when they were asked for."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
            await self.aclose(whole=error is None or isinstance(error, Exception))

    async def aclose(self, *, whole: bool = True) -> None:
        """Stop reading; not `whole`: the reading was cancelled somewhere."""
        answer, self._answer = self._answer, None
        self._stream = None
        if answer is not None:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                await self._transport.end(answer, whole=whole)

    @property
    def result(self) -> ExecResult:
        """How the command ended; its `stdout` and `stderr` are empty, they were the events.

        Raises:
            RuntimeError: it has not ended yet: iterate to the end.
        """
        if self._result is None:
            raise RuntimeError("the command has not ended yet: iterate to the end")
        return self._result

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while self._result is None:
            try:
                stream = self._stream or await self._connect()
                event = await anext(stream, None)
            except SandmanError as error:
                pause = await self._after(error)
            else:
                if event is not None:
                    self._note(stream)
                    return event
                self._note(stream)
                self._result = stream.result
                await self.aclose()
                break
            await anyio.sleep(pause)
        raise StopAsyncIteration

    @property
    def _may_run(self) -> bool:
        """Whether the command is this one's own, and may have been started."""
        return self._starting is not None and self._starting.sent

    def _note(self, stream: ExecStream) -> None:
        """How far this connection has come."""
        self.offsets.update(stream.offsets)
        self.gaps += stream.gaps
        stream.gaps.clear()
        if stream.exec_id is not None:
            self._first = None  # it runs: from now on its output is asked for
        if stream.is_alive:
            self._patience = None

    async def _connect(self) -> ExecStream:
        call = self._first or self._call()
        if self._patience is not None:
            # One patience, not one for each connection.
            call.patience_s = max(0.0, self._patience.until - anyio.current_time())
        self._answer = await self._transport.begin(call)
        self._stream = ExecStream.of(self._answer, self._sandbox)
        self._stream.offsets.update(self.offsets)
        return self._stream

    def _call(self) -> Call:
        query = "&".join(f"{name}={self.offsets[name]}" for name in STREAMS)
        return Call(
            "GET",
            f"{self._path}/output?{query}",
            headers={"accept": names.MEDIA_FRAMES},
            sandbox=self._sandbox,
            silence_s=EXEC_SILENCE_S,
        )

    async def _after(self, error: SandmanError) -> float:
        """The pause before the next connection.

        Raises:
            SandmanError: there will be none.
        """
        if self._stream is not None:
            self._note(self._stream)
        is_of_call = self._answer is None  # the transport has been patient with it already
        await self.aclose()
        is_spent = self._first is not None and self._first.repeat is Repeat.UNSENT
        if is_spent and isinstance(error, OutcomeUnknownError):
            self._first = None  # its input cannot be sent again; perhaps it has arrived
            is_of_call = False
        if is_of_call:
            raise self._final(error)
        now = anyio.current_time()
        if self._patience is None:
            limits = self._transport.settings.limits
            self._patience = Patience.begin(Repeat.SAFE, now, limits.retry_s)
        self._lost = error
        dice = random.random()  # noqa: S311 - spreads callers, guards nothing
        pause = self._patience.pause(error, sent=True, now=now, dice=dice)
        if pause is None:
            raise self._final(error)
        self._transport.tell(Retry(f"GET {self._path}", error, self._patience.attempt, pause))
        return pause

    def _final(self, error: SandmanError) -> SandmanError:
        """What the caller hears: of a command that may have run, that nobody knows."""
        if isinstance(error, NotFoundError) and self._lost is not None:
            error = self._lost  # it never came to run, or it is forgotten: nobody can tell which
        if not self._may_run or not error.retryable:
            return error
        return faults.unknown_outcome(error.detail, self._sandbox)
