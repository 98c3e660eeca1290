"""One sandbox with a buggy release in it, and what is done there, step by step.

It asks little of an image: `mkdir` and `rm`, and either `python3` or `tar` (to unpack a Python that
is brought along). All files stay in one directory.
"""

from __future__ import annotations

import shlex
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import anyio

from sandman.errors import PathNotFoundError
from tests.tasks import runner, unified

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from sandman.wire import ExecResult
    from tests.tasks.contract import Box, Client
    from tests.tasks.fetch import Materials
    from tests.tasks.runner import Layout, Results
    from tests.tasks.stopwatch import Log, Stopwatch

WORKDIR = "/tmp/sandman-task"
TESTS_TIMEOUT_S = 300.0
STEP_TIMEOUT_S = 120.0


class ScenarioError(Exception):
    """A step that must succeed did not; its output is in the message."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A Python to bring along for images without one: `python -m daemon.runtime toolchain`."""

    tar: Path
    program: str = "python/bin/python3"


@dataclass(frozen=True, slots=True)
class Place:
    """Which sandboxes to work in, and how: the two of a task are made alike."""

    image: str
    python: Literal["system"] | Toolchain = "system"
    workdir: str = WORKDIR
    pool: str | None = None
    run: str | None = None

    def allocation(self) -> dict[str, str]:
        """The arguments of `client.sandbox`; what is None is left to the service."""
        wanted = {"image": self.image, "pool": self.pool, "run": self.run}
        return {name: value for name, value in wanted.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Workshop:
    """One sandbox and what is done in it, step by step."""

    box: Box
    materials: Materials
    layout: Layout
    python: str
    log: Log

    async def execute(self, argv: list[str], cwd: str | None = None) -> ExecResult:
        """Run a command that must succeed."""
        result = await self.box.exec(argv, cwd=cwd or self.layout.top, timeout_s=STEP_TIMEOUT_S)
        if not result.ok:
            raise ScenarioError(f"{shlex.join(argv)}: {told(result)}")
        return result

    async def put_toolchain(self, toolchain: Toolchain) -> None:
        """Bring a Python along; without one there is only the image's own `tar` to unpack it."""
        data = await anyio.Path(toolchain.tar).read_bytes()
        await self.box.files.write(self.layout / "toolchain.tar", data)
        await self.execute(["tar", "xf", "toolchain.tar"])

    async def put_release(self) -> None:
        """The buggy release, the test runner, and the program that makes and applies patches."""
        await self._put_tar("source", self.materials.source_tar(), self.layout.source)
        await self._put_tar("pytest", self.materials.pytest_tar(), self.layout.pytest)
        program = await anyio.Path(unified.__file__).read_bytes()
        await self.box.files.write(self.layout / "unified.py", program, mode=0o755)
        await self.execute(["mkdir", "-p", self.layout.scratch])

    async def put_tests(self) -> None:
        """The fixed release's tests, in place of whatever is there."""
        await self.execute(["rm", "-rf", f"{self.layout.source}/{self.materials.task.tests}"])
        await self._put_tar("tests", self.materials.tests_tar(), self.layout.source)

    async def _put_tar(self, name: str, data: bytes, where: str) -> None:
        await self.box.files.write(self.layout / f"{name}.tar", data)
        await self.execute([self.python, "-m", "tarfile", "-e", f"{name}.tar", where])

    async def run_tests(self, report: str) -> Results:
        """Run the task's tests; no results at all when the run left no proper report.

        A patch can bring that about (it ends the process, it never ends): its own fault, no error.
        """
        argv = runner.command(
            self.python, self.layout, self.layout / report, self.materials.task.arguments
        )
        result = await self.box.exec(
            argv,
            cwd=self.layout.source,
            env=runner.environment(self.layout),
            timeout_s=TESTS_TIMEOUT_S,
        )
        if result.start_error:
            raise ScenarioError(f"the tests could not be started: {told(result)}")
        try:
            return runner.parse_report(await self.box.files.read(self.layout / report))
        except (PathNotFoundError, runner.ReportError) as error:
            self.log(f"no report of the tests ({error}): {told(result)}")
            return {}

    async def take_patch(self) -> str:
        """What differs from the release, its tests left aside."""
        tests = self.materials.task.tests
        await self._unified("diff", "source.tar", self.layout.source, "model.patch", tests)
        data = await self.box.files.read(self.layout / "model.patch")
        return data.decode("utf-8", "surrogateescape")

    async def apply_patch(self, patch: str) -> None:
        """Apply a patch to the release."""
        data = patch.encode("utf-8", "surrogateescape")
        await self.box.files.write(self.layout / "model.patch", data)
        await self._unified("apply", "model.patch", self.layout.source)

    async def _unified(self, *arguments: str) -> None:
        await self.execute([self.python, self.layout / "unified.py", *arguments])


@asynccontextmanager
async def open_workshop(
    client: Client, materials: Materials, place: Place, watch: Stopwatch, phase: str
) -> AsyncIterator[Workshop]:
    """A sandbox with the buggy release and the test runner in it."""
    async with watch.around(f"{phase}: sandbox", client.sandbox(**place.allocation())) as box:
        python = "python3"
        layout = runner.Layout(place.workdir)
        if isinstance(place.python, Toolchain):
            python = layout / place.python.program
        shop = Workshop(box, materials, layout, python, watch.log)
        with watch.step(f"{phase}: upload"):
            if isinstance(place.python, Toolchain):
                await shop.put_toolchain(place.python)
            await shop.put_release()
        yield shop


def told(result: ExecResult) -> str:
    """What a command said last, for a message."""
    said = (result.stdout_text + result.stderr_text).strip()
    return f"exit code {result.exit_code}, {said[-2000:]}"
