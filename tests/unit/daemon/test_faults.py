"""Faults of the daemon itself, and of what it stands on: they stay small."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from daemon import init, listener, outcome, processes, server, streams, tree
from daemon.drain import Drain
from daemon.exchange import CallerGoneError, Exchange
from daemon.http1 import Head
from daemon.init import Ended, Reaper
from daemon.process import Process
from daemon.processes import Processes
from daemon.spawn import Descriptors, DirectoryError, Program, spawn
from daemon.state import Sandbox
from daemon.streams import Stdin, Stream
from daemon.usage import Meter
from sandman import wire
from sandman.errors import (
    BadRequestError,
    NotFoundError,
    OutcomeUnknownError,
    UnreachableError,
)
from tests.unit.daemon.conftest import IN_ITS_OWN_NAMESPACE
from tests.unit.daemon.harness import Daemon, exec_request, joined, problem, wait_until
from tests.unit.daemon.shells import Shell
from tests.unit.daemon.test_exec_background import zombies_of

if TYPE_CHECKING:
    from collections.abc import Callable


def broken(tmp_path: Path, patch: str) -> tuple[str, ...]:
    """A program that runs a daemon with a fault built in."""
    script = tmp_path / "broken.py"
    script.write_text(f"import sys\n{patch}\nfrom daemon.__main__ import main\nsys.exit(main())\n")
    return (sys.executable, str(script))


FAULTY_LOOP = """
from daemon import attach
attach.Attachment._is_over = lambda self, now: [][len(self._process.streams["stdout"].log.kept)]
"""


def test_a_fault_of_ours_is_internal_logged_and_ends_the_command(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    fresh = start(program=broken(tmp_path, FAULTY_LOOP))
    found = problem(fresh.post({"argv": ["sleep", "60"]}))
    assert (found["status"], found["reason"], found["cause"]) == (500, "internal", "infrastructure")
    assert wait_until(lambda: any("IndexError" in line for line in fresh.lines))
    assert fresh.client.get("/v1/info").json()["running"] == 0


@pytest.mark.parametrize("fault", ["OSError(24, 'Too many open files')", "MemoryError()"])
def test_want_of_room_is_the_sandboxs_and_nobody_knows_what_was_done(
    start: Callable[..., Daemon], tmp_path: Path, fault: str
) -> None:
    patch = (
        "from daemon import handshake\n"
        f"def fail(self, exchange): raise {fault}\n"
        "handshake.Handshake.info = fail"
    )
    fresh = start(program=broken(tmp_path, patch))
    found = problem(fresh.client.get("/v1/info"))
    assert (found["reason"], found["cause"]) == ("outcome_unknown", "sandbox")


FAULTY_LATER = """
from daemon import attach
step = attach.Attachment._keep_time
def keep_time(self, now):
    step(self, now)
    if self._process.streams["stdout"].log.total:
        raise RuntimeError("boom")
