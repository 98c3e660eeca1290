"""How a command is started, and why it is not."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from daemon import (
    files,
    kernel,
    launch,
    shells,
    spawn,
    users,
)
from daemon.init import Reaper
from daemon.launch import StartFailedError
from daemon.spawn import DirectoryError, Program, StageError, UserError
from sandman import wire
from sandman.errors import (
    BadRequestError,
    InternalError,
    PathDeniedError,
    PathNotFoundError,
    SandmanError,
    UnreachableError,
    UserUnsupportedError,
)
from tests.unit.daemon.harness import ROOT

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    ("argv", "environment"),
    [
        ((b"prog", b"x" * 140_000), {}),
        ((b"prog",), {b"A": b"x" * 140_000}),
    ],
)
def test_where_the_kernel_calls_it_a_name_it_is_still_an_argument(
    argv: tuple[bytes, ...], environment: dict[bytes, bytes]
) -> None:
    """As gVisor's does; of short arguments that is said for a path."""
    program = Program(argv, (b"/nowhere/prog",), b"/cwd", environment, None)
    failure = launch.explain(os_error(errno.ENAMETOOLONG), program)
    assert isinstance(failure, StartFailedError)
    assert failure.reason == wire.TOO_LONG
    other = explained(os_error(errno.ENAMETOOLONG))
    assert isinstance(other, StartFailedError)
    assert other.reason == wire.NOT_EXECUTABLE
