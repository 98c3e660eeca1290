"""The caller of one command: gets its output as JSON at the end, or as frames while it runs."""

from __future__ import annotations

import math
import select
import time

from daemon import config, http1
from daemon.documents import dump
from daemon.exchange import CallerGoneError, Response
from daemon.process import ROOM_BYTES
from sandman import names, wire
from sandman.handles import STREAMS, Gap
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daemon.exchange import Exchange
    from daemon.outputs import OutputLog
    from daemon.process import Cursors, Process
    from daemon.uploads import Upload
    from sandman.errors import SandmanError

_LARGE_BYTES = 8 * 1024
"""From here on a call of its own is cheaper than a copy."""
_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR
_KINDS = {"stdout": wire.STDOUT, "stderr": wire.STDERR}


class Reply:
    """A caller of a command, as `attach.Caller` or as `follow.Follower` has it.

    With frames the output is read back from the command's logs by cursor: by the caller who started
    it at once after each read. What the logs no longer hold is told by a GAP frame. While the request's body still arrives nothing is
    sent: few HTTP clients read before they have written all. Then the logs may have lost a middle.
    """

    def __init__(
        self,
        exchange: Exchange,
        upload: Upload | None,
        *,
        frames: bool,
        cursors: Cursors | None = None,
    ) -> None:
        self.frames = frames
        self.cursors = dict.fromkeys(STREAMS, 0) if cursors is None else cursors
        self.is_live = False
        """Frames are being sent, so an error, too, must be one."""
        self._exchange = exchange
        self._upload = upload
        self._process: Process | None = None
        self._boot_id = ""
        self._truncated = dict.fromkeys(_KINDS, False)
        self._owns = False
        """This thread moves the command's bytes, so it may look into the logs themselves."""
        self._out = bytearray()
        self._last = time.monotonic()
        self._until = math.inf

    @property
    def pace(self) -> Cursors | None:
        """Who wants the result alone does not hold the command up."""
        return self.cursors if self.frames else None

    @property
    def scratch(self) -> memoryview:
        """The connection's buffer for what is on its way."""
        return self._exchange.scratch.view()

    def attach(self, process: Process, boot_id: str) -> None:
        """The command runs: pass on what input there is."""
        self._owns = True
        self.join(process, boot_id)
        if self._upload is not None:
            self._upload.feed(process)
        elif process.stdin is not None and not process.stdin.is_open:
            process.stdin.end()

    def join(self, process: Process, boot_id: str) -> None:
        """From now on this is about that command."""
        self._process = process
        self._boot_id = boot_id
        self._exchange.sock.setblocking(False)

    def detach(self) -> None:
        """Nothing is polled any more: from now on calls wait."""
        self._exchange.sock.settimeout(config.STALL_TIMEOUT_S)

    # --- as attach.Caller ---

    def fileno(self) -> int:
        """Of the connection."""
        return self._exchange.sock.fileno()

    def events(self) -> int:
        """What to poll the connection for."""
        wanted = select.POLLRDHUP
        if self._is_uploading and self._wants_input:
            wanted |= select.POLLIN
        return wanted | select.POLLOUT if self._out else wanted

    def handle(self, events: int) -> None:
        """Something came up on the connection."""
        if self._is_uploading and self._process is not None and self._upload is not None:
            # A caller that has closed its side may have left bytes to read; the end comes after.
            self._upload.receive(self._process)
        elif events & _GONE:
            raise CallerGoneError("closed by the caller")
        self.take()

    def accepts(self) -> bool:
        """Whether there is room for more output; in a log there always is.

        Not before all that a live log holds was taken: one more read could push it out.
        """
        return not self.is_live or (len(self._out) < ROOM_BYTES and not self._is_behind)

    def take(self) -> None:
        """Send what is new in the logs."""
        if not self.frames or self._is_uploading:
            return
        self._go_live()
        self._move()
        if not self._out and time.monotonic() - self._last >= wire.KEEPALIVE_S:
            self._put(wire.KEEPALIVE)
            self._flush()

    def next_at(self) -> float:
        """When the next sign of life is due."""
        return self._last + wire.KEEPALIVE_S if self.is_live and not self._out else math.inf

    # --- the end ---

    def finish(self, result: wire.ExecResult) -> None:
        """Answer; waits for a slow reader, FINISH_S at most."""
        self._until = time.monotonic() + config.FINISH_S
        for _ in self._exchange.body():  # input that the command did not want
            self._check_time()
        if not self.frames:
            body = dump(result.to_json())
            self._exchange.respond(Response(200, body, names.MEDIA_JSON), self._until)
            return
        self._go_live()
        self._send_all()
        while self._is_behind:
            self._pull()
            self._send_all()
        result = result._replace(
            stdout_truncated=self._truncated["stdout"], stderr_truncated=self._truncated["stderr"]
        )
        self._end(wire.EXIT, result.to_json(streams=False))

    def _check_time(self) -> None:
        if time.monotonic() > self._until:
            raise CallerGoneError("the caller takes too long")

    def fail(self, error: SandmanError) -> None:
        """End a live answer with an error."""
        self.detach()
        self._end(wire.ERROR, error.problem())

    def _end(self, kind: int, document: Mapping[str, object]) -> None:
        self._put(kind, dump(document))
        self._out += http1.LAST_CHUNK
        self._send_all()
        self._exchange.end()

    # --- how it looks on the connection ---

    def _begin(self) -> bytes:
        return self._exchange.begin_bytes(200, [("Content-Type", names.MEDIA_FRAMES)], None)

    def _frame(self, kind: int, payload: bytes | memoryview) -> list[bytes | memoryview]:
        return http1.chunk_parts(wire.HEADER.pack(kind, len(payload)), payload)

    def _started(self, process: Process) -> dict[str, object]:
        return {"exec_id": process.exec_id, "boot_id": self._boot_id}

    # --- parts ---

    @property
    def _is_uploading(self) -> bool:
        return self._upload is not None and not self._upload.is_done

    @property
    def _is_behind(self) -> bool:
        """Whether the logs hold anything that was not taken from them."""
        return any(self.cursors[name] < log.total for name, log in self._logs())

    @property
    def _wants_input(self) -> bool:
        stdin = self._process.stdin if self._process is not None else None
        return stdin is None or stdin.fd is None or stdin.size < ROOM_BYTES

    def _go_live(self) -> None:
        if self.is_live:
            return
        self.is_live = True
        self._out += self._begin()
        if self._process is not None and self._process.pid:
            self._put(wire.STARTED, dump(self._started(self._process)))

    def _logs(self) -> list[tuple[str, OutputLog]]:
        streams = self._process.streams if self._process is not None else {}
        return [(name, stream.log) for name, stream in streams.items()]

    def _pull(self) -> None:
        """Move from the logs to the buffer while there is room."""
        for name, log in self._logs():
            while self.cursors[name] < log.total and len(self._out) < ROOM_BYTES:
                self._pull_piece(name, log)

    def _move(self) -> None:
        """Move from the logs to the caller, until nothing is left or the connection takes no more.

        Then the connection tells when to go on; with an empty buffer nothing would.
        """
        self._pull()
        self._flush()
        while self._is_behind and not self._out:
            self._pull()
            self._flush()

    def _pull_piece(self, name: str, log: OutputLog) -> None:
        self._check_time()
        start = self.cursors[name]
        if self._owns:
            data, cursor, skipped = log.read(start, config.CHUNK_BYTES)
        else:
            copied, cursor, skipped = log.copy(start, config.CHUNK_BYTES)
            data = memoryview(copied)
        self.cursors[name] = cursor
        if skipped:
            self._truncated[name] = True
            self._put(wire.GAP, dump(Gap(name, start, start + skipped).to_json()))
        with data:
            self._pass_on(_KINDS[name], data)

    def _pass_on(self, kind: int, data: memoryview) -> None:
        """Send from where it lies when it is much and nothing waits before it."""
        if self._out or len(data) < _LARGE_BYTES:
            if data:
                self._put(kind, data)
            return
        parts = self._frame(kind, data)
        try:
            sent = self._exchange.sock.sendmsg(parts)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise CallerGoneError(str(error)) from None
        self._last = time.monotonic()
        for part in parts:
            self._out += part[sent:]
            sent = max(0, sent - len(part))

    def _put(self, kind: int, payload: bytes | memoryview = b"") -> None:
        for part in self._frame(kind, payload):
            self._out += part
        self._last = time.monotonic()

    def _flush(self) -> None:
        if not self._out:
            return
        try:
            sent = self._exchange.sock.send(self._out)
        except BlockingIOError:
            return
        except OSError as error:
            raise CallerGoneError(str(error)) from None
        del self._out[:sent]

    def _send_all(self) -> None:
        data, self._out = self._out, bytearray()
        self._exchange.send(data, self._until)
