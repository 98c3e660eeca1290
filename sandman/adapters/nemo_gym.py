"""NeMo Gym's sandbox provider `sandman`: `AsyncSandbox({"sandman": {…}}, SandboxSpec(image=…))`.

Found by its entry point. What differs from other providers is in docs/adapters.md.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from nemo_gym.sandbox.providers.base import (
    SandboxCreateError,
    SandboxExecResult,
    SandboxHandle,
    SandboxStatus,
)
from pydantic import ValidationError

from sandman import errors
from sandman.adapters import spec as specs
from sandman.adapters.lending import Holding

if TYPE_CHECKING:
    from pathlib import Path

    from nemo_gym.sandbox.providers.base import SandboxSpec

NO_EXIT_CODE = 125
"""The return code of a command that has none of its own, as in NeMo Gym's other providers."""
TIMED_OUT = "timeout"
_STATES = {"ready": SandboxStatus.RUNNING, "ending": SandboxStatus.STOPPED}
_ASKED_FOR = {"released", "expired", "idle", "not_found"}
"""Reasons of an end that is no error; of what ended long ago nothing is known any more."""


class SandmanProvider:
    """Sandboxes of Sandman.

    Args:
        defaults: what sandboxes are wanted, where a task's own specification does not say it; see `sandman.adapters.spec`.

    Raises:
        ValueError: there is no such setting.
    """

    name = "sandman"

    def __init__(self, **defaults: Any) -> None:  # noqa: ANN401 - of a configuration file
        self._defaults = specs.SandboxSpec(**defaults).model_dump(exclude_unset=True)

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Allocate a sandbox.

        Raises:
            SandboxCreateError: there is none to be had; its cause says why.
        """
        try:
            holding = await Holding.acquire(_wanted(self._defaults, spec).options())
        except (errors.SandmanError, ValidationError) as error:
            raise SandboxCreateError(str(error)) from error
        return SandboxHandle(holding.box.id, self.name, holding)

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a command by the image's shell. A timeout is `error_type` "timeout", with what was written by then.

        Raises:
            SandmanError: the sandbox is lost, or the way to it: nothing is known of the command.
        """
        result = await handle.raw.box.run(
            command, cwd=cwd, env=env or {}, timeout_s=timeout_s, user=user
        )
        code, kind = result.exit_code, None
        if result.timed_out:
            code, kind = NO_EXIT_CODE, TIMED_OUT
        return SandboxExecResult(result.stdout_text, result.stderr_text, code, kind)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        """Copy one file of this machine, parents included."""
        await handle.raw.box.files.upload(source_path, target_path)

    async def download_file(
        self, handle: SandboxHandle, source_path: str, target_path: Path
    ) -> None:
        """Copy one file to this machine, parents included."""
        target_path.parent.mkdir(parents=True, exist_ok=True)
        await handle.raw.box.files.download(source_path, target_path)

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        """How it is; never raises."""
        try:
            info = await handle.raw.box.refresh()
        except errors.SandmanError as error:
            return _end(error.reason, is_over=error.status == HTTPStatus.GONE)
        if info.state == "ended":
            return _end(str((info.ended or {}).get("reason")), is_over=True)
        return _STATES.get(info.state or "", SandboxStatus.UNKNOWN)

    async def close(self, handle: SandboxHandle) -> None:
        """Release it; may be repeated."""
        await handle.raw.release()

    async def aclose(self) -> None:
        """Nothing: the client goes with the last sandbox."""


def _end(reason: str, *, is_over: bool) -> SandboxStatus:
    if reason in _ASKED_FOR:
        return SandboxStatus.STOPPED
    return SandboxStatus.ERROR if is_over else SandboxStatus.UNKNOWN


def _wanted(defaults: dict[str, Any], asked: SandboxSpec) -> specs.SandboxSpec:
    """What is wanted: the task's specification over its `provider_options` over the provider's defaults.

    Raises:
        SandboxCreateError: what Sandman does not do.
    """
    resources = asked.resources
    refused = {
        "entrypoint": asked.entrypoint,
        "resources.disk_gib": resources.disk_gib,
        "resources.gpu": resources.gpu,
        "resources.gpu_type": resources.gpu_type,
    }
    if names := [name for name, value in refused.items() if value]:
        raise SandboxCreateError(f"the sandbox provider sandman does not do: {', '.join(names)}")
    memory = resources.memory_mib
    limits = {"cpu": resources.cpu, "memory": f"{memory}Mi" if memory else None}
    told = {
        "image": asked.image,
        "max_s": asked.ttl_s,
        "wait_s": asked.ready_timeout_s,
        "workdir": asked.workdir,
        "env": asked.env,
        "labels": asked.metadata,
        "resources": {name: value for name, value in limits.items() if value},
    }
    given = {name: value for name, value in told.items() if value}
    return specs.SandboxSpec(**{**defaults, **asked.provider_options, **given})
