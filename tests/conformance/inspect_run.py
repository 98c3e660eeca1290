"""Runs inspect_ai's checks in a virtual environment of their own.

inspect_ai brings ninety distributions, 300 MB: too much for everybody's environment, and its versions
must not decide ours. They are pinned by hash in `inspect.lock` and installed once into the cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.conformance import rootfs

if TYPE_CHECKING:
    from collections.abc import Collection

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
LOCK = HERE / "inspect.lock"
SUITE = HERE / "inspect_suite.py"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one check; `words` explain anything but a pass."""

    outcome: str  # passed, failed, xfailed or skipped
    words: str = ""


def environment() -> Path:
    """The Python of the virtual environment, made now when it is not there."""
    identity = LOCK.read_bytes() + sys.version.encode()
    place = rootfs.CACHE / f"inspect-{hashlib.sha256(identity).hexdigest()[:16]}"
    python = place / "bin" / "python"
    with rootfs.one_at_a_time():
        if not (place / ".complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", place], check=True)
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "--require-hashes", "--requirement", LOCK], check=True)
            (place / ".complete").touch()
    return python


class Run:
    """The checks on one daemon, under way since it was made."""

    def __init__(
        self, python: Path, report: Path, url: str, token: str, expected: Collection[str]
    ) -> None:
        self._report = report
        plain = ["-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, "--rootdir", REPOSITORY]
        how = ["--import-mode=importlib", "-o", "asyncio_mode=auto", "--timeout=300", "-q"]
        self._process = subprocess.Popen(
            [python, "-m", "pytest", *plain, *how, f"--junit-xml={report}", SUITE],
            env={
                **{name: os.environ[name] for name in ("HOME", "PATH") if name in os.environ},
                "PYTHONPATH": str(REPOSITORY),
                "PYTHONDONTWRITEBYTECODE": "1",
                "CONFORMANCE_URL": url,
                "CONFORMANCE_TOKEN": token,
                "CONFORMANCE_EXPECTED_FAILURES": ",".join(expected),
            },
            cwd=report.parent,
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
        words, _ = self._process.communicate()
        assert self._report.exists(), words
        cases = ET.parse(self._report).iter("testcase")
        return {str(case.get("name")): _verdict(case) for case in cases}


def _verdict(case: ET.Element) -> Verdict:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            if found.get("type") == "pytest.xfail":
                return Verdict("xfailed")
            outcome = "skipped" if kind == "skipped" else "failed"
            return Verdict(outcome, f"{found.get('message')}\n{found.text or ''}")
    return Verdict("passed")
