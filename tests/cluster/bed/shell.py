"""Running other programs and waiting for conditions. Knows nothing about the cluster."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.cluster.bed.model import BedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


def run(
    command: Sequence[object],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a program to its end and return what it printed; its standard error goes into the error."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, input=stdin, env=env, cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        message = f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr.strip()}"
        raise BedError(message)
    return done.stdout


def attempt(command: Sequence[object], *, stdin: str | None = None) -> str:
    """Run a program whose failure only means that there was nothing to do; empty if it failed or is absent."""
    if shutil.which(str(command[0])) is None:
        return ""
    try:
        return run(command, stdin=stdin)
    except BedError:
        return ""


def pause(seconds: float) -> None:
    """Wait. The one place of the test cluster that sleeps."""
    time.sleep(seconds)


def wait_until(
    what: str, check: Callable[[], bool], limit: float = 60.0, interval: float = 0.1
) -> None:
    """Ask `check` until it says yes; after `limit` seconds say what did not come."""
    deadline = time.monotonic() + limit
    while not check():
        if time.monotonic() > deadline:
            message = f"waited {limit:.0f} s in vain: {what}"
            raise BedError(message)
        pause(interval)


def say(text: str) -> None:
    """Tell the person at the terminal."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
