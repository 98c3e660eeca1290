"""The parts that need no daemon: settings, users, trees, counters, the copy, the kernel's calls."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import types
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from daemon import __main__ as command_line
from daemon import (
    config,
    delivery,
    files,
    kernel,
    launch,
    log,
    outcome,
    shells,
    spawn,
    stop,
    tree,
    usage,
    users,
)
from daemon.init import Reaper
from daemon.launch import StartFailedError
from daemon.spawn import DirectoryError, Program, StageError, UserError
from sandman import names, wire
from sandman.errors import (
    BadRequestError,
    InternalError,
    PathDeniedError,
    PathNotFoundError,
    SandmanError,
    UnreachableError,
    UserUnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
from tests.unit.daemon.harness import ROOT, names_in, wait_until

DIGEST = "ab" * 32


def test_settings() -> None:
    found = config.Config.from_env({names.ENV_TOKEN_SHA256: DIGEST.upper()})
    assert (found.token_sha256, found.port) == (DIGEST, names.DAEMON_PORT)
    assert DIGEST not in repr(found)


@pytest.fixture
def accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A passwd and a group file with oddities."""
    (tmp_path / "passwd").write_bytes(
        b"# comment\n\nroot:x:0:0:root:/root:/bin/bash\nann:x:1000:1000:A,,,:/home/ann:\n"
        b"short:x:1\nodd:x:many:1:::\nbig:x:4294967295:1:::\nno\xff:x:7:8::/h\xff:/bin/sh\n"
    )
    (tmp_path / "group").write_text(
        "root:x:0:\nann:x:1000:\ndocker:x:50:bob,ann\nbad:x:y:ann\ndocker2:x:50:ann\n"
    )
    monkeypatch.setattr(users, "PASSWD", str(tmp_path / "passwd"))
    monkeypatch.setattr(users, "GROUP", str(tmp_path / "group"))
    return iter(())


@pytest.mark.usefixtures("accounts")
def test_users() -> None:
    ann = users.User("ann", 1000, 1000, (1000, 50), "/home/ann", "")
    assert users.find("ann") == users.find(1000) == users.find("1000") == ann
    assert users.find("no\udcff").home == "/h\udcff"
    assert users.find("odd" if False else 4242) == users.User("4242", 4242, 0, (0,), "/", "")
    for wanted in ("odd", "big", "nobody", "", 2**32, str(2**32 - 1)):
        with pytest.raises(UserUnsupportedError):
            users.find(wanted)


def test_users_of_an_image_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "PASSWD", "/no/passwd")
    monkeypatch.setattr(users, "GROUP", "/no/group")
    assert users.find("root") == users.find(0) == users.User("root", 0, 0, (0,), "/root", "")


def test_files_of_users_that_are_none_hold_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A command may have put a FIFO there: to open it would wait for ever, beyond any timeout.
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(users, "PASSWD", str(tmp_path / "fifo"))
    monkeypatch.setattr(users, "GROUP", "/dev/zero")
    assert users.find(7).name == "7"


def test_fuzzed_passwd_that_is_a_directory_holds_nobody_and_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(users, "PASSWD", str(tmp_path))
    before = names_in("/proc/self/fd")
    assert users.find(7).name == "7"
    assert len(names_in("/proc/self/fd")) == len(before)


def row(pid: int, parent: int, session: int = 1, born: float = 100.0) -> tree.Row:
    """A process."""
    return tree.Row(pid, parent, session, born)


