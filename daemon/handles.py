"""`/v1/processes`: commands that are started, and looked after in calls of their own."""

from __future__ import annotations

import functools
import signal
import threading
import time

from daemon import queries, tree
from daemon.documents import dump
from daemon.exchange import Response
from daemon.follow import follow, wait_settled
from daemon.process import ROOM_BYTES
from daemon.replies import Reply
from daemon.stop import end_survivors, send
from daemon.uploads import read_spec
from sandman import names, wire
from sandman.errors import BadRequestError, ConflictError
from sandman.handles import ATTACHED_GRACE_S, MAX_STDIN_BYTES, MAX_WAIT_S, STREAMS
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from daemon.process import Process
    from daemon.processes import Processes
    from daemon.runner import Runner

_STDIN_WAIT_S = 10.0
"""For a command that does not read; then the caller is told how much was taken and may ask again."""
_MAX_ORDER_BYTES = 4096
_SIGNALS = {s.name: int(s) for s in signal.Signals if not s.name.startswith("SIGRT")}
"""Not the real-time ones: which number is the first is the C library's own matter, and a command's may be another."""


class Handles:
    """The handlers of `processes`."""

    def __init__(self, processes: Processes, runner: Runner) -> None:
        self._processes = processes
        self._runner = runner

    def start(self, exchange: Exchange) -> None:
        """Start a command, or find the one that was started by this very call before."""
        spec = read_spec(exchange)
        if spec.attached_grace_s == 0 and not spec.detached:
            text = "attached_grace_s must be more than 0 here: nobody reads the command yet"
            raise BadRequestError(text, field="attached_grace_s")
        process, is_new = self._runner.claim(spec, ATTACHED_GRACE_S)
        if is_new:
            process.is_kept = True
            if self._runner.start(process, spec):
                self._runner.keep(process, spec.timeout_s)
        process.begun.wait()
        self._tell(exchange, process)

    def list(self, exchange: Exchange) -> None:
        """All that are remembered, without their output."""
        found = [_info(process, streams=False) for process in self._processes.all()]
        exchange.respond(Response(200, dump({"processes": found}), names.MEDIA_JSON))

    def get(self, exchange: Exchange) -> None:
        """State and result, at once or when it has ended."""
        process = self._find(exchange)
        wait_s = queries.seconds(exchange.query, "wait_s", MAX_WAIT_S)
        if wait_s:
            wait_settled(process, exchange, wait_s)
        self._tell(exchange, process)

    def output(self, exchange: Exchange) -> None:
        """Everything from these offsets on, as it comes."""
        process = self._find(exchange)
        cursors = {name: queries.size(exchange.query, name) or 0 for name in STREAMS}
        reply = Reply(exchange, None, frames=True, cursors=cursors)
        follow(process, reply, self._processes.boot_id)

    def stdin(self, exchange: Exchange) -> None:
        """Add to the input, each byte once, and close it when asked to."""
        process = self._find(exchange)
        wants_end = queries.flag(exchange.query, "close")
        offset = queries.size(exchange.query, "offset")
        data = exchange.read_body(MAX_STDIN_BYTES)
        process.begun.wait()
        if wants_end and process.is_terminal:
            raise ConflictError("a terminal has no end of input: type Ctrl-D", field="close")
        left = _feed(process, data, offset)
        if wants_end and not left and process.stdin is not None:
            process.stdin.end()
            process.nudge()
        self._tell(exchange, process)

    def terminal(self, exchange: Exchange) -> None:
        """Everything from an offset on, and what is typed, over a WebSocket."""
        from daemon.conversation import converse  # noqa: PLC0415 - few commands have a terminal

        process = self._find(exchange)
        process.begun.wait()
        converse(process, exchange, self._processes.boot_id)

    def resize(self, exchange: Exchange) -> None:
        """Give its terminal another size."""
        from sandman.terminal import parse_size  # noqa: PLC0415

        process = self._find(exchange)
        rows, cols = parse_size(wire.load_object(exchange.read_body(_MAX_ORDER_BYTES)))
        process.begun.wait()
        if not process.is_terminal:
            raise ConflictError("it has no terminal: start it with one", field="terminal")
        if process.terminal is None or not process.terminal.resize(rows, cols):
            raise ConflictError(f"command {process.exec_id} has ended")
        exchange.respond(Response(204))

    def signal(self, exchange: Exchange) -> None:
        """Signal the leader, or all of the tree."""
        process = self._find(exchange)
        reader = wire.Fields(wire.load_object(exchange.read_body(_MAX_ORDER_BYTES)))
        number = _signal_number(reader)
        whole = reader.flag("tree")
        reader.finish()
        process.begun.wait()
        self._processes.signal(process, number)
        if whole:
            for pid in self._members(process) - {process.pid}:
                send(pid, number)
        exchange.respond(Response(204))

    def kill(self, exchange: Exchange) -> None:
        """Have the whole tree ended. What is not known does not run either."""
        process = self._processes.get(_exec_id(exchange))
        if process is not None:
            process.stop_asked = True
            process.nudge()
            if process.is_settled and process.pid and self._members(process):
                others = functools.partial(self._processes.others, process)
                threading.Thread(target=end_survivors, args=(process, others), daemon=True).start()
        exchange.respond(Response(204))

    def _members(self, process: Process) -> set[int]:
        return tree.members(tree.snapshot() or {}, process.life, self._processes.others(process))

    def _find(self, exchange: Exchange) -> Process:
        return self._processes.find(_exec_id(exchange))

    def _tell(self, exchange: Exchange, process: Process) -> None:
        if process.failure is not None:
            raise process.failure
        exchange.respond(Response(200, dump(_info(process)), names.MEDIA_JSON))


def _exec_id(exchange: Exchange) -> str:
    return exchange.head.path.split("/")[3]


def _info(process: Process, *, streams: bool = True) -> dict[str, object]:
    info = process.info
    if process.is_settled:
        info = info._replace(result=process.full_result if streams else process.result)
    return info.to_json(streams=streams)


def _feed(process: Process, data: bytes, offset: int | None) -> int:
    """Give these bytes to the command; how many of them it did not take in time."""
    stdin = process.stdin
    if stdin is None or not stdin.is_open:
        raise ConflictError("its stdin is not open: start it with stdin_open", field="stdin_open")
    taken = stdin.taken
    start = taken if offset is None else offset
    if start > taken:
        raise ConflictError(
            f"its stdin has {taken} bytes so far: there is no offset {start}",
            field="offset",
            facts={"stdin_bytes": taken},
        )
    data = data[taken - start :]
    if data and stdin.is_ended:
        raise ConflictError("its stdin is closed, or it reads no more", field="stdin")
    until = time.monotonic() + _STDIN_WAIT_S
    while data and stdin.wait_room(ROOM_BYTES, until - time.monotonic()) and not stdin.is_ended:
        stdin.feed(data[:ROOM_BYTES])
        data = data[ROOM_BYTES:]
        process.nudge()
    return len(data)


def _signal_number(reader: wire.Fields) -> int:
    given = reader.text_or_int("signal")
    if isinstance(given, str):
        name = given.upper()
        number = _SIGNALS.get(name if name.startswith("SIG") else f"SIG{name}", 0)
    else:
        number = given or 0
    if not 0 < number < signal.NSIG:
        raise reader.fail(
            "signal", "a signal's name, as TERM, or its number (real-time: its number)"
        )
    return number
