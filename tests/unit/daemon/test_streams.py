"""Pipes to and from a command, when they fail; what a process object makes of it."""

from __future__ import annotations

import errno
import os
import select
import threading
from pathlib import Path

import pytest

from daemon import processes, streams
from daemon.drain import Drain
from daemon.init import Ended, Reaper
from daemon.process import Process
from daemon.processes import Processes
from daemon.spawn import Descriptors, DirectoryError, Program, spawn
from daemon.state import Sandbox
from daemon.streams import Stdin, Stream
from daemon.usage import Meter
from sandman import wire
from sandman.errors import (
    NotFoundError,
    OutcomeUnknownError,
    UnreachableError,
)
from tests.unit.daemon.harness import wait_until


class TestStreams:
    def test_a_stdin_that_nobody_reads(self) -> None:
        reader, writer = os.pipe()
        stdin = Stdin(writer)
        stdin.feed(bytes(1_000_000))
        assert 0 < stdin.size < 1_000_000
        os.close(reader)
        stdin.flush()
        assert (stdin.fd, stdin.size) == (None, 0)
        stdin.feed(b"x")
        stdin.end()
        assert stdin.size == 0

    def test_a_stream_with_nothing_to_read_owes_nothing(self) -> None:
        reader, writer = os.pipe()
        stream = Stream(reader, 10)
        os.write(writer, b"abc")
        stream.note_end()
        assert stream.owed == 3
        scratch = memoryview(bytearray(100))
        stream.read(scratch)
        stream.read(scratch)
        assert (stream.owed, stream.log.kept) == (0, b"abc")
        os.close(writer)
        stream.read(scratch)
        assert stream.fd is None
        stream.read(scratch)
        stream.note_end()

    def test_a_drain_reads_to_the_end_and_closes(self) -> None:
        drain = Drain()
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        drain.take(reader)
        os.write(writer, b"x" * 1000)
        assert drain.count == 1
        os.close(writer)
        assert wait_until(lambda: drain.count == 0)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(reader)

    def test_a_drain_without_a_thread_tries_again_with_the_next(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def refuse(_self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        drain = Drain()
        pipes = [os.pipe(), os.pipe()]
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            drain.take(pipes[0][0])
        assert "no thread" in capfd.readouterr().err
        drain.take(pipes[1][0])
        for _, writer in pipes:
            os.close(writer)
        assert wait_until(lambda: drain.count == 0)

    def test_a_drain_without_a_watch_leaves_the_pipe_as_it_is(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        drain = Drain()
        reader, writer = os.pipe()
        drain._poll.close()
        drain._poll = select.epoll()
        drain._poll.register(reader, select.EPOLLIN)  # any refusal will do: here that it is there
        drain.take(reader)
        assert "not drained" in capfd.readouterr().err
        os.write(writer, b"x")
        assert os.read(reader, 1) == b"x"
        os.close(reader)
        os.close(writer)

    def test_a_drain_that_is_woken_in_vain(self) -> None:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        Drain()._read(reader)
        os.close(reader)
        os.close(writer)


class TestProcess:
    def make(self) -> Processes:
        return Processes(Sandbox({}), Reaper(), Meter())

    def test_an_end_after_it_was_given_up(self) -> None:
        table = self.make()
        process, _ = table.reserve("a")
        assert process.wall_s >= 0
        assert "a" in repr(process)
        table.finish(process)
        process.on_end(Ended(0, None))  # type: ignore[arg-type]
        process.close()

    def test_only_so_many_ended_ones_are_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processes, "MAX_ENDED", 3)
        table = self.make()
        for number in range(5):
            process, _ = table.reserve(f"n{number}")
            process.pid = number
            table.finish(process)
        others = table.others(Process("x", "tag"))
        assert [life.leader for life in others] == [2, 3, 4]

    def test_a_name_that_is_forgotten_does_not_run_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(processes, "MAX_ENDED", 1)
        table = self.make()
        for name in ("a", None, "b", "c"):
            table.finish(table.reserve(name)[0])
        for name in ("a", "b"):
            with pytest.raises(OutcomeUnknownError):
                table.reserve(name)
            with pytest.raises(OutcomeUnknownError):
                table.find(name)
            assert table.get(name) is None
        assert table.reserve("d")[1]
        with pytest.raises(NotFoundError):
            table.find("e")

    def test_no_descriptor_for_a_command(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_count: int, _flags: int) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        table = self.make()
        with monkeypatch.context() as patched:
            patched.setattr(os, "eventfd", refuse)
            with pytest.raises(UnreachableError) as caught:
                table.reserve("a")
        assert (caught.value.cause, caught.value.retryable) == ("sandbox", True)
        assert table.reserve("a")[1]  # nothing was done

    @pytest.mark.parametrize("made", [None, "file"])
    def test_a_null_device_that_is_none(
        self, made: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "null"
        if made:
            path.write_text("secret")
        monkeypatch.setattr(streams, "NULL", str(path))
        assert streams.open_null() is None
        child: list[int] = []
        process = Process("x", "tag")
        reader = processes._open_stdin(process, wire.ExecSpec(argv=("x",)), child)
        assert process.stdin is not None
        process.stdin.end()
        assert os.read(reader, 1) == b""
        os.close(reader)
        process.close()


def test_a_directory_that_cannot_be_entered() -> None:
    here = Path.cwd()
    program = Program((b"true",), (b"/bin/true",), b"/no/such", {}, None)
    with pytest.raises(DirectoryError) as caught:
        spawn(program, Descriptors(0, 1, 2), Reaper(), print)
    assert isinstance(caught.value.reason, FileNotFoundError)
    assert Path.cwd() == here
