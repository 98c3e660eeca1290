"""Sessions over a long time. Point 27."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.daemon import harness
from tests.unit.daemon.shells import KINDS, Shell, shell_of

# The long form: SANDMAN_TEST_COMMANDS=10000.
COMMANDS = int(os.environ.get("SANDMAN_TEST_COMMANDS", "500"))


def descriptors(daemon: harness.Daemon) -> int:
    """How many the daemon holds."""
    return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_27_thousands_of_commands_in_one_session(kind: str, tmp_path: Path) -> None:
    daemon = harness.start()
    try:
        with Shell(daemon, shell=shell_of(kind, tmp_path)) as shell:
            assert shell.out("x=0") == ""
            before, start = descriptors(daemon), harness.peak_kib(daemon)
            for n in range(1, COMMANDS + 1):
                result = shell.run(f"x=$((x+1)); echo $x {n}; (exit {n % 256})")
                assert (result.output, result.exit_code) == (f"{n} {n}\n".encode(), n % 256)
            assert descriptors(daemon) <= before + 1
            assert harness.peak_kib(daemon) < start + 8 * 1024
    finally:
        daemon.stop()