attach.Attachment._keep_time = keep_time
"""


def test_a_fault_within_a_live_answer_is_an_error_frame(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    fresh = start(program=broken(tmp_path, FAULTY_LATER))
    frames = fresh.frames(shell="echo x; sleep 60")
    assert joined(frames, wire.STDOUT) == b"x\n"
    assert frames[-1].type == wire.ERROR
    assert json.loads(frames[-1].payload)["reason"] == "internal"


def test_a_name_that_is_forgotten_is_refused(start: Callable[..., Daemon], tmp_path: Path) -> None:
    fresh = start(program=broken(tmp_path, "from daemon import processes\nprocesses.MAX_ENDED = 1"))
    counts = {"shell": f"echo >> {tmp_path}/runs", "exec_id": "once"}
    assert fresh.exec(**counts).ok
    assert fresh.exec(**counts).ok  # the same result again
    assert fresh.exec(argv=["true"]).ok
    found = fresh.refuse(**counts)
    assert (found["status"], found["reason"]) == (502, "outcome_unknown")
    told = problem(fresh.client.get("/v1/processes/once"))
    assert told["reason"] == "outcome_unknown"
    assert problem(fresh.client.get("/v1/processes/never"))["reason"] == "not_found"
    assert (tmp_path / "runs").read_text() == "\n"


def test_frames_need_http_1_1(daemon: Daemon) -> None:
    request = exec_request({"argv": ["true"]}, "Accept: application/vnd.sandman.frames")
    answer = daemon.raw(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
    assert b"HTTP/1.1 400" in answer


class Place:
    """A connection that is idle or busy."""

    def __init__(self, letter: str) -> None:
        self.letter = letter
        self.is_idle = letter.islower()

    def close_idle(self) -> None:
        self.is_idle = False


class TestServer:
    def test_ipv4_alone_where_there_is_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = socket.socket

        def make(family: int = socket.AF_INET, *rest: int) -> socket.socket:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "no")
            return real(family, *rest)

        monkeypatch.setattr(listener.socket, "socket", make)
        with listener.listen(0) as sock:
            assert sock.family == socket.AF_INET

    def test_out_of_descriptors_it_waits(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        naps: list[float] = []

        class Sock:
            def accept(self) -> object:
                if naps:
                    raise SystemExit
                raise OSError(errno.EMFILE, "too many")

        monkeypatch.setattr(server.time, "sleep", naps.append)
        with pytest.raises(SystemExit):
            server.Server(Sock(), print)._run()  # type: ignore[arg-type]
        assert naps
        assert "too many" in capfd.readouterr().err

    def test_out_of_memory_it_goes_on_accepting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        naps: list[float] = []
        ours, theirs = socket.socketpair()
        answers: list[BaseException | None] = [SystemExit(), None, MemoryError()]

        class Sock:
            def accept(self) -> object:
                answer = answers.pop()
                if answer is not None:
                    raise answer
                return ours, None

        def refuse(_sock: socket.socket) -> bool:
            raise MemoryError

        monkeypatch.setattr(server.time, "sleep", naps.append)
        monkeypatch.setattr(server, "comes_from_within", refuse)
        with pytest.raises(SystemExit):
            server.Server(Sock(), print)._run()  # type: ignore[arg-type]
        assert naps
        assert theirs.recv(1) == b""
        theirs.close()

    def test_without_a_thread_the_caller_is_turned_away(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def refuse(_self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        ours, theirs = socket.socketpair()
        one = server.Server(ours, print)
        one._admit(ours)
        assert theirs.recv(100).startswith(b"HTTP/1.1 503")
        assert not one._connections
        assert "no thread" in capfd.readouterr().err
        ours, gone = socket.socketpair()
        gone.close()
        one._admit(ours)
        theirs.close()

    def test_who_gives_way_to_whom(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("daemon.config.MAX_CONNECTIONS", 4)
        monkeypatch.setattr("daemon.config.MAX_WITHIN", 2)

        def left(connections: str, newcomer: str) -> str:
            """Each a letter: within or outside, capital when busy; who is there afterwards."""
            one = server.Server(socket.socket(), print)
            with one._sock:
                for letter in connections:
                    one._connections[Place(letter)] = letter in "wW"  # type: ignore[index]
                has_room = one._make_room(is_within=newcomer == "w")
                letters = "".join(c.letter for c in one._connections)  # type: ignore[attr-defined]
                return letters + (newcomer if has_room else "")

        assert left("WW", "w") == "WW"  # a flood from within stops here
        assert left("WwO", "w") == "WOw"
        assert left("WWo", "w") == "WWo"  # and nobody from outside gives way to it
        assert left("WWO", "o") == "WWOo"  # who comes from outside finds room
        assert left("wWoO", "o") == "WoOo"
        assert left("WOoO", "o") == "WOOo"
        assert left("OOoO", "w") == "OOoO"
        assert left("WWOO", "o") == "WWOO"

    @pytest.mark.parametrize(
        ("peer", "own", "within"),
        [
            ("127.0.0.1", "127.0.0.1", True),
            ("::ffff:127.0.0.2", "::ffff:10.0.0.5", True),
            ("::1", "::1", True),
            ("::ffff:10.0.0.5", "::ffff:10.0.0.5", True),
            ("::ffff:10.0.0.6", "::ffff:10.0.0.5", False),
            ("fd00::2", "fd00::1", False),
            (None, "::1", True),
        ],
    )
    def test_who_comes_from_within(self, peer: str | None, own: str, within: bool) -> None:
        def name() -> tuple[str, int]:
            if peer is None:
                raise OSError
            return peer, 1

        sock = SimpleNamespace(getpeername=name, getsockname=lambda: (own, 2))
        assert server.comes_from_within(sock) is within  # type: ignore[arg-type]

    def test_a_socket_that_takes_no_options(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            server._tune(ours)

    def test_a_connection_that_ended_by_itself_is_closed_idle(self) -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        ours.close()
        server.Connection(ours, print).close_idle()


def test_a_reader_that_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.config.STALL_TIMEOUT_S", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        exchange = Exchange(ours, Head("GET", "/", "", {}, 0, keep_alive=True))
        ours.setblocking(False)
        with pytest.raises(CallerGoneError):
            exchange.send(bytes(10_000_000))
        with pytest.raises(CallerGoneError):
            exchange.wait_writable()


def test_a_retry_after_travels_as_a_header(daemon: Daemon) -> None:
    from daemon import routes  # noqa: PLC0415

    ours, theirs = socket.socketpair()
    with ours, theirs:
        exchange = Exchange(ours, Head("GET", "/", "", {}, 0, keep_alive=True))
        routes._refuse(exchange, BadRequestError("x", retry_after=2.5))
        assert b"Retry-After: 2\r\n" in theirs.recv(4096)
        routes._refuse(exchange, BadRequestError("again"))
        assert exchange.is_answered
    assert daemon.pid


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


def test_the_reaper_without_children(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise ChildProcessError

    monkeypatch.setattr(os, "waitid", refuse)
    assert not Reaper().reap_one()


def test_the_reaper_leaves_alone_what_was_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    reaper = Reaper()
    monkeypatch.setattr(os, "waitid", lambda *_: None)
    assert not reaper.reap_one()

    class Peek:
        si_pid = 2**22

    monkeypatch.setattr(os, "waitid", lambda *_: Peek)
    assert reaper.reap_one()


def test_a_start_that_somebody_stopped_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        sent.append((pid, number))
        raise ProcessLookupError

    monkeypatch.setattr(init.os, "kill", kill)
    reaper = Reaper()
    for now, pids in ((1.0, [7]), (1.5, [7, 8]), (2.0, [7]), (11.0, [7, 8]), (12.0, [])):
        monkeypatch.setattr(init.time, "monotonic", lambda now=now: now)
        monkeypatch.setattr(init, "_starts", lambda pids=pids: pids)
        reaper.notice()
    assert sent == [(7, signal.SIGCONT), (7, signal.SIGKILL)]
    assert reaper._begun == {}


def test_the_reaper_outlives_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[type[BaseException]] = [SystemExit, RuntimeError, MemoryError]
    naps: list[float] = []

    def fail(*_: int) -> None:
        raise answers.pop()

    monkeypatch.setattr(os, "waitid", fail)
    monkeypatch.setattr(init.time, "sleep", naps.append)
    with pytest.raises(SystemExit):
        Reaper()._run()
    assert len(naps) == 2


def test_what_is_started_but_not_yet_known_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, False])
    monkeypatch.setattr(init, "_is_starting", lambda _pid: next(answers))
    ends: list[init.Ended] = []
    reaper = Reaper()
    pid = os.posix_spawn("/bin/sh", ("sh", "-c", "exit 7"), {})
    with reaper.lock:
        reaper.watch(pid, ends.append)
    peek = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(os, "waitid", lambda *_: peek)
    assert reaper.reap_one()
    assert ends == []
    assert reaper.reap_one()
    assert [os.waitstatus_to_exitcode(end.status) for end in ends] == [7]
    reaper.reap(pid)
    assert len(ends) == 1


def test_27_the_end_of_a_child_without_an_owner_is_seen_at_once(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    # Nobody polls a session's shell by pidfd; the reaper must not leave it to its seldom look.
    seldom = "from daemon import init\ninit._IDLE_S = 3600.0"
    fresh = start(program=broken(tmp_path, seldom))
    shell = Shell(fresh, shell="bash")
    assert fresh.sh("exit 3").exit_code == 3
    result = shell.run("exit 4")
    assert (result.state, result.exit_code) == ("ended", 4)
    assert fresh.sh("exit 5").exit_code == 5


WITHOUT_PIDFD = """
import os
def refuse(*_):
    raise OSError(38, "Function not implemented")
