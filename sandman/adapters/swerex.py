"""SWE-ReX's deployment: `SandmanDeployment(image=…)`, for SWE-agent and whatever else takes an `AbstractDeployment`.

What differs from its Docker deployment is in docs/adapters.md.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - SWE-ReX's own loop
import logging
import threading
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from swerex import exceptions
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.runtime import abstract

from sandman import errors
from sandman.adapters.lending import Holding
from sandman.adapters.spec import SandboxSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from sandman.client import Sandbox, Session, SessionResult
    from sandman.wire import ExecResult

Answer = TypeVar("Answer")

_OF_PATHS: dict[type[errors.SandmanError], type[OSError]] = {
    errors.PathNotFoundError: FileNotFoundError,
    errors.IsADirectoryPathError: IsADirectoryError,
    errors.NotADirectoryPathError: NotADirectoryError,
    errors.PathDeniedError: PermissionError,
}


class SandboxError(exceptions.SwerexException, RuntimeError):
    """The sandbox, or the way to it, failed; nothing is known of the command. `__cause__` is ours, with reason and cause."""


@contextmanager
def translated() -> Iterator[None]:
    """Our errors as SWE-ReX's."""
    try:
        yield
    except tuple(_OF_PATHS) as error:
        raise _OF_PATHS[type(error)](error.detail) from error
    except errors.SandmanError as error:
        raise SandboxError(str(error)) from error


