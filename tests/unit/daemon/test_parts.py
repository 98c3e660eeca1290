"""The parts that need no daemon: settings, the copy, the log, descriptors, the kernel's calls."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import types
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from daemon import __main__ as command_line
from daemon import (
    config,
    delivery,
    kernel,
    log,
    spawn,
    users,
)
from daemon.init import Reaper
from daemon.spawn import Program
from sandman import names
from tests.unit.daemon.harness import names_in

if TYPE_CHECKING:
    from pathlib import Path

DIGEST = "ab" * 32


def test_settings() -> None:
    found = config.Config.from_env({names.ENV_TOKEN_SHA256: DIGEST.upper()})
    assert (found.token_sha256, found.port) == (DIGEST, names.DAEMON_PORT)
    assert DIGEST not in repr(found)


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