os.pidfd_open = refuse
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a pid namespace")
def test_28_where_the_kernel_has_no_pidfd_one_thread_reaps_all(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    old = start(*IN_ITS_OWN_NAMESPACE, program=broken(tmp_path, WITHOUT_PIDFD))
    for code in range(20):
        assert old.sh(f"(true &) ; exit {code}").exit_code == code
    assert wait_until(lambda: not zombies_of(old.pid))


def test_ignored_signals_are_given_up() -> None:
    from daemon import signals  # noqa: PLC0415

    old = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    signals.reset_signals()
    assert signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL
    signal.signal(signal.SIGUSR2, old)


def test_a_process_that_vanishes_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_fd: int, _size: int) -> bytes:
        raise ProcessLookupError

    monkeypatch.setattr(os, "read", fail)
    assert tree._read("/proc/self/stat") == b""
    assert outcome.difference(None, None) is None


SEIZE = """
import ctypes, sys
assert ctypes.CDLL(None, use_errno=True).ptrace(0x4206, int(sys.argv[1]), 0, 0) == 0
print("traced", flush=True)
input()
"""


def test_a_traced_leader_that_has_ended_keeps_nobody_busy() -> None:
    # Its pidfd is readable, and it cannot be reaped before its tracer lets go of it.
    reaper, process = Reaper(), Process("id", "tag")
    with reaper.lock:
        process.pid = os.posix_spawnp("sleep", ["sleep", "60"], os.environ)
        reaper.watch(process.pid, process.on_end, is_owned=True)
    assert process.wait_by(reaper.reap)
    pidfd = process.watched
    assert pidfd is not None
    with subprocess.Popen(
        [sys.executable, "-c", SEIZE, str(process.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == b"traced\n"
        os.kill(process.pid, signal.SIGKILL)
        assert select.select([pidfd], [], [], 10)[0]
        process.reap()
        assert (process.end, process.watched) == (None, None)
        assert reaper._unowned == {process.pid}  # which it waits for, and tells of
        tracer.communicate(b"\n")
    reaper.reap(process.pid)
    assert process.end is not None
    process.close()