class SandmanRuntime(abstract.AbstractRuntime):
    """One sandbox, as SWE-ReX sees it.

    Args:
        sandbox: which somebody else made, and will release.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._notices: dict[str, str] = {}
        """Of interruptions: a terminal shows at the next prompt what became of a job."""

    async def is_alive(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - SWE-ReX's parameter
    ) -> abstract.IsAliveResponse:
        """Whether it takes calls; `timeout` does not matter: the client has its own limits."""
        try:
            await self._sandbox.files.exists("/")
        except errors.SandmanError as error:
            return abstract.IsAliveResponse(is_alive=False, message=str(error))
        return abstract.IsAliveResponse(is_alive=True)

    async def create_session(
        self, request: abstract.CreateBashSessionRequest
    ) -> abstract.CreateBashSessionResponse:
        """Start a bash, without its start-up files."""
        with translated():
            try:
                session = await self._sandbox.session(  # noqa: S604 - in the sandbox
                    request.session, shell="bash", rc=False
                )
            except errors.ConflictError as error:
                raise exceptions.SessionExistsError(str(error)) from error
            startup = session.info.startup if session.info else b""
            output = startup.decode(errors="backslashreplace")
            for path in request.startup_source:
                output += _text(await session.run(f"source {path}"))
        return abstract.CreateBashSessionResponse(output=output)

    async def run_in_session(self, action: abstract.Action) -> abstract.BashObservation:
        """Run a command in a bash that keeps its state, or interrupt the one that runs.

        Raises:
            CommandTimeoutError: it goes on; `BashInterruptAction` ends it.
        """
        with translated():
            session = await self._find(action.session)
            if isinstance(action, abstract.BashInterruptAction):
                result = await session.interrupt(grace_s=max(0.1, action.timeout * action.n_retry))
                self._notices[action.session] = result.notices_text.lstrip("\n")
                return abstract.BashObservation(output=result.output_text.strip(), exit_code=0)
            if action.is_interactive_command or action.is_interactive_quit:
                return await self._talk(session, action)
            return await self._run(session, action)

    async def _run(self, session: Session, action: abstract.BashAction) -> abstract.BashObservation:
        await self._check_syntax(action.command)
        limit = self.limit(action)
        result = await session.run(
            action.command, timeout_s=limit, on_timeout="leave", expect=action.expect
        )
        observation = _observation(result, action)
        observation.output = self._notices.pop(action.session, "") + observation.output
        if action.check == "ignore":
            observation.exit_code = None
        elif action.check == "raise" and observation.exit_code != 0:
            raise exceptions.NonZeroExitCodeError(
                f"{action.error_msg}: command {action.command!r} failed with exit code "
                f"{result.exit_code}. Here is the output:\n{observation.output!r}"
            )
        return observation

    async def _talk(
        self, session: Session, action: abstract.BashAction
    ) -> abstract.BashObservation:
        limit, expect = self.limit(action), action.expect
        if session.info is not None and session.info.state == "running":
            result = await session.input(action.command + "\n", timeout_s=limit, expect=expect)
        else:
            result = await session.run(
                action.command, interactive=True, timeout_s=limit, expect=expect
            )
        observation = _observation(result, action)
        observation.exit_code = 0
        return observation

    async def _check_syntax(self, command: str) -> None:
        checked = await self._sandbox.exec(["bash", "-n"], stdin=f"{command}\n".encode())
        if not checked.ok:
            told = {"bash_stdout": checked.stdout_text, "bash_stderr": checked.stderr_text}
            raise exceptions.BashIncorrectSyntaxError(f"{command!r}: {told}", extra_info=told)

    async def close_session(
        self, request: abstract.CloseBashSessionRequest
    ) -> abstract.CloseBashSessionResponse:
        """End a bash, with all that it started."""
        with translated():
            await (await self._find(request.session)).close()
        return abstract.CloseBashSessionResponse()

    async def _find(self, name: str) -> Session:
        session = self._sandbox.attach_session(name)
        try:
            await session.refresh()
        except errors.NotFoundError as error:
            raise exceptions.SessionDoesNotExistError(str(error)) from error
        return session

    async def execute(self, command: abstract.Command) -> abstract.CommandResponse:
        """Run a command by itself. Its `env` is all the variables that it has, as of `subprocess.run`."""
        with translated():
            result = await self._execute(command)
        if result.timed_out:
            raise exceptions.CommandTimeoutError(f"timeout after {command.timeout} seconds")
        if command.check and result.exit_code:
            raise exceptions.NonZeroExitCodeError(
                f"{command.error_msg}: {command.command!r} failed with exit code {result.exit_code}. "
                f"Stdout:\n{result.stdout_text!r}\nStderr:\n{result.stderr_text!r}"
            )
        return abstract.CommandResponse(
            stdout=result.stdout_text, stderr=result.stderr_text, exit_code=result.exit_code
        )

    async def _execute(self, command: abstract.Command) -> ExecResult:
        argv = command.command if isinstance(command.command, list) else [command.command]
        if command.shell:
            argv = ["sh", "-c", *argv]
        return await self._sandbox.exec(
            argv,
            cwd=command.cwd,
            env=command.env or {},
            env_mode="merge" if command.env is None else "replace",
            merge_stderr=command.merge_output_streams,
            timeout_s=self.limit(command),
        )

    async def read_file(self, request: abstract.ReadFileRequest) -> abstract.ReadFileResponse:
        """A file's text, line ends as they are."""
        with translated():
            data = await self._sandbox.files.read(request.path)
        text = data.decode(request.encoding or "utf-8", request.errors or "strict")
        return abstract.ReadFileResponse(content=text)

    async def write_file(self, request: abstract.WriteFileRequest) -> abstract.WriteFileResponse:
        """Write a file, parents included."""
        with translated():
            await self._sandbox.files.write(request.path, request.content)
        return abstract.WriteFileResponse()

    async def upload(self, request: abstract.UploadRequest) -> abstract.UploadResponse:
        """Copy a file, or what is in a directory, of this machine."""
        files = self._sandbox.files
        with translated():
            if Path(request.source_path).is_dir():  # noqa: ASYNC240 - of this machine, and quick
                await files.upload_dir(request.source_path, request.target_path)
            else:
                await files.upload(request.source_path, request.target_path)
        return abstract.UploadResponse()

    async def close(self) -> abstract.CloseResponse:
        """Close all sessions."""
        with translated():
            for session in await self._sandbox.sessions():
                await session.close()
        return abstract.CloseResponse()

    def limit(self, asked: abstract.BashAction | abstract.Command) -> float | None:
        """Seconds that a command may take."""
        seconds: float | None = asked.timeout
        return seconds


def _text(result: SessionResult) -> str:
    """What a terminal would show: what came beside the command is in front of it."""
    shown = result.output_text
    if result.expected:
        shown = shown.removesuffix(result.expected)
    return result.notices_text.lstrip("\n") + shown


def _observation(result: SessionResult, action: abstract.BashAction) -> abstract.BashObservation:
    if result.timed_out:
        raise exceptions.CommandTimeoutError(
            f"timeout after {action.timeout} seconds while running command {action.command!r}"
        )
    return abstract.BashObservation(
        output=_text(result), exit_code=result.exit_code, expect_string=result.expected or ""
    )


