"""A command that was started: come back to it, feed it, signal it, end it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from sandman import names
from sandman._async.bodies import Body, Source
from sandman._async.follow import Follow
from sandman._async.transport import Call
from sandman._core import faults
from sandman._core.config import REPLY_MARGIN_S
from sandman._core.retry import Repeat
from sandman._core.sources import CHUNK_BYTES, as_bytes
from sandman.errors import BadRequestError, SandmanError
from sandman.handles import ENDED, ProcessInfo

if TYPE_CHECKING:
    from sandman._async.transport import Transport
    from sandman.wire import ExecResult

POLL_S = 30.0
"""One question whether a command has ended is held open for so long; then it is asked again."""
KILL_LIMIT_S = 5.0
"""Longest that a cancelled `exec` waits for the sandbox to hear of it."""


class Process:
    """A command of a sandbox. Made by `Sandbox.start`, `process` and `processes`.

    Any number of handles may stand for one command, in any number of programs.
    """

    def __init__(
        self,
        transport: Transport,
        sandbox: str,
        sandbox_path: str,
        exec_id: str,
        info: ProcessInfo | None = None,
    ) -> None:
        if not names.is_exec_id(exec_id):
            raise BadRequestError(
                "exec_id must be 1 to 64 of [A-Za-z0-9._-] and not dots alone", field="exec_id"
            )
        self._transport = transport
        self._sandbox = sandbox
        self.path = f"{sandbox_path}/processes/{quote(exec_id, safe='')}"
        self.exec_id = exec_id
        self.info = info
        """What the sandbox said of it when it was last asked; None: not yet."""

    def __repr__(self) -> str:
        return f"<Process {self.exec_id} {self.info.state if self.info else 'state unknown'}>"

    async def refresh(self) -> ProcessInfo:
        """Ask for the present state; kept in `info`. With `result`, and its output, once it has ended.

        Raises:
            NotFoundError: no such command, or it has been forgotten.
        """
        return await self._ask(Call("GET", self.path))

    async def wait(self) -> ExecResult:
        """Wait for its end; the result holds the output that is kept, head and tail.

        Raises:
            NotFoundError: no such command, or it has been forgotten.
        """
        while True:
            call = Call("GET", f"{self.path}?wait_s={POLL_S}", silence_s=POLL_S + REPLY_MARGIN_S)
            info = await self._ask(call)
            if info.state == ENDED and info.result is not None:
                return info.result

    def follow(self, stdout: int = 0, stderr: int = 0) -> Follow:
        """Its output from these offsets on, as it comes: an async iterator, also usable as a block."""
        offsets = {"stdout": stdout, "stderr": stderr}
        return Follow(self._transport, self._sandbox, self.path, offsets)

    async def write(self, data: str | bytes | bytearray | memoryview) -> None:
        """Append to its stdin, which must have been left open; returns when all is taken in.

        For one writer: bytes are told apart by their place, so that none arrives twice.

        Raises:
            ConflictError: its stdin is not open.
        """
        left = memoryview(as_bytes(data))
        info = self.info or await self.refresh()
        while left:
            piece = bytes(left[:CHUNK_BYTES])
            before = info.stdin_bytes
            call = Call("POST", f"{self.path}/stdin?offset={before}", body=Body(Source(piece)))
            info = await self._ask(call)
            left = left[info.stdin_bytes - before :]

    async def close_stdin(self) -> None:
        """End of file after what was written."""
        await self._ask(Call("POST", f"{self.path}/stdin?close=1"))

    async def signal(self, signal: str | int, *, tree: bool = False) -> None:
        """Send a signal (name or number) to the command's first process, or to all of its tree.

        Raises:
            ConflictError: it has ended.
            OutcomeUnknownError: the connection broke; a signal is not sent twice.
        """
        body = {"signal": signal, "tree": tree}
        call = Call.with_json("POST", f"{self.path}/signal", body)
        call.repeat = Repeat.UNSENT
        call.sandbox = self._sandbox
        await self._transport.json(call)

    async def kill(self, *, patience_s: float | None = None) -> None:
        """Have its whole tree ended, TERM first; `wait()` for that. May be repeated.

        Args:
            patience_s: how long to try; None: `Limits.retry_s`.
        """
        call = Call("DELETE", self.path, sandbox=self._sandbox, patience_s=patience_s)
        call.silence_s = patience_s
        await self._transport.json(call)

    async def _ask(self, call: Call) -> ProcessInfo:
        call.sandbox = self._sandbox
        self.info = parse_process(await self._transport.json(call))
        return self.info


def parse_process(answer: object) -> ProcessInfo:
    """A command out of an answer.

    Raises:
        InternalError: it is none.
    """
    try:
        return ProcessInfo.from_json(answer)  # type: ignore[arg-type]
    except (BadRequestError, TypeError, AttributeError):
        raise faults.not_understood("a command", answer) from None


async def kill_quietly(process: Process) -> None:
    """A cancelled command ends at once; where that cannot be said, its grace ends it."""
    with suppress(SandmanError):
        await process.kill(patience_s=KILL_LIMIT_S)
