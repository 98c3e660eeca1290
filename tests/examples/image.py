"""A task's image for examples: this Python, pytest and websockets, a shell and some programs, and a task that has tests."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

PROGRAMS = ("sh", "bash", "cat", "echo", "env", "id", "ls", "seq", "sleep", "true", "uname")
LEFT_OUT = (
    "site-packages",
    "dist-packages",
    "test",
    "__pycache__",
    "config-*",
    "idlelib",
    "ensurepip",
    "lib2to3",
)
DISTRIBUTIONS = ("pytest", "pluggy", "iniconfig", "packaging", "pygments", "websockets")
_TASK = "def test_sum():\n    assert sum([1, 2]) == 3\n"
_PYTEST = "#!/usr/bin/python3\nimport sys, pytest\nsys.exit(pytest.main())\n"
_INI = "[pytest]\ntestpaths = task\n"
_PASSWD = "root:x:0:0::/root:/bin/sh\n"


def build(top: Path) -> Path:
    """Make it in this directory."""
    python = Path(sys.executable).resolve()
    stdlib = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(
        stdlib, _in(top, stdlib), ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True
    )
    for name in DISTRIBUTIONS:
        _install(name, _in(top, stdlib / "site-packages"))
    programs = [Path(shutil.which(name) or name).resolve() for name in PROGRAMS]
    for path in (*programs, python):
        _copy(path, _in(top, path))
    for path in {*programs, python, *(stdlib / "lib-dynload").glob("*.so")}:
        for library in _libraries(path):
            _copy(library.resolve(), _in(top, library))
    for link, path in [*zip(PROGRAMS, programs, strict=True), ("python3", python)]:
        place = top / "usr/bin" / link
        place.parent.mkdir(parents=True, exist_ok=True)
        if not place.exists():
            place.symlink_to(path)
    if not (top / "bin").exists():
        (top / "bin").symlink_to("usr/bin")
    for name, text in {
        "task/test_it.py": _TASK,
        "usr/bin/pytest": _PYTEST,
        "etc/passwd": _PASSWD,
        "pytest.ini": _INI,
    }.items():
        (top / name).parent.mkdir(exist_ok=True)
        (top / name).write_text(text)
    (top / "usr/bin/pytest").chmod(0o755)
    (top / "tmp").mkdir(exist_ok=True)
    top.chmod(0o755)
    return top


def _install(name: str, place: Path) -> None:
    for file in importlib.metadata.distribution(name).files or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            _copy(Path(file.locate()), place / file)


def _in(top: Path, path: Path) -> Path:
    return top / path.relative_to("/")


def _copy(path: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, place)


def _libraries(path: Path) -> list[Path]:
    told = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    return [Path(word) for word in told.split() if word.startswith("/")]
