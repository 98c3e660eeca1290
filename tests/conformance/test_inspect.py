"""inspect_ai's 44 checks of a sandbox provider (`inspect_ai.util._sandbox.self_check`), on three images.

Each check is a test here, by name: one that is new in a later version, or no longer there, is a failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.inspect_run import IMAGES

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMES = """
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
"""
CHECKS = _NAMES.split()


@pytest.mark.parametrize("image", IMAGES)
def test_the_checks_are_those_that_we_know(verdicts: Callable[[str], dict], image: str) -> None:
    assert set(verdicts(image)) == {f"test_{check}" for check in CHECKS}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("image", IMAGES)
def test_inspect(verdicts: Callable[[str], dict], image: str, check: str) -> None:
    verdict = verdicts(image)[f"test_{check}"]
    wanted = "xfailed" if check in IMAGES[image].failures else "passed"
    assert verdict.outcome == wanted, verdict.words
