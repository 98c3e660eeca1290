"""A reader that is slower than its command: nothing is lost, nothing spins, nothing hangs."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from daemon import config
from daemon.attach import DRAIN_S, Attachment
from daemon.exchange import Exchange
from daemon.http1 import Head
from daemon.init import Ended
from daemon.outputs import OutputLog
from daemon.process import Process
from daemon.replies import Reply
from daemon.streams import Stream
from sandman import wire
from tests.unit.daemon.harness import chunks, decode, joined, read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK = config.CHUNK_BYTES
F_SETPIPE_SZ = 1031


@pytest.fixture
def process() -> Iterator[Process]:
    """A command whose pipes the test holds the other ends of: `writers`."""
    process = Process("x", "tag")
    process.writers = {}  # type: ignore[attr-defined]
    for name in ("stdout", "stderr"):
        reader, writer = os.pipe()
        fcntl.fcntl(writer, F_SETPIPE_SZ, 1024 * 1024)
        process.streams[name] = Stream(reader, 2 * CHUNK)
        process.writers[name] = writer  # type: ignore[attr-defined]
    yield process
    process.close()
    for writer in process.writers.values():  # type: ignore[attr-defined]
        os.close(writer)


def write(process: Process, name: str, size: int) -> None:
    """As the command would."""
    assert os.write(process.writers[name], bytes(size)) == size  # type: ignore[attr-defined]


def end(process: Process) -> None:
    """As the reaper would tell."""
    process.on_end(Ended(0, resource.getrusage(resource.RUSAGE_SELF)))


class Reader:
    """A caller that counts, and has room only when the test says so."""

    pace = None

    def __init__(self, process: Process) -> None:
        self.process = process
        self.has_room = True
        self.wake = os.eventfd(0)
        self.cursors = dict.fromkeys(process.streams, 0)
        self.skipped = self.taken = 0

    def fileno(self) -> int:
        return self.wake

    def events(self) -> int:
        return select.POLLIN

    def handle(self, _events: int) -> None:
        os.eventfd_read(self.wake)
        self.has_room = True

    def accepts(self) -> bool:
        logs = ((self.cursors[n], s.log.total) for n, s in self.process.streams.items())
        return self.has_room and all(cursor == total for cursor, total in logs)

    def take(self) -> None:
        self.taken += 1
        if not self.has_room:
            return
        for name, stream in self.process.streams.items():
            while self.cursors[name] < stream.log.total:
                piece = stream.log.read(self.cursors[name], CHUNK)
                self.cursors[name] = piece.cursor
                self.skipped += piece.skipped
                piece.data.release()

    def next_at(self) -> float:
        return float("inf")


def attend(process: Process, reader: Reader) -> threading.Thread:
    """The command's and the reader's conversation, in a thread."""
    attachment = Attachment(process, reader, pytest.fail, None, memoryview(bytearray(CHUNK)))
    thread = threading.Thread(target=attachment.run, args=(reader.take,), daemon=True)
    thread.start()
    return thread


def test_what_the_logs_hold_at_the_end_is_sent(process: Process) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reply = Reply(
            Exchange(ours, Head("POST", "/", "", {}, 0, keep_alive=True)), None, frames=True
        )
        reply.attach(process, "boot")
        out, err = (process.streams[name].log for name in ("stdout", "stderr"))
        while reply.accepts():
            out.append(bytes(CHUNK))
            reply.take()
        err.append(b"e" * CHUNK)
        reply.take()
        received: list[bytes] = []
        thread = threading.Thread(target=lambda: received.append(read_all(theirs)))
        thread.start()
        reply.detach()
        reply.finish(wire.ExecResult(exit_code=0))
        ours.shutdown(socket.SHUT_WR)
        thread.join(5)
    frames = decode(b"".join(chunks(received[0].partition(b"\r\n\r\n")[2])))
    assert len(joined(frames, wire.STDERR)) == CHUNK
    assert len(joined(frames, wire.STDOUT)) == out.total


def test_a_log_that_was_not_taken_accepts_no_more(process: Process) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reply = Reply(
            Exchange(ours, Head("POST", "/", "", {}, 0, keep_alive=True)), None, frames=True
        )
        reply.attach(process, "boot")
        reply.take()
        assert reply.accepts()
        process.streams["stdout"].log.append(b"x")
        assert not reply.accepts()
        reply.take()
        assert reply.accepts()


class FastSocket:
    """Takes whatever comes."""

    def setblocking(self, _flag: object) -> None:
        pass

    def sendmsg(self, parts: list[bytes]) -> int:
        return sum(map(len, parts))

    def send(self, data: bytearray) -> int:
        return len(data)


def test_a_full_log_goes_out_at_once_to_a_fast_reader(process: Process) -> None:
    # Nothing would wake the daemon for the rest: an empty buffer needs no room on the connection.
    head = Head("POST", "/", "", {}, 0, keep_alive=True)
    reply = Reply(Exchange(FastSocket(), head), None, frames=True)  # type: ignore[arg-type]
    reply.attach(process, "boot")
    process.streams["stdout"].log = OutputLog(40 * CHUNK)
    for _ in range(40 * 64):
        process.streams["stdout"].log.append(bytes(CHUNK // 64))
    process.streams["stderr"].log.append(b"x")
    reply.take()
    assert reply.accepts()


def test_the_leaders_last_words_wait_for_room(process: Process) -> None:
    reader = Reader(process)
    reader.has_room = False
    for name in process.streams:
        process.streams[name].log.append(bytes(2 * CHUNK))
        write(process, name, 3 * CHUNK)
    end(process)
    thread = attend(process, reader)
    time.sleep(2 * DRAIN_S)
    os.eventfd_write(reader.wake, 1)
    thread.join(5)
    assert not thread.is_alive()
    reader.take()
    assert reader.cursors == {"stdout": 5 * CHUNK, "stderr": 5 * CHUNK}
    assert reader.skipped == 0


def test_to_wait_for_room_costs_nothing(process: Process) -> None:
    reader = Reader(process)
    reader.has_room = False
    write(process, "stdout", 3 * CHUNK)
    end(process)
    thread = attend(process, reader)
    time.sleep(5 * DRAIN_S)
    assert reader.taken < 10
    os.eventfd_write(reader.wake, 1)
    thread.join(5)
    assert not thread.is_alive()


def test_owed_bytes_that_another_has_read_are_not_waited_for(process: Process) -> None:
    reader = Reader(process)
    write(process, "stdout", 4 * CHUNK)
    thief = os.dup(process.streams["stdout"].fd or 0)

    def steal() -> None:
        Reader.take(reader)
        if process.streams["stdout"].owed:
            os.read(thief, 4 * CHUNK)

    reader.take = steal  # type: ignore[method-assign]
    end(process)
    thread = attend(process, reader)
    thread.join(5)
    os.close(thief)
    assert not thread.is_alive()


def test_a_reader_that_takes_nothing_of_the_last_output_is_given_up(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.config.FINISH_S", 0.1)
    reader = Reader(process)
    reader.pace = reader.cursors  # type: ignore[assignment]
    reader.has_room = False
    thread = attend(process, reader)
    write(process, "stdout", 100_000)
    end(process)
    thread.join(10)
    assert not thread.is_alive()
    # It is in the log for who asks again.
    assert process.streams["stdout"].log.total == 100_000
