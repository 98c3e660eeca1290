"""inspect_ai's 44 checks of a sandbox provider (`inspect_ai.util._sandbox.self_check`), on three images.

Each check is a test here, by name: one that is new in a later version, or no longer there, is a failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance import cells, container, inspect_run, rootfs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHECKS = """
read_and_write_file_text write_file_text_utf read_and_write_file_binary read_and_write_large_file_binary
read_and_write_file_including_directory_absolute read_and_write_file_including_directory_relative
read_file_zero_length read_file_not_found read_file_not_allowed read_file_is_directory
read_file_nonsense_name read_file_limit write_text_file_zero_length write_text_file_space
write_text_file_is_directory write_text_file_without_permissions write_text_file_exists
write_binary_file_zero_length write_binary_file_space write_binary_file_is_directory
write_binary_file_without_permissions write_binary_file_exists exec_output exec_stderr exec_output_utf
exec_stderr_utf exec_returncode exec_timeout exec_timeout_not_raised_on_fast_signal_death
exec_timeout_kills_process exec_timeout_kills_child_processes exec_permission_error exec_env_vars
exec_input_text exec_input_shell_special exec_input_binary exec_input_large exec_large_command
exec_as_user exec_as_nonexistent_user cwd_unspecified cwd_custom cwd_relative cwd_absolute
""".split()

# What root may do whatever a mode says.
AS_ROOT = frozenset(
    {
        "read_file_not_allowed",
        "write_text_file_without_permissions",
        "write_binary_file_without_permissions",
    }
)
# Makes a user, as root.
AS_USER = frozenset({"exec_as_user"})

NONROOT = cells.Image(
    "nonroot", (rootfs.AGENT, rootfs.DEBIAN), uids=(1000,), shell="bash", workdir="/home/agent"
)
IMAGES = {
    "debian": (cells.BY_NAME["debian-0"], AS_ROOT),
    "musl": (cells.BY_NAME["musl-0"], AS_ROOT),
    "nonroot": (cells.Cell(NONROOT, 1000), AS_USER),
}


@pytest.fixture(scope="module")
def runs(
    runtime: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], dict[str, inspect_run.Verdict]]]:
    """The verdicts on an image. All three run at once: most of the checks' time is spent asleep."""
    python = inspect_run.environment()
    boxes, started, known = [], {}, {}
    try:
        for name, (cell, expected) in IMAGES.items():
            scratch = tmp_path_factory.mktemp(f"inspect-{name}")
            boxes.append(cells.start(cell, runtime, scratch))
            started[name] = inspect_run.Run(
                python,
                scratch / "report.xml",
                boxes[-1].container.url,
                container.TOKEN,
                {f"test_{check}" for check in expected},
            )
        for name, run in started.items():
            known[name] = run.verdicts()
        yield known.__getitem__
    finally:
        for box in boxes:
            box.close()


@pytest.mark.parametrize("image", IMAGES)
def test_the_checks_are_those_that_we_know(runs: Callable[[str], dict], image: str) -> None:
    assert set(runs(image)) == {f"test_{check}" for check in CHECKS}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("image", IMAGES)
def test_inspect(runs: Callable[[str], dict], image: str, check: str) -> None:
    verdict = runs(image)[f"test_{check}"]
    wanted = "xfailed" if check in IMAGES[image][1] else "passed"
    assert verdict.outcome == wanted, verdict.words
