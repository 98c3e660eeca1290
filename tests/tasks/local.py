"""A stand-in for the client: commands are processes of this machine, in one directory of it.

For proving facts about tasks where there is no cluster. It isolates nothing: the sandbox is the
directory, which must not exist before and is gone afterwards, so that the next one is fresh.
"""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from sandman.errors import PathNotFoundError
from sandman.wire import ExecResult

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator, Mapping

_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


class LocalFiles:
    """Files of this machine."""

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file; directories above it are made."""
        await anyio.Path(path).parent.mkdir(parents=True, exist_ok=True)
        await anyio.Path(path).write_bytes(data)
        await anyio.Path(path).chmod(mode)

    async def read(self, path: str) -> bytes:
        """A file's bytes."""
        try:
            return await anyio.Path(path).read_bytes()
        except FileNotFoundError:
            raise PathNotFoundError(f"{path} is not there") from None


@dataclass(frozen=True, slots=True)
class LocalBox:
    """One life of the directory; `path` is the variable PATH of its commands."""

    top: Path
    path: str
    files: LocalFiles = field(default_factory=LocalFiles)

    async def exec(
        self,
        argv: list[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> ExecResult:
        """Run a program with no variables of this process's own."""
        variables = {"PATH": self.path} | dict(env or {})
        start = time.perf_counter()
        with anyio.fail_after(timeout_s):
            done = await anyio.run_process(argv, cwd=cwd or self.top, env=variables, check=False)
        took = time.perf_counter() - start
        return ExecResult(_code(done), stdout=done.stdout, stderr=done.stderr, wall_s=took)

    async def run(
        self, command: str, *, cwd: str | None = None, timeout_s: float | None = None
    ) -> ExecResult:
        """Run a string by sh."""
        return await self.exec(["sh", "-c", command], cwd=cwd, timeout_s=timeout_s)


def _code(done: subprocess.CompletedProcess[bytes]) -> int:
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


class LocalClient:
    """Gives one directory, again and again; `python3` in it is the interpreter given.

    Args:
        top: the directory; tell the scenario to work in it (`workdir`).
        python: an interpreter whose directory has it as `python3`; None: the one that runs this.
    """

    def __init__(self, top: Path, python: Path | None = None) -> None:
        self._top = top
        binaries = python.parent if python else Path(sys.base_prefix) / "bin"
        self._path = f"{binaries}:{_SYSTEM_PATH}"
        self.released = 0

    @asynccontextmanager
    async def sandbox(
        self, *, image: str, pool: str | None = None, run: str | None = None
    ) -> AsyncIterator[LocalBox]:
        """The directory, empty; image, pool and run have no meaning here."""
        del image, pool, run
        self._top.mkdir(parents=True)
        try:
            yield LocalBox(self._top, self._path)
        finally:
            shutil.rmtree(self._top)
            self.released += 1