class _Forwarding(abstract.AbstractRuntime):
    """A runtime that lives in another loop; a call that is cancelled is cancelled there."""

    def __init__(self, runtime: SandmanRuntime) -> None:
        self._runtime = runtime

    async def is_alive(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - SWE-ReX's parameter
    ) -> abstract.IsAliveResponse:
        return await _there(self._runtime.is_alive)

    async def create_session(
        self, request: abstract.CreateBashSessionRequest
    ) -> abstract.CreateBashSessionResponse:
        return await _there(self._runtime.create_session, request)

    async def run_in_session(self, action: abstract.Action) -> abstract.BashObservation:
        return await _there(self._runtime.run_in_session, action)

    async def close_session(
        self, request: abstract.CloseBashSessionRequest
    ) -> abstract.CloseBashSessionResponse:
        return await _there(self._runtime.close_session, request)

    async def execute(self, command: abstract.Command) -> abstract.CommandResponse:
        return await _there(self._runtime.execute, command)

    async def read_file(self, request: abstract.ReadFileRequest) -> abstract.ReadFileResponse:
        return await _there(self._runtime.read_file, request)

    async def write_file(self, request: abstract.WriteFileRequest) -> abstract.WriteFileResponse:
        return await _there(self._runtime.write_file, request)

    async def upload(self, request: abstract.UploadRequest) -> abstract.UploadResponse:
        return await _there(self._runtime.upload, request)

    async def close(self) -> abstract.CloseResponse:
        return await _there(self._runtime.close)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The client's loop, in a thread of its own, for as long as this process: SWE-agent makes a new loop for each call."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="sandman-swerex", daemon=True).start()
    return loop


async def _there(function: Callable[..., Coroutine[Any, Any, Answer]], *args: object) -> Answer:
    """Call it in the client's loop; who is cancelled here cancels it there."""
    call = asyncio.run_coroutine_threadsafe(function(*args), _loop())
    return await asyncio.wrap_future(call)


class SandmanDeploymentConfig(SandboxSpec):
    """What sandbox is wanted. `get_deployment` as SWE-ReX's own configurations have it."""

    type: Literal["sandman"] = "sandman"

    def get_deployment(self) -> SandmanDeployment:
        """A deployment that is not started."""
        return SandmanDeployment.from_config(self)


class SandmanDeployment(AbstractDeployment):  # type: ignore[misc, unused-ignore]
    """A sandbox from `start()` to `stop()`.

    Args:
        logger: for what SWE-ReX logs.
        kwargs: see SandmanDeploymentConfig.
    """

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any) -> None:  # noqa: ANN401 - of the model
        self.logger = logger or logging.getLogger("rex-deploy")
        self._config = SandmanDeploymentConfig(**kwargs)
        self._hooks = CombinedDeploymentHook()
        self._holding: Holding | None = None
        """Touched in the client's loop alone."""
        self._is_begun = False
        self._runtime: _Forwarding | None = None

    @classmethod
    def from_config(cls, config: SandmanDeploymentConfig) -> Self:
        """The deployment of a configuration."""
        return cls(**config.model_dump())

    def add_hook(self, hook: DeploymentHook) -> None:
        """Who is told what is going on."""
        self._hooks.add_hook(hook)

    @property
    def runtime(self) -> abstract.AbstractRuntime:
        """Takes the commands.

        Raises:
            DeploymentNotStartedError: it is not started.
        """
        if self._runtime is None:
            raise exceptions.DeploymentNotStartedError
        return self._runtime

    async def is_alive(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - SWE-ReX's parameter
    ) -> abstract.IsAliveResponse:
        """Whether the sandbox takes calls."""
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Allocate the sandbox.

        Raises:
            DeploymentStartupError: there is none to be had.
        """
        self._hooks.on_custom_step("Allocating a sandbox")
        try:
            self._is_begun = True
            holding = await _there(self._hold)
        except errors.SandmanError as error:
            raise exceptions.DeploymentStartupError(str(error)) from error
        self._runtime = _Forwarding(SandmanRuntime(holding.box))

    async def stop(self) -> None:
        """Release the sandbox; may be repeated."""
        self._runtime = None
        if self._is_begun:
            await _there(self._let_go)

    async def _hold(self) -> Holding:
        """In the client's loop: what is had there is kept, also when who waits for it is cancelled at that moment."""
        self._holding = await Holding.acquire(self._config.options())
        return self._holding

    async def _let_go(self) -> None:
        """In the client's loop, after whatever it is in the middle of."""
        holding, self._holding = self._holding, None
        if holding is not None:
            await holding.release()
