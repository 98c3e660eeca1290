"""Carries out the steps that prepare a sandbox, by its daemon's own calls, before it is anybody's.

Nothing of it is ever done twice on one pod: what is left half prepared (this process died, the call was
cancelled) is deleted and not gone on with.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

import trio

from gateway.daemons import LostError, NotListeningError
from sandman import names, wire
from sandman.errors import (
    BadRequestError,
    DeletedError,
    PrepareFailedError,
    SandmanError,
    UnreachableError,
)
from sandman.problems import from_problem

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from gateway.config import Settings
    from gateway.daemons import Daemons
    from gateway.model import Instance
    from gateway.roster import Roster
    from gateway.steps import Call, Steps

AT_ONCE = 128
"""Preparations under way: each holds a connection, and at worst 1 MiB of a step's answer."""
ANSWER_MAX_BYTES = 1024 * 1024
"""Of a step's answer: 16 KiB of output, each byte of which may take six in JSON and be told again in base64."""
REPLACEABLE = frozenset({"evicted", "preempted", "node_lost", "deleted"})
"""Losses before the handshake that another placeholder makes good without the caller's knowing."""
TAIL_CHARS = 2048
"""Of a failed step's output: its last words."""


class Preparation:
    """Prepares sandboxes.

    Args:
        daemons: the way to them.
        roster: tells when a pod has ended meanwhile.
        settings: `prepare_s`, `loss_s`.
    """

    def __init__(self, daemons: Daemons, roster: Roster, settings: Settings) -> None:
        self._daemons = daemons
        self._roster = roster
        self._settings = settings
        self._limiter = trio.CapacityLimiter(AT_ONCE)

    async def meet(self, instance: Instance, claim: wire.Claim) -> wire.Info:
        """What the daemon says of itself that would be told of this claim; it is told nothing.

        Raises:
            NotListeningError: it is not there yet.
        """
        info = await self._daemons.info(instance)
        if info.boot_id == claim.previous_boot_id:
            raise NotListeningError("the daemon from before the swap")
        return info

    async def run(self, instance: Instance, boot_id: str, steps: Steps) -> None:
        """Carry out all steps, one after the other.

        Args:
            instance: the pod, whose daemon answers and was not claimed.
            boot_id: the daemon start that is meant.
            steps: what to do.

        Raises:
            PrepareFailedError: a step failed, or all together took longer than `prepare_s`. The facts
                hold its index, exit code and the end of its output.
            SandmanError: the pod was lost.
        """
        at = 0
        async with self._limiter:
            with trio.move_on_after(self._settings.prepare_s):
                for at, call in enumerate(steps.calls):
                    await self._step(instance, boot_id, at, call)
                return
        raise PrepareFailedError(
            f"step {at} was not over when prepare_s={self._settings.prepare_s:g} s for all steps were",
            sandbox=instance.id,
            facts={"step": at, "timed_out": True},
        )

    async def _step(self, instance: Instance, boot_id: str, at: int, call: Call) -> None:
        with trio.CancelScope() as scope, self._roster.registry.during(instance.uid, scope):
            # It may have ended before anybody listened.
            self._check(instance)
            try:
                status, data = await self._call(instance, boot_id, call)
            except LostError as error:
                await self._raise_loss(instance, error)
            else:
                _judge(instance, at, call, status, data)
                return
        self._check(instance)
        raise DeletedError("its pod went away while it was prepared", sandbox=instance.id)

    async def _call(self, instance: Instance, boot_id: str, call: Call) -> tuple[int, bytes]:
        headers = [
            (b"content-type", call.media_type.encode()),
            (names.HEADER_BOOT_ID.encode(), boot_id.encode()),
        ]
        opening = self._daemons.open(instance, call.method, call.path, headers, call.body)
        async with opening as response:
            data = bytearray()
            pieces = cast("AsyncGenerator[bytes, None]", response.aiter_raw())
            async with contextlib.aclosing(pieces):
                async for chunk in pieces:
                    data += chunk
                    if len(data) > ANSWER_MAX_BYTES:
                        raise LostError("what answers there is not the daemon", sent=True)
            return response.status_code, bytes(data)

    async def _raise_loss(self, instance: Instance, lost: LostError) -> None:
        """The pod's own news say why within some seconds, or nobody knows."""
        with trio.move_on_after(self._settings.loss_s):
            while True:
                self._check(instance)
                await self._roster.wait_change(instance.uid)
        raise UnreachableError(f"it was lost while it was prepared: {lost}", sandbox=instance.id)

    def _check(self, instance: Instance) -> None:
        """Raise when the pod has ended."""
        now = self._roster.registry.get(instance.uid)
        remembered = self._roster.registry.ending(instance.id)
        if now is not None and now.ending is not None:
            raise now.ending.error(instance.id)
        if remembered is not None:
            raise remembered[1].error(instance.id)


def check_boot(info: wire.Info, boot_id: str | None) -> wire.Info:
    """The same, when it is of this start. What was prepared in another daemon start is not there any more.

    Raises:
        DeletedError: this is another than `boot_id`; another pod makes it good.
    """
    if boot_id not in {None, info.boot_id}:
        raise DeletedError("its daemon was started anew before it was handed over")
    return info


def _judge(instance: Instance, at: int, call: Call, status: int, data: bytes) -> None:
    """Raise unless the step did what it should."""
    try:
        answer = wire.load_object(data)
        if not 200 <= status < 300:
            refusal = from_problem(answer, status)
            if refusal.reason == "died":  # another daemon start than the one that was met
                raise refusal
            raise _failed(instance, at, str(refusal), {"reason": refusal.reason})
        if call.path != "/v1/exec":
            return
        result = wire.ExecResult.from_json(answer)
    except BadRequestError as error:
        text = f"what answers there is not the daemon: {error.detail}"
        raise UnreachableError(text, sandbox=instance.id, cause="sandbox") from error
    if not result.ok:
        facts: dict[str, object] = {
            "exit_code": result.exit_code,
            "signal": result.signal,
            "timed_out": result.timed_out,
            "oom_killed": result.oom_killed,
            "output": result.stdout_text[-TAIL_CHARS:],
        }
        told = "it was timed out" if result.timed_out else f"exit code {result.exit_code}"
        raise _failed(instance, at, told, facts)


def _failed(instance: Instance, at: int, text: str, facts: dict[str, object]) -> SandmanError:
    return PrepareFailedError(
        f"step {at} of prepare failed: {text}", sandbox=instance.id, facts={"step": at, **facts}
    )
