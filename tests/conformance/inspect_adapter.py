"""inspect_ai's sandbox, on our async client: as thin as it can be, so that what is tested is the service.

Runs in a virtual environment of its own, where inspect_ai is; see `inspect_run`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox.environment import SandboxUnavailableError

from sandman import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman._async.sandbox import Sandbox

# Ours -> what inspect_ai expects instead. What is not here passes: inspect_ai takes it for a failed sample.
_AS_BUILT_IN: dict[type[errors.SandmanError], type[Exception]] = {
    errors.PathNotFoundError: FileNotFoundError,
    errors.NotADirectoryPathError: FileNotFoundError,
    errors.IsADirectoryPathError: IsADirectoryError,
    errors.PathDeniedError: PermissionError,
    errors.UserUnsupportedError: SandboxUserUnsupportedError,
    errors.UnreachableError: SandboxUnavailableError,
    errors.DiedError: SandboxUnavailableError,
}


@contextmanager
def translated() -> Iterator[None]:
    """Our errors as inspect_ai's."""
    try:
        yield
    except tuple(_AS_BUILT_IN) as error:
        raise _AS_BUILT_IN[type(error)](error.detail) from error


class Environment(SandboxEnvironment):
    """One sandbox that somebody else made and will release."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def exec(  # noqa: PLR0917 - inspect_ai's parameters
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 - inspect_ai's name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command; `timeout_retry` and `concurrency` are for providers that need them."""
        del timeout_retry, concurrency
        with translated():
            result = await self._sandbox.exec(
                cmd,
                stdin=input,
                cwd=cwd,
                env=env or {},
                user=user,
                timeout_s=timeout,
                output_limit=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
            )
        if result.timed_out:
            raise TimeoutError(f"{cmd[0]}: still running after {timeout} s")
        if result.start_error == "not_executable":
            raise PermissionError(result.stderr_text)
        if result.stdout_truncated or result.stderr_truncated:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout_text
            )
        return ExecResult(
            result.exit_code == 0, result.exit_code, result.stdout_text, result.stderr_text
        )

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, parents included."""
        with translated():
            await self._sandbox.files.write(file, contents)

    async def read_file(self, file: str, text: bool = True) -> str | bytes:  # type: ignore[override]
        """Read a file that is not larger than inspect_ai allows."""
        with translated():
            most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
            if (await self._sandbox.files.stat(file, follow=True)).size > most:
                raise OutputLimitExceededError(
                    SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None
                )
            data = await self._sandbox.files.read(file)
        return data.decode() if text else data

    @classmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted) -> None:
        """Nothing: it was not made here."""
