"""One attempt at one evaluation, in a sandbox of its own: patch, script, whole log. What happened, and no verdict yet."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from sandman._core.faults import CommandError
from sandman.errors import SandmanError
from sandman.evaluation import faults, ladder
from sandman.evaluation.certify import certify
from sandman.evaluation.scrub import TRUSTED, ScrubError, scrub_git
from sandman.wire import NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from sandman.client import Client, ExecResult, Follow, Process, Sandbox
    from sandman.evaluation.faults import Fault
    from sandman.evaluation.options import Plan
    from sandman.evaluation.predictions import Prediction
    from sandman.evaluation.rows import TaskRow

STEP_S = 300.0
"""Seconds for one command around the script."""
READER_AWAY_S = 120.0
"""For which the script lives on without its reader: a connection that says nothing is noticed after 60 s, and
another one is tried for 30 s."""
SCRATCH = "/tmp"  # nosec B108  # noqa: S108 - in a sandbox, of which local mode may share it with others: names there are used once
LOG = "test_output.txt"
APPLIED = "apply.txt"
CERTIFICATE = "certificate.json"
PATCH_FAILED = "patch_failed"
TIMED_OUT = "timed_out"
LOG_LIMIT = "log_limit"
MOST_TOLD = 4000
"""Characters of a command's last words that a record keeps."""


@dataclass(slots=True)
class Ran:
    """What happened. `stop`: why there is no whole log, through the patch's own doing; `fault`: why, through something else."""

    sandbox: str | None = None
    node: str | None = None
    image_digest: str | None = None
    applied_by: str | None = None
    stop: str | None = None
    detail: str = ""
    fault: Fault | None = None
    log: dict[str, object] | None = None
    oom_killed: bool = False
    begun: bool = False
    """From the patch on, what becomes of the sandbox may be its doing."""
    certificate: dict[str, object] | None = None
    facts: dict[str, object] = field(default_factory=dict)


class SetupError(Exception):
    """The caller's `setup` failed, or a command that it wanted to go well."""