class TestTree:
    life = tree.Life(10, b"mine", 50.0, None)
    me = os.getpid()

    def find(
        self,
        *rows: tree.Row,
        others: tuple[tree.Life, ...] = (),
        known: dict[int, float] | None = None,
        tags: dict[int, bytes] | None = None,
    ) -> set[int]:
        marks = tags or {}
        return tree.members({r.pid: r for r in rows}, self.life, others, known or {}, marks.get)

    def test_descendants_sessions_and_tags(self) -> None:
        rows = [row(10, self.me, 10), row(11, 10, 10), row(12, 11, 12), row(13, 1, 10)]
        rows += [row(14, 1, 14), row(15, 14, 15), row(16, 1, 12), row(17, 1, 17)]
        assert self.find(*rows, tags={14: b"mine", 17: b"other"}) == {10, 11, 12, 13, 14, 15, 16}

    def test_an_orphan_without_marks_is_ours_when_nobody_else_ran(self) -> None:
        orphan = row(20, self.me, 20)
        assert self.find(orphan) == {20}
        ended = tree.Life(30, b"other", 10.0, 40.0)
        assert self.find(orphan, others=(ended,)) == {20}
        running = tree.Life(30, b"other", 10.0, None)
        assert self.find(orphan, others=(running,)) == set()
        overlapping = tree.Life(30, b"other", 60.0, 110.0)
        assert self.find(orphan, others=(overlapping,)) == set()
        later = tree.Life(30, b"other", 120.0, None)
        assert self.find(orphan, others=(later,)) == {20}

    def test_an_orphan_that_took_its_mark_off_is_spared_for_no_other(self) -> None:
        rows = {20: row(20, self.me, 20), 21: row(21, self.me, 21)}
        running = tree.Life(30, b"other", 10.0, None)

        def find(other: tree.Life) -> set[int]:
            return tree.members(rows, self.life, [other], {}, {20: b"x"}.get, {20}.__contains__)

        assert find(running) == {20}
        assert find(running._replace(tag=b"")) == set()

    def test_what_is_only_just_starting_is_no_orphan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        us = row(self.me, 1, 5)
        assert self.find(us, row(20, self.me, 5)) == set()
        assert self.find(us, row(20, self.me, 20)) == {20}
        monkeypatch.setattr(tree, "_is_starting", {20}.__contains__)
        assert self.find(us, row(20, self.me, 20)) == set()

    def test_an_orphan_from_before_is_not_ours(self) -> None:
        assert self.find(row(20, self.me, 20, born=40.0)) == set()

    def test_an_orphan_in_anothers_session_is_not_ours(self) -> None:
        ended = tree.Life(30, b"other", 10.0, 40.0)
        assert self.find(row(20, self.me, 30), others=(ended,)) == set()
        assert self.find(row(30, self.me, 30), others=(ended,)) == set()

    def test_who_was_known_stays_known(self) -> None:
        rows = (row(20, 1, 20), row(21, 20, 20))
        assert self.find(*rows, known={20: 100.0, 99: 100.0}) == {20, 21}

    def test_who_got_the_number_of_one_that_was_known_is_another(self) -> None:
        assert self.find(row(20, 1, 20), row(21, 20, 20), known={20: 99.0}) == set()

    def test_who_got_the_number_of_an_ended_session_is_another(self) -> None:
        ended = self.life._replace(ended=60.0)
        rows = {20: row(20, 1, 10, born=200.0), 21: row(21, 1, 10, born=55.0)}
        assert tree.members(rows, ended, (), {}, {21: b"mine"}.get) == {21}

    def test_rows_of_odd_names(self) -> None:
        script = "exec > /proc/self/comm; printf 'a) R 1 (b'; kill -STOP $$"
        with subprocess.Popen(["bash", "-c", script], start_new_session=True) as child:
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            assert ") R 1 (" in Path(f"/proc/{child.pid}/stat").read_text()
            found = (tree.snapshot() or {})[child.pid]
            child.kill()
        assert (found.parent, found.session) == (os.getpid(), child.pid)
        assert abs(found.born - tree.now()) < 20

    def test_without_proc(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_path: str) -> list[str]:
            raise FileNotFoundError

        monkeypatch.setattr(os, "listdir", refuse)
        assert tree.snapshot() is None
        kernel.hide_descriptors()

    def test_what_cannot_be_read_has_no_tag(self) -> None:
        assert tree.tag_of(2**22) is None
        assert tree.tag_of(os.getpid()) is None


