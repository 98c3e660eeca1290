"""Runs a suite inside a framework's virtual environment, with Sandman as a wheel brings it, against a real gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sandman import local
from tests import venvs
from tests.conformance import inspect_run
from tests.tasks import catalog, fetch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
START_S = 60.0
STOP_S = 30.0
COVERED = 95.0
"""Of each adapter's lines and branches, in percent, as of all other code: only here is it run."""
OWN = Path(sys.executable)
NEWER = {"harbor", "nemo_gym"}
"""Frameworks that need a Python of 3.12 or later."""
ASYNC = {"inspect_ai", "nemo_gym"}
"""Frameworks whose suites are coroutines."""
LOCAL = "not deleted"
"""All that need no cluster."""
MEASURED = r"""
[run]
branch = true
concurrency = thread
include = */sandman/adapters/*
[report]
exclude_also =
    if TYPE_CHECKING:
    @overload
"""
"""How; what is in a framework's environment does not know our own settings."""


@dataclass(frozen=True, slots=True)
class Framework:
    """One with its suite.

    Args:
        lock: what is in its virtual environment.
        suite: the module of `inside` that is run there.
        modules: of `sandman.adapters`, whose coverage counts.
        base: the Python that its virtual environment is made of.
        is_async: whether its tests are coroutines.
    """

    lock: Path
    suite: str
    modules: tuple[str, ...]
    base: Path | str = sys.executable
    is_async: bool = True


INSPECT = Framework(inspect_run.LOCK, "inspect_ai_suite", ("inspect_ai", "spec"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the suite: tests by name with `passed`, or words; the coverage of each module, in percent."""

    tests: Mapping[str, str]
    coverage: Mapping[str, float]
    words: str

    def failures(self, allowed: frozenset[str] | set[str] = frozenset()) -> dict[str, str]:
        """What did not pass; `allowed` must fail, by design."""
        wanted = {name: "xfailed" if name in allowed else "passed" for name in self.tests}
        wrong = {name: outcome for name, outcome in self.tests.items() if outcome != wanted[name]}
        return wrong if self.tests else {"no test": self.words}

    def uncovered(self) -> dict[str, float]:
        """Modules of which too little was run."""
        return {name: rate for name, rate in self.coverage.items() if rate < COVERED}


class Run:
    """A suite that runs since it was made.

    Args:
        framework: which.
        site: where the wheel was unpacked.
        scratch: an empty directory.
        environ: says where the gateway is, and more for the suite.
        select: of its tests, as pytest's `-k` has it.
    """

    def __init__(
        self,
        framework: Framework,
        site: Path,
        scratch: Path,
        environ: Mapping[str, str],
        select: str = LOCAL,
    ) -> None:
        self._framework, self._scratch = framework, scratch
        self._python = venvs.environment(framework.lock, framework.base)
        self._environ = {
            "HOME": str(scratch),
            "PATH": f"{self._python.parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{site}:{REPOSITORY}",
            "PYTHONDONTWRITEBYTECODE": "1",
            **environ,
        }
        plain = [
            "-p",
            "no:cacheprovider",
            "--noconftest",
            "-c",
            os.devnull,
            "--rootdir",
            REPOSITORY,
        ]
        how = ["-k", select, "--import-mode=importlib", "--timeout=300", "-q", "--durations=5"]
        if framework.is_async:
            how += ["-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=session",
                    "-o", "asyncio_default_test_loop_scope=session"]  # fmt: skip
        (scratch / ".coveragerc").write_text(MEASURED)
        measured = ["coverage", "run", "-m"]
        suite = HERE / "inside" / f"{framework.suite}.py"
        self._process = subprocess.Popen(
            [
                self._python,
                "-m",
                *measured,
                "pytest",
                *plain,
                *how,
                "--junit-xml=report.xml",
                suite,
            ],
            env=self._environ,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def verdict(self) -> Verdict:
        """Wait for its end.

        Raises:
            AssertionError: there is no report.
        """
        words, _ = self._process.communicate()
        report = self._scratch / "report.xml"
        assert report.exists(), words
        cases = ET.parse(report).iter("testcase")
        return Verdict(
            {str(case.get("name")): _outcome(case) for case in cases}, self._covered(), words
        )

    def _covered(self) -> dict[str, float]:
        told = self._scratch / "coverage.json"
        command = [self._python, "-m", "coverage", "json", "--quiet", "-o", told]
        subprocess.run(command, env=self._environ, cwd=self._scratch, check=True)
        files = json.loads(told.read_text())["files"]
        rates = {Path(name).stem: one["summary"]["percent_covered"] for name, one in files.items()}
        return {name: rates[name] for name in self._framework.modules}

    def close(self) -> None:
        """End what still runs."""
        with self._process as process:
            process.kill()


def _outcome(case: ET.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            if found.get("type") == "pytest.xfail":
                return "xfailed"
            return f"{kind}: {found.get('message')}\n{found.text or ''}"
    return "passed"


def materials() -> dict[str, str]:
    """Variables that say where the release of the real task is."""
    source = fetch.sdist("h11", catalog.H11.buggy, fetch.CACHE)
    return {"ADAPTERS_H11": str(source), "MSWEA_SILENT_STARTUP": "1"}


def build_wheel(place: Path) -> Path:
    """The wheel of this checkout, unpacked as pip would: entry points are in its metadata."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "--target",
            "wheel",
            "--directory",
            scratch,
        ]
        subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)
    return place


@contextmanager
def local_mode(state: Path, images: Mapping[str, Path]) -> Iterator[dict[str, str]]:
    """A gateway as a person starts it; the variables by which clients find it."""
    told = {local.ENV_STATE: str(state)}
    named = [f"--image={name}={path}" for name, path in images.items()]
    command = [sys.executable, "-m", "sandman.cli", "serve", "--local", "--offline", *named]
    process = subprocess.Popen(command, env={**os.environ, **told})
    try:
        until = time.monotonic() + START_S
        while local.read(told) is None:
            assert process.poll() is None, "local mode did not start"
            assert time.monotonic() < until, "local mode did not start"
            time.sleep(0.02)
        yield told
    finally:
        process.terminate()
        process.wait(STOP_S)