class LogFile:
    """The log as it comes, byte for byte, with its length and its hash."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._hash = hashlib.sha256()
        self._file = path.open("wb")

    def write(self, data: bytes) -> None:
        """Append."""
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def close(self) -> dict[str, object]:
        """Close it; what it is."""
        self._file.close()
        return {"file": self.path.name, "bytes": self.size, "sha256": self._hash.hexdigest()}


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is to be done.

    Args:
        row: the task.
        prediction: the patch.
        plan: how.
        directory: where log, patch and script are kept; is there.
    """

    row: TaskRow
    prediction: Prediction
    plan: Plan
    directory: Path

    async def run(self, client: Client, avoid: Sequence[str] = ()) -> Ran:
        """Do it, in a fresh sandbox, released at the end.

        Args:
            client: of the gateway.
            avoid: nodes where earlier attempts failed.

        Raises:
            SandmanError: one after which no other evaluation would go better.
            OSError: the directory cannot be written.
        """
        ran = Ran()
        try:
            options = self.plan.sandbox_options(self.row.image, avoid)
            async with client.sandbox(**options) as box:
                ran.sandbox, ran.node = box.id, box.info.node
                ran.image_digest = box.info.image_digest
                ran.facts |= {"tier": box.info.tier, "ready_ms": box.info.timings.get("ready_ms")}
                await self._work(box, ran)
        except ScrubError as error:
            ran.fault = faults.settings("scrub", str(error))
        except SetupError as error:
            ran.fault = faults.settings(faults.SETUP, str(error))
        except SandmanError as error:
            if error.reason in faults.FATAL:
                raise
            ran.fault = faults.of(error, begun=ran.begun)
        return ran

    async def _work(self, box: Sandbox, ran: Ran) -> None:
        await self._set_up(box)
        if self.plan.scrub_git:
            scrubbed = await scrub_git(box, self.plan.workdir)
            ran.facts["scrubbed_refs"] = scrubbed.refs
        ran.begun = True
        if not self.prediction.control:
            await self._apply(box, ran)
        if ran.fault is None and ran.stop is None:
            await self._test(box, ran)

    async def _set_up(self, box: Sandbox) -> None:
        if self.plan.setup is None:
            return
        try:
            await self.plan.setup(box, self.row)
        except CommandError as error:
            raise SetupError(error.detail) from error
        except SandmanError:
            raise
        except Exception as error:  # it is the caller's, and may raise anything
            raise SetupError(f"{type(error).__name__}: {error}") from error

    async def _step(self, box: Sandbox, argv: tuple[str, ...]) -> ExecResult:
        return await box.exec(
            argv, cwd=self.plan.workdir, env=TRUSTED, timeout_s=STEP_S, merge_stderr=True
        )

    async def _apply(self, box: Sandbox, ran: Ran) -> None:
        patch = self.prediction.patch.encode("utf-8", "replace")
        await self._keep("patch.diff", patch)
        path = f"{SCRATCH}/patch-{uuid.uuid4().hex}.diff"
        await box.files.write(path, patch)
        await self._keep(APPLIED, await self._climb(box, path, ran))

    async def _climb(self, box: Sandbox, path: str, ran: Ran) -> bytes:
        """Attempt after attempt, until one does it; what they said."""
        told = b""
        for number, rung in enumerate(ladder.RUNGS):
            if number and await self._clean(box, ran):
                return told
            result = await self._step(box, (*rung, path))
            told += f"$ {ladder.name_of(rung)}\n".encode() + result.stdout
            if result.ok:
                ran.applied_by = ladder.name_of(rung)
                return told
            if self._broken(result, rung[0], ran):
                return told
        result = await self._step(box, (*ladder.CHECK, path))
        if result.ok:
            ran.applied_by = ladder.ALREADY
        elif not self._broken(result, "git", ran):
            ran.stop = PATCH_FAILED
            ran.detail = told.decode("utf-8", "replace").strip()[-MOST_TOLD:]
        return told

    async def _clean(self, box: Sandbox, ran: Ran) -> bool:
        """Put the tree back. Files that git may not remove stay, as with SWE-bench."""
        result = await box.run(
            ladder.CLEAN, cwd=self.plan.workdir, env=TRUSTED, timeout_s=STEP_S, merge_stderr=True
        )
        return self._broken(result, "git clean", ran)

    def _broken(self, result: ExecResult, what: str, ran: Ran) -> bool:
        """Whether it says nothing of the patch, and why in `ran`. Images without `patch` have one attempt less."""
        if what != ladder.LAX or result.start_error != NOT_FOUND:
            ran.fault = faults.of_result(result, f"{what} in {self.plan.workdir}")
        return ran.fault is not None

    async def _test(self, box: Sandbox, ran: Ran) -> None:
        # Before the script is there: what is asked of git, the patch may have made git do.
        before = await self._step(box, ladder.DIFF)
        script = self.row.script.encode("utf-8", "replace")
        await self._keep("eval.sh", script)
        exec_id = f"eval-{uuid.uuid4().hex}"
        path = f"{SCRATCH}/{exec_id}.sh"
        await box.files.write(path, script, mode=0o755)
        # Attached: a reader that is slow slows it down, and no byte is lost.
        process = await box.start(
            ["/bin/bash", path],
            detached=False,
            attached_grace_s=READER_AWAY_S,
            merge_stderr=True,
            cwd=self.plan.workdir,
            timeout_s=self.plan.timeout_s,
            exec_id=exec_id,
        )
        await self._follow(process, ran)
        if ran.fault is not None:
            return
        try:  # the log is whole: what comes after it decides nothing
            after = await self._step(box, ladder.DIFF)
            if before.ok and after.ok:
                ran.facts["tree_changed"] = after.stdout != before.stdout
            await self._certify(box, process.exec_id, ran)
        except SandmanError as error:
            ran.facts["after"] = f"{error.reason}: {error.detail}"

    async def _certify(self, box: Sandbox, exec_id: str, ran: Ran) -> None:
        try:
            found = await certify(box, [exec_id])
        except SandmanError as error:
            ran.facts["uncertified"] = f"{error.reason}: {error.detail}"
            return
        ran.certificate = found.to_json()
        ran.facts |= {"controlled": found.is_controlled, "reasons": list(map(str, found.reasons))}
        await self._keep("certificate.json", json.dumps(ran.certificate).encode())

    async def _follow(self, process: Process, ran: Ran) -> None:
        log = LogFile(self.directory / LOG)
        try:
            async with process.follow() as output:
                async for event in output:
                    log.write(event.data)
                    if log.size > self.plan.log_limit:
                        break
                else:
                    self._conclude(output, log.size, ran)
        finally:
            ran.log = log.close()
        if log.size > self.plan.log_limit:
            ran.stop = LOG_LIMIT
            ran.detail = f"the log is longer than {self.plan.log_limit} bytes"
            await process.kill()

    def _conclude(self, output: Follow, size: int, ran: Ran) -> None:
        """How the script ended, and whether its log is all that it wrote."""
        result = output.result
        ran.oom_killed = bool(result.oom_killed)
        ran.facts |= {
            "wall_s": result.wall_s,
            "cpu_s": result.cpu_s,
            "throttled_s": result.throttled_s,
            "peak_memory_bytes": result.peak_memory_bytes,
            "oom_killed": result.oom_killed,
            "script_exit_code": result.exit_code,
        }
        if result.start_error is not None:
            ran.fault = faults.not_started(result.start_error, f"/bin/bash in {self.plan.workdir}")
        elif output.gaps or size != result.stdout_bytes:
            ran.fault = faults.infrastructure(
                faults.LOG_LOST, f"{size} of {result.stdout_bytes} bytes of the log arrived"
            )
        elif result.abandoned:
            ran.fault = faults.infrastructure(
                faults.ABANDONED, "the script was ended: its reader was away for too long"
            )
        elif result.timed_out:
            ran.stop = TIMED_OUT
            ran.detail = f"the script took more than {self.plan.timeout_s:g} s"

    async def _keep(self, name: str, data: bytes) -> None:
        await anyio.Path(self.directory / name).write_bytes(data)
