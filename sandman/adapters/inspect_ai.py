"""inspect_ai's sandbox provider `sandman`: `Task(…, sandbox="sandman")`.

Found by its entry point. What differs from inspect_ai's Docker provider is in docs/adapters.md.
"""

from __future__ import annotations

import errno
import shlex
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import yaml
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from typing_extensions import override

from sandman import errors
from sandman.adapters.lending import Holding
from sandman.adapters.spec import SandboxSpec
from sandman.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman.wire import ExecResult as Result

LABEL, TOOL = "framework", "inspect_ai"
"""On every sandbox of this provider, for `inspect sandbox cleanup sandman`."""

_OF_PATHS: dict[type[errors.SandmanError], tuple[type[OSError], int]] = {
    errors.PathNotFoundError: (FileNotFoundError, errno.ENOENT),
    errors.NotADirectoryPathError: (FileNotFoundError, errno.ENOTDIR),
    errors.IsADirectoryPathError: (IsADirectoryError, errno.EISDIR),
    errors.PathDeniedError: (PermissionError, errno.EACCES),
    errors.NoSpaceError: (OSError, errno.ENOSPC),
}


class SandmanConfig(SandboxSpec):
    """What sandbox a task or a sample wants: `sandbox=SandboxEnvironmentSpec("sandman", SandmanConfig(…))`."""


@contextmanager
def translated(path: str = "") -> Iterator[None]:
    """Our errors as inspect_ai's.

    What the sandbox's own processes did to it is `SandboxUnavailableError`, which a model is told of as a failed call.
    Faults of the infrastructure pass as they are: inspect_ai ends the sample with an error then and does not score it.
    """
    try:
        yield
    except tuple(_OF_PATHS) as error:
        kind, number = _OF_PATHS[type(error)]
        raise kind(number, error.detail, path) from error
    except errors.UserUnsupportedError as error:
        raise SandboxUserUnsupportedError(error.detail) from error
    except errors.TooLargeError as error:
        raise OutputLimitExceededError(
            SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None
        ) from error
    except errors.SandmanError as error:
        if error.cause == errors.SANDBOX:
            raise SandboxUnavailableError(str(error)) from error
        raise


def _spec(config: SandboxEnvironmentConfigType | None) -> SandboxSpec:
    """What is wanted; a text is the path of a file that says it."""
    if isinstance(config, SandboxSpec):
        return config
    if config is None:
        return SandmanConfig()
    if isinstance(config, str):
        return SandmanConfig(**(yaml.safe_load(Path(config).read_text("utf-8")) or {}))
    raise TypeError(
        f"the sandbox provider sandman takes a SandmanConfig or a file, not {type(config).__name__}"
    )


@sandboxenv(name="sandman")
class SandmanSandboxEnvironment(SandboxEnvironment):
    """A sandbox of Sandman, one for each sample.

    Args:
        holding: of the sandbox.
    """

    def __init__(self, holding: Holding) -> None:
        super().__init__()
        self.holding = holding
        self._sandbox = holding.box

    @override
    @classmethod
    def config_files(cls) -> list[str]:
        return ["sandman.yaml"]

    @override
    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> SandmanConfig:
        return SandmanConfig(**config)

    @override
    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Finds out before the first sample whether there is a gateway that knows this caller."""
        _spec(config)
        client = Client()
        try:
            await client.pools()
        finally:
            await client.aclose()

    @override
    @classmethod
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        options = _spec(config).options()
        options["labels"] = {LABEL: TOOL, **options.get("labels", {})}
        return {"default": cls(await Holding.acquire(options))}

    @override
    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(SandmanSandboxEnvironment).holding.release()

    @override
    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """Release one sandbox, or all that this caller has by this provider."""
        client = Client()
        try:
            ids = (
                [id] if id else [box.id for box in await client.list() if _is_ours(box.info.labels)]
            )
            for one in ids:
                await client.release(one)
        finally:
            await client.aclose()

    @override
    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """As inspect_ai has it. A command is never run twice, so `timeout_retry` does not matter."""
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
        _check(result, cmd, timeout)
        return ExecResult(
            result.exit_code == 0, result.exit_code, result.stdout_text, result.stderr_text
        )

    @override
    async def write_file(self, file: str, contents: str | bytes) -> None:
        with translated(file):
            await self._sandbox.files.write(file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    @override
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with translated(file):
            data = await self._sandbox.files.read(file, max_bytes=most)
        return data.decode() if text else data

    @override
    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """How to look into it: `sandman shell`.

        Raises:
            ConnectionError: it has ended, or the gateway does not answer.
        """
        try:
            state = (await self._sandbox.refresh()).state
        except errors.SandmanError as error:
            raise ConnectionError(str(error)) from error
        if state != "ready":
            raise ConnectionError(f"sandbox {self._sandbox.id} is {state}")
        as_whom = [] if user is None else ["--user", user]
        command = shlex.join(["sandman", "shell", *as_whom, self._sandbox.id])
        return SandboxConnection(type="sandman", command=command, container=self._sandbox.id)

    @override
    def default_polling_interval(self) -> float:
        return 0.2


def _is_ours(labels: object) -> bool:
    return isinstance(labels, dict) and labels.get(LABEL) == TOOL


def _check(result: Result, cmd: list[str], timeout: int | None) -> None:
    """Raise what inspect_ai wants raised of a command that has run, or could not."""
    if result.timed_out:
        error = TimeoutError(f"{cmd[0]}: still running after {timeout} s")
        if partial := result.stdout_text + result.stderr_text:
            error.truncated_output = partial  # type: ignore[attr-defined]
        raise error
    if result.start_error == "not_executable":
        raise PermissionError(errno.EACCES, result.stderr_text, cmd[0])
    for text, truncated in (
        (result.stdout_text, result.stdout_truncated),
        (result.stderr_text, result.stderr_truncated),
    ):
        if truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, text)