class Lonely:
    """A process of which /proc says nothing."""

    is_terminal = False

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.end: object | None = None
        self.life = tree.Life(pid, b"x", 0.0, None)


def test_a_tree_is_ended_blindly_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "snapshot", lambda: None)
    argv = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.02; done"]
    with subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        lonely = Lonely(child.pid)
        ending = stop.Stop(lonely, list, 0.0)  # type: ignore[arg-type]
        ending.step(0.0)
        ending.step(1.0)
        assert not ending.is_done
        ending.step(5.0)
        assert child.wait(5) == -9
        lonely.end = object()
        assert wait_until(lambda: ending.step(5.1) or ending.is_done)


def test_what_cannot_be_killed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "snapshot", lambda: {7: row(7, 1, 7)})
    monkeypatch.setattr(stop, "send", lambda _pid, _number: None)
    ending = stop.Stop(Lonely(7), list, 0.0)  # type: ignore[arg-type]
    ending.step(0.0)
    ending.step(5.0)
    assert not ending.is_done
    ending.step(7.1)
    assert ending.is_done
    assert outcome.exit_of(Lonely(7)) == (137, 9)  # type: ignore[arg-type]


def test_counters_of_both_kinds(tmp_path: Path) -> None:
    def read() -> usage.Counters:
        return usage.Meter(str(tmp_path), str(tmp_path / "own")).read()

    assert read() == usage.Counters(None, None)
    for name in ("memory", "cpu"):
        (tmp_path / name / "pod").mkdir(parents=True)
    (tmp_path / "memory/memory.oom_control").write_text("oom_kill_disable 0\noom_kill 3\n")
    (tmp_path / "cpu/cpu.stat").write_text("nr_periods 0\nthrottled_time 2500000000\n")
    assert read() == usage.Counters(3, 2.5)
    # A whole tree is mounted, and the place in it is known.
    (tmp_path / "own").write_text("9:memory:/pod\n2:cpu:/gone\n1:pids:/../..\n0::/\nodd\n")
    (tmp_path / "memory/pod/memory.oom_control").write_text("oom_kill 7\n")
    assert read() == usage.Counters(7, 2.5)
    (tmp_path / "memory.events").write_text("low 0\noom 9\noom_kill 4\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nthrottled_usec 1500000\n")
    meter = usage.Meter(str(tmp_path), "/no/file")
    assert meter.read() == usage.Counters(4, 1.5)
    (tmp_path / "memory.events").write_text("oom_kill 5\n")
    assert meter.read().oom_kills == 5
    assert outcome.difference(1.5, 1.0) == 0.5
    assert outcome.difference(None, 1.0) is None
    assert outcome.is_greater(5, 4) is True
    assert outcome.is_greater(4, 4) is False
    assert outcome.is_greater(4, None) is None


def test_counters_that_vanish(tmp_path: Path) -> None:
    (tmp_path / "memory.events").mkdir()
    (tmp_path / "cpu.stat").mkdir()
    assert usage.Meter(str(tmp_path)).read() == usage.Counters(None, None)


def test_own_peak_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "STATUS", "/no/status")
    assert not usage.Meter().is_over_own_peak(1)
    assert usage.Meter().is_over_own_peak(2**40)


