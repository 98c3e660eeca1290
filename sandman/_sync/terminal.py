# Written by scripts/unasync.py from sandman/_async/terminal.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""A command in a terminal: read what it shows, type into it, over as many connections as it takes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Self

import httpcore
import httpx

from sandman import names, terminal, websocket
from sandman._core import blocking as anyio
from sandman._core import faults
from sandman._core.config import EXEC_SILENCE_S
from sandman._core.retry import Patience, Repeat, Retry
from sandman._core.screen import Screen
from sandman._core.sources import as_bytes
from sandman._sync.lanes import CLOSE_LIMIT_S
from sandman._sync.transport import Call
from sandman.errors import ConflictError, SandmanError, UnreachableError

if TYPE_CHECKING:
    from types import TracebackType

    from sandman._sync.process import Process
    from sandman._sync.transport import Answer, Transport
    from sandman.handles import Gap
    from sandman.wire import ExecResult

TERMINAL_GRACE_S = 60.0
"""How long an attached terminal waits for its reader: a person's network may change meanwhile."""
_RECEIVE_BYTES = 256 * 1024


class Terminal:
    """A terminal of a sandbox. Made by `Sandbox.terminal`, `open_terminal` and `attach_terminal`.

    A connection that breaks is made again from where it broke, no byte of output lost or repeated and
    what was typed taken once, until nothing has come for `Limits.retry_s`. One task may read while others
    write. Whoever connects to the same terminal later takes it over: then calls here raise
    ConflictError.

    Args:
        transport: the way to the gateway.
        sandbox: id of the sandbox.
        process: the command in it.
        offset: of its output, where reading begins.
    """

    def __init__(
        self, transport: Transport, sandbox: str, process: Process, offset: int = 0
    ) -> None:
        self._transport = transport
        self._sandbox = sandbox
        self.process = process
        """The command: `signal`, `kill`, `refresh`. Its `wait` lets output pass that nobody has read."""
        self._screen = Screen(offset)
        self._answer: Answer | None = None
        self._patience: Patience | None = None
        self._silent_since = 0.0
        self._receiving = anyio.Lock()
        self._sending = anyio.Lock()

    def __repr__(self) -> str:
        return f"<Terminal {self.process.exec_id} offset={self.offset}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave it. A detached one runs on; another is ended when nobody comes back in its grace."""
        with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
            self._disconnect()

    @property
    def offset(self) -> int:
        """Where its output was read up to; `attach_terminal` goes on there."""
        return self._screen.offset

    @property
    def gaps(self) -> list[Gap]:
        """Output that the sandbox no longer had when it was asked for."""
        return self._screen.gaps

    @property
    def result(self) -> ExecResult:
        """How the command ended; without its output.

        Raises:
            RuntimeError: it has not ended yet: read to the end.
        """
        if self._screen.result is None:
            raise RuntimeError("the command has not ended yet: read to the end")
        return self._screen.result

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        data = self.read()
        if not data:
            raise StopIteration
        return data

    def read(self, timeout_s: float | None = None) -> bytes:
        """The next bytes that it shows, at least one; empty: it has ended, and `result` is there.

        Raises:
            TimeoutError: nothing came for `timeout_s`.
            ConflictError: another connection has taken it over.
            SandmanError: sandbox or gateway failed, or cannot be reached any more.
        """
        until = None if timeout_s is None else anyio.current_time() + timeout_s
        while not self._screen.has_output and self._screen.result is None:
            left = None if until is None else until - anyio.current_time()
            if left is not None and left <= 0:
                raise TimeoutError(f"the terminal showed nothing for {timeout_s} s")
            self._turn(left)
        if self._screen.result is not None:
            self.close()
        return self._screen.read()

    def write(self, data: str | bytes | bytearray | memoryview) -> None:
        r"""Type this; Enter is `\r`, and control characters are what they are on a keyboard.

        Waits when the command does not read. Output that comes meanwhile is kept for `read`, up to 16 MiB.

        Raises:
            ConflictError: it has ended, or another connection has taken it over.
            SandmanError: sandbox or gateway failed, or cannot be reached any more.
        """
        screen = self._screen
        left = memoryview(as_bytes(data))
        while left or screen.is_unsent:
            if screen.result is not None:
                raise ConflictError("the terminal has ended", sandbox=self._sandbox)
            if not screen.is_joined or (left and not screen.room):
                self._turn(None)
                continue
            left = left[screen.type(left) :]
            self._send()

    def resize(self, rows: int, cols: int) -> None:
        """Give it another size, in characters.

        Raises:
            ConflictError: it has ended.
        """
        call = Call.with_json("POST", f"{self.process.path}/resize", {"rows": rows, "cols": cols})
        call.sandbox = self._sandbox
        self._transport.json(call)

    # --- the connection ---

    def _turn(self, timeout_s: float | None) -> None:
        """Wait until something has come, by this task or another, or the time is over."""
        turns = self._screen.turns
        with self._receiving:
            if self._screen.turns != turns:
                return
            pause = 0.0
            try:
                answer = self._answer or self._connect()
                self._receive(answer, timeout_s)
                self._send()
            except SandmanError as error:
                pause = self._after(error)
            if pause:
                anyio.sleep(pause)

    def _connect(self) -> Answer:
        key = websocket.make_key()
        call = Call(
            "GET",
            f"{self.process.path}/terminal?stdout={self._screen.received}&exclusive=1",
            headers={
                "connection": "Upgrade",
                "upgrade": "websocket",
                "sec-websocket-version": websocket.VERSION,
                "sec-websocket-key": key,
                "sec-websocket-protocol": terminal.SUBPROTOCOL,
            },
            sandbox=self._sandbox,
            upgrade=True,
        )
        if self._patience is not None:
            # One patience, not one for each connection.
            call.patience_s = max(0.0, self._patience.until - anyio.current_time())
        answer = self._transport.begin(call)
        said = answer.response.headers
        if (said.get("sec-websocket-accept"), said.get("sec-websocket-protocol")) != (
            websocket.accept_key(key),
            terminal.SUBPROTOCOL,
        ):
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                self._transport.end(answer, whole=False)
            raise faults.not_ours(answer.response)
        self._screen.connected()
        self._silent_since = anyio.current_time()
        self._answer = answer
        return answer

    def _receive(self, answer: Answer, timeout_s: float | None) -> None:
        silence = self._silent_since + EXEC_SILENCE_S - anyio.current_time()
        wait = silence if timeout_s is None else min(timeout_s, silence)
        try:
            data = _stream(answer).read(_RECEIVE_BYTES, timeout=max(0.001, wait))
        except httpcore.ReadTimeout:
            if anyio.current_time() < self._silent_since + EXEC_SILENCE_S:
                return
            raise UnreachableError("the terminal's connection fell silent") from None
        except (httpcore.NetworkError, httpcore.TimeoutException) as error:
            raise self._fault(error) from error
        self._silent_since = anyio.current_time()
        self._screen.feed(data)
        if self._screen.is_alive:
            self._patience = None

    def _send(self) -> None:
        """Send what there is. What cannot be goes by the next connection."""
        with self._sending:
            answer = self._answer
            data = self._screen.outgoing() if answer is not None else b""
            if answer is None or not data:
                return
            try:
                _stream(answer).write(data, timeout=EXEC_SILENCE_S)
            except (httpcore.NetworkError, httpcore.TimeoutException):
                self._break(answer)
            except BaseException:  # cancelled, perhaps within a frame
                with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                    self._break(answer)
                raise

    def _break(self, answer: Answer) -> None:
        """Of no use any more; who receives finds that, too, at once, or has made another by now."""
        if answer is self._answer:
            self._screen.broken()
        _stream(answer).close()

    def _fault(self, error: Exception) -> UnreachableError:
        return faults.from_transport(
            httpx.ReadError(str(error) or type(error).__name__), self._transport.settings.url
        )

    def _disconnect(self) -> None:
        answer, self._answer = self._answer, None
        self._screen.broken()
        if answer is not None:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                self._transport.end(answer, whole=False)

    def _after(self, error: SandmanError) -> float:
        """The pause before the next connection.

        Raises:
            SandmanError: there will be none.
        """
        is_of_call = self._answer is None  # the transport has been patient with it already
        self._disconnect()
        error.sandbox = error.sandbox or self._sandbox
        if is_of_call:
            raise error
        now = anyio.current_time()
        if self._screen.is_out_of_reach:
            # A close frame has no room for facts. The terminal was last heard of when something last came.
            error.facts[names.FACT_SILENT_S] = now - self._silent_since
        if self._patience is None:
            limits = self._transport.settings.limits
            self._patience = Patience.begin(Repeat.SAFE, now, limits.retry_s)
        dice = random.random()  # noqa: S311 - spreads callers, guards nothing
        pause = self._patience.pause(error, sent=True, now=now, dice=dice)
        if pause is None:
            raise error
        call = f"GET {self.process.path}/terminal"
        self._transport.tell(Retry(call, error, self._patience.attempt, pause))
        return pause


def _stream(answer: Answer) -> httpcore.NetworkStream:
    stream: httpcore.NetworkStream = answer.response.extensions["network_stream"]
    return stream
