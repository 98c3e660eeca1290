"""Runs inspect_ai's checks in a virtual environment of their own.

inspect_ai brings ninety distributions, 300 MB: too much for everybody's environment, and its versions
must not decide ours. They are pinned by hash in `inspect.lock` and installed once into the cache.
"""

from __future__ import annotations

import os
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from tests import venvs
from tests.conformance import cells, container, rootfs

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
LOCK = HERE / "inspect.lock"
SUITE = HERE / "inspect_suite.py"


@dataclass(frozen=True, slots=True)
class Subject:
    """An image that is checked, and the checks that fail there by design."""

    cell: cells.Cell
    failures: frozenset[str]


# Root may read and write whatever a mode says.
_AS_ROOT = frozenset(
    {
        "read_file_not_allowed",
        "write_text_file_without_permissions",
        "write_binary_file_without_permissions",
    }
)
# It makes a user, which only root may.
_AS_USER = frozenset({"exec_as_user"})
_NONROOT = cells.Image(
    "nonroot", (rootfs.AGENT, rootfs.DEBIAN), uids=(1000,), shell="bash", workdir="/home/agent"
)
IMAGES = {
    "debian": Subject(cells.BY_NAME["debian-0"], _AS_ROOT),
    "musl": Subject(cells.BY_NAME["musl-0"], _AS_ROOT),
    "nonroot": Subject(cells.Cell(_NONROOT, 1000), _AS_USER),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one check; `words` explain anything but a pass."""

    outcome: str  # passed, failed, xfailed or skipped
    words: str = ""


def environment() -> Path:
    """The Python of the virtual environment, made now when it is not there."""
    return venvs.environment(LOCK)


class Run:
    """The checks on one daemon, under way since it was made."""

    def __init__(self, python: Path, subject: Subject, runtime: Path, scratch: Path) -> None:
        self._report = report = scratch / "report.xml"
        self._verdicts: dict[str, Verdict] | None = None
        place = scratch / f"inspect-{subject.cell.name}"  # its name is the container's, too
        place.mkdir()
        self._box = cells.start(subject.cell, runtime, place)
        plain = [
            "-p",
            "no:cacheprovider",
            "--noconftest",
            "-c",
            os.devnull,
            "--rootdir",
            REPOSITORY,
        ]
        how = ["--import-mode=importlib", "-o", "asyncio_mode=auto", "--timeout=300", "-q"]
        self._process = subprocess.Popen(
            [python, "-m", "pytest", *plain, *how, f"--junit-xml={report}", SUITE],
            env={
                **{name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ},
                "PYTHONPATH": str(REPOSITORY),
                "PYTHONDONTWRITEBYTECODE": "1",
                "CONFORMANCE_URL": self._box.container.url,
                "CONFORMANCE_TOKEN": container.TOKEN,
                "CONFORMANCE_EXPECTED_FAILURES": ",".join(f"test_{n}" for n in subject.failures),
            },
            cwd=scratch,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def verdicts(self) -> dict[str, Verdict]:
        """What became of each check; waits for the last.

        Raises:
            AssertionError: there is no report.
        """
        if self._verdicts is None:
            words, _ = self._process.communicate()
            assert self._report.exists(), words
            cases = ET.parse(self._report).iter("testcase")
            self._verdicts = {str(case.get("name")): _verdict(case) for case in cases}
        return self._verdicts

    def close(self) -> None:
        """End whatever still runs."""
        with self._process as process:  # closes its pipe and waits
            process.kill()
        self._box.close()


def _verdict(case: ET.Element) -> Verdict:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            if found.get("type") == "pytest.xfail":
                return Verdict("xfailed")
            outcome = "skipped" if kind == "skipped" else "failed"
            return Verdict(outcome, f"{found.get('message')}\n{found.text or ''}")
    return Verdict("passed")
