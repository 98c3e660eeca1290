"""Running other programs: the only place here that starts a process."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

TAIL_LINES = 30

Command = Sequence[str | Path]


class BuildError(Exception):
    """The build cannot go on; the message says what to do or shows the failing program's words."""


def announce(message: str) -> None:
    """Tell a person what happens now. On stderr: stdout belongs to results."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def require(command: Command, code: int, words: str) -> None:
    """Raise with the program's last lines if it failed."""
    if code != 0:
        tail = "\n".join(words.splitlines()[-TAIL_LINES:])
        raise BuildError(f"{command[0]} ended with {code}:\n{tail}")


def read(command: Command, *, cwd: Path | None = None, stdin: str = "") -> str:
    """Run to the end and return what it printed."""
    done = subprocess.run(  # noqa: S603 - the build's own programs, a list of words
        [str(word) for word in command],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    require(command, done.returncode, done.stdout + done.stderr)
    return done.stdout


def run(
    command: Command, log: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Run to the end, its output into ``log``: compilers print megabytes that few ever read."""
    with log.open("a+", errors="replace") as file:
        file.write(f"+ {' '.join(map(str, command))}\n")
        file.flush()
        start = file.tell()
        code = subprocess.run(  # noqa: S603 - as above
            [str(word) for word in command],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
        file.seek(start)
        require(command, code, file.read())