class TestCopy:
    def test_copies_the_parts_and_nothing_else(self, tmp_path: Path) -> None:
        source, target = tmp_path / "root", tmp_path / "volume"
        for name in ("bin/python3", "lib/python/os.pyc", "app/__main__.pyc", "proc/secret"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(name)
        target.mkdir()
        assert delivery.copy(str(source), str(target)) == (3, 44)
        assert names_in(target) == ["app", "bin", "lib"]
        for path in target.rglob("*"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o555
        assert (target / "lib/python/os.pyc").read_text() == "lib/python/os.pyc"

    def test_a_second_run_mends_a_broken_first(self, tmp_path: Path) -> None:
        source, target = tmp_path / "root", tmp_path / "volume"
        (source / "bin").mkdir(parents=True)
        (source / "bin" / "python3").write_text("new")
        (target / "bin").mkdir(parents=True)
        (target / "bin" / "python3").write_text("broken")
        (target / "bin" / "python3.partial").write_text("ne")
        (target / "bin").chmod(0o555)
        assert delivery.copy(str(source), str(target)) == (1, 3)
        assert names_in(target / "bin") == ["python3"]
        assert (target / "bin" / "python3").read_text() == "new"

    def test_the_command(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "root" / "bin").mkdir(parents=True)
        (tmp_path / "root" / "bin" / "python3").write_text("x")
        monkeypatch.setattr(sys, "executable", str(tmp_path / "root" / "bin" / "python3"))
        assert command_line.main(["copy", str(tmp_path / "to")]) == 0
        assert "copied 1 files" in capfd.readouterr().err
        (tmp_path / "file").touch()
        assert command_line.main(["copy", str(tmp_path / "file")]) == 1
        assert "cannot copy" in capfd.readouterr().err


def test_a_broken_log_breaks_nothing() -> None:
    script = "import os; os.close(2); from daemon import log; log.line('x\\ny')"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
    log.line("")


def test_closed_standard_descriptors_are_filled() -> None:
    script = (
        "import os\nfrom daemon import kernel\nfor n in (0, 1, 2): os.close(n)\n"
        "kernel.fill_standard_descriptors()\nfor n in (0, 1, 2): os.fstat(n)\n"
        "a, b = os.pipe()\nassert min(a, b) > 2\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_inherited_descriptors_are_hidden() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    kernel.hide_descriptors()
    assert not os.get_inheritable(reader)
    os.close(reader)
    os.close(writer)


def test_prctl_with_and_without_the_runtimes_module(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    module = types.ModuleType("_sandman")
    module.prctl = lambda option, value: calls.append((option, value))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "_sandman", module)
    kernel.harden()
    assert kernel.adopt_orphans()
    assert calls == [(kernel.PR_SET_DUMPABLE, 0), (kernel.PR_SET_CHILD_SUBREAPER, 1)]

    def refuse(_option: int, _value: int) -> None:
        raise OSError(errno.EINVAL, "no")

    module.prctl = refuse  # type: ignore[attr-defined]
    assert not kernel.prctl(1, 1)
    monkeypatch.setitem(sys.modules, "_sandman", None)
    assert not kernel.prctl(1, 1)


def test_a_peak_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def peak_kib() -> int:
        return usage._own_peak_kib()

    monkeypatch.setattr(kernel, "_clear_refs", None)
    assert kernel.clear_refs() == -1
    large = bytearray(64 * 2**20)
    large[:: os.sysconf("SC_PAGESIZE")] = b"x" * (len(large) // os.sysconf("SC_PAGESIZE"))
    before = peak_kib()
    del large
    kernel.harden()
    # As the start path in C does.
    os.write(kernel.clear_refs(), b"5")
    assert peak_kib() < before - 50 * 1024
    os.close(kernel.clear_refs())


TTY = "tty; echo own > /dev/tty"


@pytest.mark.parametrize("who", [None, "daemon"])
def test_a_terminal_becomes_that_of_the_session(who: str | None) -> None:
    # On whatever Python runs the tests; `test_native` shows the same of the start path in C.
    user = users.find(who) if who is not None else None
    if user is not None and os.geteuid() != 0:
        pytest.skip("needs root to switch users")
    ours, theirs = os.openpty()
    name = os.ttyname(theirs)
    os.chmod(name, 0o666)  # noqa: PTH101
    program = Program((b"sh", b"-c", TTY.encode()), (b"/bin/sh",), b"/", {}, user, terminal=True)
    pid = spawn.spawn(program, spawn.Descriptors(theirs, theirs, theirs), Reaper(), print)
    os.close(theirs)
    assert os.waitpid(pid, 0)[1] == 0
    said = b""
    with open(ours, "rb", buffering=0) as terminal, suppress(OSError):  # noqa: PTH123
        while piece := terminal.read(1000):  # the error says that nobody has it open
            said += piece
    assert said.decode().split() == [name, "own"]


class TestStart:
    """What Python makes of the start path in C, which `posix_spawn` plays here."""

    program = Program((b"true",), (b"/bin/true",), b"/", {b"A": b"b"}, None, 7)

    def spawn(
        self, monkeypatch: pytest.MonkeyPatch, stage: int, number: int
    ) -> tuple[int, Reaper, tuple[object, ...]]:
        given: list[tuple[object, ...]] = []
        started: list[int] = []
        claimed: list[int] = []

        def start(paths: tuple[bytes, ...], argv: tuple[bytes, ...], *more: object) -> object:
            given.append(more)
            started.append(os.posix_spawn(paths[0], argv, {}))
            return started[0], stage, number, 123

        monkeypatch.setattr(spawn, "_start_natively", start)
        monkeypatch.setattr(spawn, "_claim", claimed.append)
        reaper = Reaper()
        fds = spawn.Descriptors(3, 4, 5)
        try:
            pid = spawn.spawn(self.program, fds, reaper, lambda _end: None, 100)
        finally:
            os.waitpid(started[0], 0)
        assert claimed == [pid]
        return pid, reaper, given[0]

    def test_a_child_that_cannot_be_watched_is_killed_and_claimed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise MemoryError

        claimed: list[int] = []
        pid = os.posix_spawn("/bin/sleep", ("sleep", "60"), {})
        monkeypatch.setattr(Reaper, "watch", refuse)
        monkeypatch.setattr(spawn, "_start_natively", lambda *_: (pid, 0, 0, 0))
        monkeypatch.setattr(spawn, "_claim", claimed.append)
        with pytest.raises(MemoryError):
            spawn.spawn(self.program, spawn.Descriptors(3, 4, 5), Reaper(), print)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
        assert claimed == [pid]

    def test_what_is_given_and_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pid, reaper, given = self.spawn(monkeypatch, 0, 0)
        assert given[:-2] == ({b"A": b"b"}, (3, 4, 5), b"/", None, False, 7, 100)
        assert given[-1] is False
        assert reaper._watched[pid][1] == 123

    @pytest.mark.parametrize(
        ("stage", "kind"), [(1, DirectoryError), (2, UserError), (3, StageError), (4, StageError)]
    )
    def test_what_fails_before_the_program(
        self, monkeypatch: pytest.MonkeyPatch, stage: int, kind: type[StageError]
    ) -> None:
        with pytest.raises(StageError) as caught:
            self.spawn(monkeypatch, stage, errno.EACCES)
        assert type(caught.value) is kind
        assert isinstance(caught.value.reason, PermissionError)

    def test_a_program_that_cannot_be_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(FileNotFoundError):
            self.spawn(monkeypatch, 0, errno.ENOENT)


def explained(error: OSError | StageError, user: users.User | None = None) -> Exception:
    """What a failure to start becomes."""
    return launch.explain(error, Program((b"prog",), (b"/nowhere/prog",), b"/cwd", {}, user))


def os_error(number: int) -> OSError:
    """The kernel's refusal."""
    return OSError(number, os.strerror(number))


def test_reasons_for_not_starting() -> None:
    for number, code, reason in (
        (errno.ENOENT, 127, "not_found"),
        (errno.ENOTDIR, 127, "not_found"),
        (errno.EACCES, 126, "not_executable"),
        (errno.ENOEXEC, 126, "not_executable"),
        (errno.EAGAIN, 126, "no_room"),
        (errno.ENOMEM, 126, "no_room"),
        (errno.E2BIG, 126, "arguments_too_long"),
        (errno.ETXTBSY, 126, "busy"),
        (errno.EIO, 126, "not_executable"),
        (errno.EPERM, 126, "not_executable"),
        (errno.ENAMETOOLONG, 126, "not_executable"),
        (errno.ELIBBAD, 126, "not_executable"),
    ):
        found = explained(os_error(number))
        assert isinstance(found, StartFailedError)
        assert (found.exit_code, found.reason) == (code, reason)
    refused = os_error(errno.EPERM)
    assert isinstance(explained(StageError(refused)), InternalError)
    assert isinstance(explained(DirectoryError(refused)), PathDeniedError)
    user = users.User("ann", 1, 1, (1,), "/", "")
    assert isinstance(explained(UserError(refused), user), UserUnsupportedError)
    assert isinstance(explained(refused, user), StartFailedError)


@pytest.mark.parametrize(
    ("reason", "wanted", "field"),
    [
        (wire.NOT_FOUND, PathNotFoundError, "shell"),
        (wire.NOT_EXECUTABLE, PathDeniedError, "shell"),
        (wire.TOO_LONG, BadRequestError, "env"),
        (wire.NO_ROOM, UnreachableError, None),
        (wire.BUSY, UnreachableError, None),
    ],
)
def test_reasons_for_a_session_not_to_start(
    reason: str, wanted: type[SandmanError], field: str | None
) -> None:
    found = shells._not_started(StartFailedError(126, reason, "why\n"))
    assert type(found) is wanted
    assert (found.detail, found.field) == ("why", field)


def test_what_a_child_says_of_its_directory() -> None:
    reader, writer = os.pipe()
    try:
        assert spawn._told(reader) is None
        os.write(writer, b"%d" % errno.EACCES)
        told = spawn._told(reader)
    finally:
        os.close(reader)
        os.close(writer)
    assert isinstance(told, DirectoryError)
    assert isinstance(told.reason, PermissionError)


def test_a_relative_program_is_looked_for_where_it_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    program = Program((b"bin/sh",), (b"bin/sh",), os.fsencode(tmp_path), {}, None)
    failure = launch.explain(FileNotFoundError(2, "No such file"), program)
    assert isinstance(failure, StartFailedError)
    assert failure.message == "bin/sh: No such file\n"


def test_an_errno_that_nobody_foresaw_is_still_the_paths() -> None:
    found = files.translate(OSError(errno.ESTALE, "Stale file handle"), b"/x")
    assert (found.status, found.reason, found.field) == (403, "path_denied", "path")
    assert (found.detail, found.facts) == ("/x: Stale file handle", {"errno": "ESTALE"})
    assert files.translate(OSError(4711, "odd"), b"/x").facts == {"errno": "4711"}
    assert files.translate(OSError("no number"), b"/x").facts == {"errno": "0"}


@pytest.mark.parametrize("number", sorted({*files.ERRORS, *kernel.NO_ROOM}))
def test_each_errno_is_told_and_documented(number: int) -> None:
    found = files.translate(os_error(number), b"/x")
    name = errno.errorcode[number]
    assert found.facts == {"errno": name}
    rows = (ROOT / "docs" / "api.md").read_text().splitlines()
    assert any(row.startswith(f"| `{found.reason}`") and f"`{name}`" in row for row in rows)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_what_the_sandbox_has_used_up_may_be_there_again(number: int) -> None:
    refused = OSError(number, os.strerror(number))
    program = Program((b"x",), (b"x",), b"/", {}, None)
    found = files.translate(refused, b"/x")
    assert (found.status, found.cause, found.retryable) == (503, "sandbox", True)
    if number != errno.ENOMEM:  # that a shell would say, too: it is a result
        failure = launch.explain(refused, program)
        assert isinstance(failure, UnreachableError)
        assert (failure.cause, failure.retryable) == ("sandbox", True)
