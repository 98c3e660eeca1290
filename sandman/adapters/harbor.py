"""Harbor's environment: `harbor run --env sandman.adapters.harbor:SandmanEnvironment`.

What differs from its Docker environment is in docs/adapters.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.environments.definition import should_use_prebuilt_docker_image
from harbor.environments.options import EnvironmentOptions
from harbor.models.task.config import NetworkMode, NetworkPolicy
from harbor.models.trial.config import ResourceMode
from typing_extensions import override

from sandman import errors
from sandman._core.config import Settings
from sandman.adapters.lending import Holding
from sandman.adapters.spec import SandboxSpec

if TYPE_CHECKING:
    from pathlib import Path

    from sandman.client import Sandbox, SandboxOptions

TIMED_OUT = 124
"""The return code of a command whose time was over, as of `timeout`."""
CLOSED = "none"
"""The egress profile of tasks without a network."""


class SandmanOptions(SandboxSpec, EnvironmentOptions):
    """`--ek NAME=VALUE`: what sandbox is wanted, beyond what the task says.

    `network` is the egress profile of tasks that want the internet; without it the pool's own.
    """


class SandmanEnvironment(BaseEnvironment):  # type: ignore[misc, unused-ignore]
    """A sandbox for each trial, of a task's `docker_image`."""

    options_model = SandmanOptions
    options: SandmanOptions

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - Harbor's
        self._holding: Holding | None = None
        super().__init__(*args, **kwargs)

    @staticmethod
    @override
    def type() -> str:
        return "sandman"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True, dynamic_network_policy=True)

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(
            cpu_limit=True, memory_limit=True, fractional_cpus=True
        )

    @classmethod
    @override
    def preflight(cls, kwargs: dict[str, Any] | None = None) -> None:
        """Before any trial: is it said where the gateway is?

        Raises:
            SystemExit: it is not.
        """
        super().preflight(kwargs)
        try:
            Settings.load()
        except errors.SandmanError as error:
            raise SystemExit(str(error)) from error

    @property
    def _image(self) -> str | None:
        image: str | None = self.options.image or self.task_env_config.docker_image
        return image

    @property
    def _box(self) -> Sandbox:
        if self._holding is None:
            raise RuntimeError("the environment is not started")
        return self._holding.box

    @override
    def _validate_definition(self) -> None:
        if not self._image:
            raise ValueError(
                "Sandman builds no images: name one as docker_image of the task's [environment], "
                "or by --ek image=…"
            )

    def _profile(self, policy: NetworkPolicy) -> str | None:
        """The egress profile of a policy; None: the pool's own."""
        if policy.network_mode == NetworkMode.NO_NETWORK:
            return CLOSED
        return self.options.network

    def _wanted(self) -> SandboxOptions:
        wanted = self.options.options()
        wanted["image"] = self._image
        wanted["labels"] = {
            "framework": "harbor", "session": self.session_id, **wanted.get("labels", {})
        }  # fmt: skip
        wanted["network"] = self._profile(self.network_policy)
        if self.task_env_config.workdir:
            wanted["workdir"] = self.task_env_config.workdir
        limits: dict[str, str | float] = {}
        if cpus := self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT):
            limits["cpu"] = cpus
        if memory := self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT):
            limits["memory"] = f"{memory}Mi"
        if limits:
            wanted["resources"] = limits  # type: ignore[typeddict-item]
        return wanted

    @override
    async def start(self, force_build: bool) -> None:
        """Allocate the sandbox.

        Raises:
            SandboxBuildFailedError: there is no such image, or not for this caller: it is no use to try again.
            SandmanError: there is none to be had.
        """
        if self.task_env_config.docker_image and not should_use_prebuilt_docker_image(
            self.environment_dir,
            docker_image=self.task_env_config.docker_image,
            force_build=force_build,
        ):
            raise SandboxBuildFailedError("Sandman builds no images: run it without --force-build")
        try:
            self._holding = await Holding.acquire(self._wanted())
        except (errors.ImageNotFoundError, errors.ImageDeniedError) as error:
            raise SandboxBuildFailedError(str(error)) from error
        made = await self.ensure_dirs(self._mount_targets(writable_only=True))
        if made is not None and made.return_code:
            raise RuntimeError(f"directories for logs could not be made: {made.stderr}")
        await self._upload_environment_dir_after_start()

    @override
    async def stop(self, delete: bool) -> None:
        holding, self._holding = self._holding, None
        if holding is None:
            return
        if not delete:
            self.logger.warning(
                "sandbox %s stays until this process ends: sandman shell %s",
                holding.box.id,
                holding.box.id,
            )
            return
        await holding.release()

    @override
    async def _apply_network_policy(self, network_policy: NetworkPolicy) -> None:
        """Comes back when a probe from inside has shown that it is in force."""
        profile = self._profile(network_policy)
        if profile is None:
            raise ValueError(
                "a task that wants the internet for a part of its time needs the name of an "
                "egress profile: --ek network=…"
            )
        await self._box.set_network(profile)

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command by bash. A timeout is return code 124, with what was written by then.

        Raises:
            SandmanError: the sandbox is lost, or the way to it: nothing is known of the command.
        """
        result = await self._box.exec(
            ["bash", "-c", command],
            cwd=cwd,
            env=self._merge_env(env) or {},
            user=self._resolve_user(user),
            timeout_s=timeout_sec or None,
        )
        stderr = result.stderr_text
        if result.timed_out:
            stderr += f"\nCommand timed out after {timeout_sec} seconds"
        code = TIMED_OUT if result.timed_out else result.exit_code
        return ExecResult(stdout=result.stdout_text, stderr=stderr, return_code=code)

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self._box.files.upload(source_path, target_path, user="root")

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self._box.files.upload_dir(source_dir, target_dir, user="root")

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self._box.files.download(source_path, target_path, user="root")

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self._box.files.download_dir(source_dir, target_dir, user="root")
