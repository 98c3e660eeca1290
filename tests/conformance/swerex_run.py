"""Runs SWE-ReX's tests in a virtual environment of their own, over HTTP, against a real daemon.

The tests come with its source distribution alone. It is fetched when they are run, pinned by hash like
what they need (`swerex.lock`), and kept in the cache.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tarfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from tests import venvs
from tests.tasks import fetch
from tests.tasks.catalog import Source
from tests.unit.daemon import harness

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
LOCK = HERE / "swerex.lock"
SDIST = Source("1.4.0", "14f8a24c49a63f9e251340b1109ac75a4aacbaece410f8599209de9bfca843c0")
SUITES = (
    "test_execution.py",
    "test_runtime.py",
    "test_server.py",
    "test_remote_deployment.py",
    "test_local_runtime.py",
)
"""The others start containers, or clouds."""
SECONDS = 300
"""For all of them together; they take half a minute."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one test; `words` explain anything but a pass."""

    outcome: str  # passed, failed, skipped
    words: str = ""


def unpack(scratch: Path) -> Path:
    """SWE-ReX's tests as a package, with what they ask for beside them."""
    archive = fetch.sdist("swe-rex", SDIST, venvs.CACHE)
    with tarfile.open(archive) as tar:
        tar.extractall(scratch, filter="data")
    suite = scratch / f"swe_rex-{SDIST.version}"
    (suite / "tests" / "__init__.py").touch()
    shutil.copy(HERE / "swerex_conftest.py", suite / "tests" / "conftest.py")
    return suite


def run(scratch: Path) -> dict[str, Verdict]:
    """Every test by its name, and what became of it."""
    python = venvs.environment(LOCK)
    suite, report = unpack(scratch), scratch / "report.xml"
    path = f"{python.parent}:{os.environ['PATH']}"
    base = {"HOME": str(scratch), "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    daemon = harness.start(env={"PATH": path}, cwd=REPOSITORY)
    try:
        with _served(python, daemon, base) as env:
            done = subprocess.run(
                [
                    *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull),
                    *("--rootdir", suite, "-o", "asyncio_mode=auto", "--timeout=60"),
                    *(f"--junit-xml={report}", *(f"tests/{name}" for name in SUITES)),
                ],
                cwd=suite,
                env={**env, "PYTHONPATH": str(suite)},
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
    finally:
        daemon.stop()
    if not report.exists():
        raise AssertionError(done.stdout + done.stderr)
    return {_name(case): _verdict(case) for case in ET.parse(report).iter("testcase")}


@contextlib.contextmanager
def _served(python: Path, daemon: harness.Daemon, base: dict[str, str]) -> Iterator[dict[str, str]]:
    """SWE-ReX's server over the daemon; the environment that finds it."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        env = {**base, "SWEREX_TOKEN": "swerex", "SWEREX_PORT": str(port)}
        more = {
            "PYTHONPATH": str(REPOSITORY),
            "CONFORMANCE_URL": f"http://127.0.0.1:{daemon.port}",
            "CONFORMANCE_TOKEN": harness.TOKEN,
            "SWEREX_FD": str(sock.fileno()),
        }
        adapter = [python, "-m", "tests.conformance.swerex_adapter"]
        with subprocess.Popen(
            adapter,
            env={**env, **more},
            cwd=REPOSITORY,
            pass_fds=[sock.fileno()],
            stderr=subprocess.DEVNULL,  # it writes a traceback for each error that its callers get
        ) as server:
            try:
                # It listens already: who calls waits until it answers.
                alive = httpx.get(
                    f"http://127.0.0.1:{port}/is_alive",
                    headers={"X-API-Key": env["SWEREX_TOKEN"]},
                    timeout=60,
                )
                assert alive.json()["is_alive"], alive.text
                yield env
            finally:
                server.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    server.wait(10)
                server.kill()


def _name(case: ET.Element) -> str:
    return f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"


def _verdict(case: ET.Element) -> Verdict:
    for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        found = case.find(kind)
        if found is not None:
            return Verdict(outcome, f"{found.get('message')}\n{found.text}")
    return Verdict("passed")
