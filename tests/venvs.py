"""Virtual environments of their own for frameworks, whose versions must not decide ours: pinned by hash, kept in the cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path.home() / ".cache" / "sandman" / "conformance"


def environment(lock: Path, base: Path | str = sys.executable) -> Path:
    """The Python of the virtual environment that holds what this lock names, made now when it is not there.

    Args:
        lock: requirements with their hashes; its name is the environment's.
        base: the Python that it is made of.
    """
    version = subprocess.check_output([base, "-c", "import sys; print(sys.version)"])
    identity = hashlib.sha256(lock.read_bytes() + version).hexdigest()[:16]
    place = CACHE / f"{lock.stem}-{identity}"
    python = place / "bin" / "python"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{lock.stem}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not (place / ".complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run([base, "-m", "venv", place], check=True)
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            # A lock names all that is needed; what it leaves out is not wanted.
            subprocess.run(
                [*pip, "--no-deps", "--require-hashes", "--requirement", lock], check=True
            )
            (place / ".complete").touch()
    return python


def newer() -> Path:
    """A Python of 3.12 or later, which some frameworks need: this one, one on PATH, or of pyenv.

    Raises:
        AssertionError: there is none.
    """
    if sys.version_info >= (3, 12):
        return Path(sys.executable)
    on_path = [shutil.which(f"python3.{minor}") for minor in (12, 13)]
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    of_pyenv = [
        *root.glob("versions/3.12.*/bin/python3.12"),
        *root.glob("versions/3.13.*/bin/python3.13"),
    ]
    for found in [*filter(None, on_path), *of_pyenv]:
        # One of pyenv's on PATH is a script that may say that the version is not chosen.
        if subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return Path(found)
    raise AssertionError("a Python of 3.12 or later is needed, on PATH as python3.12, or in pyenv")
