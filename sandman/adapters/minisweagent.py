"""mini-swe-agent's environment: `environment_class: sandman.adapters.minisweagent.SandmanEnvironment`.

What differs from its Docker environment is in docs/adapters.md.
"""

from __future__ import annotations

import atexit
import os
import platform
from typing import TYPE_CHECKING, Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge

from sandman._core.config import RELEASE_LIMIT_S
from sandman.adapters.lending import Afterwards, Lending
from sandman.adapters.spec import SandboxSpec
from sandman.errors import CallerError
from sandman.sync import Client

if TYPE_CHECKING:
    import logging

    from sandman.sync import Sandbox
    from sandman.wire import ExecResult

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The first line of a command's output that ends the task."""
KERNEL = {"system": "ostype", "release": "osrelease", "version": "version", "node": "hostname"}
"""What templates call it, and the sandbox's kernel."""

_clients: Lending[Client] = Lending(Client)


class SandmanEnvironmentConfig(SandboxSpec):
    """What sandbox is wanted, and how commands run in it; the latter named as in `DockerEnvironmentConfig`.

    `cwd`: of commands; without it the sandbox's. `timeout`: seconds. `forward_env`: variables of this process, where they
    are set. `interpreter`: to which a command is handed as the last argument.
    """

    cwd: str = ""
    timeout: int = 30
    forward_env: list[str] = []  # noqa: RUF012 - a field of a model
    interpreter: list[str] = ["bash", "-lc"]  # noqa: RUF012 - a field of a model


class SandmanEnvironment:
    """A sandbox that lives as long as this object, or until `cleanup()`.

    Args:
        config_class: the model of the configuration.
        logger: unused; other environments take it.
        kwargs: see SandmanEnvironmentConfig.

    Raises:
        SandmanError: there is no such sandbox to be had.
    """

    def __init__(
        self,
        *,
        config_class: type[SandmanEnvironmentConfig] = SandmanEnvironmentConfig,
        logger: logging.Logger | None = None,
        **kwargs: Any,  # noqa: ANN401 - of the model
    ) -> None:
        del logger
        self.config = config_class(**kwargs)
        client = _clients.borrow()
        try:
            self.sandbox: Sandbox = client.create(**self.config.options())
        except BaseException:
            _give_back()
            raise
        self._client = client
        self._kept = _forgotten.keep(self, client, self.sandbox.id)
        self._kernel = _kernel(self.sandbox)

    def cleanup(self) -> None:
        """Release the sandbox; may be repeated."""
        if self._kept.detach() is not None:
            _release(self._client, self.sandbox.id)

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - mini-swe-agent's
        """What prompts may name: the configuration, and the sandbox's kernel as `platform.uname()` has it."""
        told: dict[str, Any] = recursive_merge(self.config.model_dump(), self._kernel, kwargs)
        return told

    def serialize(self) -> dict[str, Any]:
        """For the trajectory."""
        kind = type(self)
        told = {
            "environment": self.config.model_dump(mode="json"),
            "environment_type": f"{kind.__module__}.{kind.__name__}",
            "sandbox": self.sandbox.id,
            "image_digest": self.sandbox.info.image_digest,
        }
        return {"info": {"config": told}}

    def execute(
        self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None
    ) -> dict[str, Any]:
        """Run `action["command"]`: `output` (both streams as they came), `returncode`, `exception_info`.

        Raises:
            Submitted: the command says that the task is done.
            SandmanError: the sandbox is lost, or the way to it: nothing is known of the command.
        """
        command, limit = action.get("command", ""), timeout or self.config.timeout
        forwarded = {
            name: os.environ[name] for name in self.config.forward_env if name in os.environ
        }
        try:
            result = self.sandbox.exec(
                [*self.config.interpreter, command],
                cwd=cwd or self.config.cwd or None,
                env=forwarded | self.config.env,
                timeout_s=limit,
                merge_stderr=True,
            )
        except CallerError as error:
            if self.sandbox.refresh().state != "ready":
                raise
            return _failed("", type(error).__name__, str(error))
        output = _told(result, command, limit)
        _check_finished(output)
        return output


def _release(client: Client, sandbox: str) -> None:
    try:
        client.release(sandbox, quietly=True)
    finally:
        _give_back()


def _give_back() -> None:
    if (client := _clients.give_back()) is not None:
        client.close()


_forgotten = Afterwards(_release)
atexit.register(_forgotten.end, RELEASE_LIMIT_S)


def _kernel(sandbox: Sandbox) -> dict[str, str]:
    read = {
        name: sandbox.files.read_text(f"/proc/sys/kernel/{file}").strip()
        for name, file in KERNEL.items()
    }
    return {**read, "machine": platform.machine()}


def _told(result: ExecResult, command: str, limit: float) -> dict[str, Any]:
    text = result.stdout_text + result.stderr_text  # stderr: why it did not start
    if result.timed_out:
        return _failed(text, "TimeoutExpired", f"{command!r} timed out after {limit} seconds")
    return {"output": text, "returncode": result.exit_code, "exception_info": ""}


def _failed(output: str, kind: str, words: str) -> dict[str, Any]:
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {words}",
        "extra": {"exception_type": kind, "exception": words},
    }


def _check_finished(output: dict[str, Any]) -> None:
    lines = output["output"].lstrip().splitlines(keepends=True)
    if lines and lines[0].strip() == SUBMIT and output["returncode"] == 0:
        submission = "".join(lines[1:])
        extra = {"exit_status": "Submitted", "submission": submission}
        raise Submitted({"role": "exit", "content": submission, "extra": extra})
