"""Why a sandbox went silent: its end, when somebody knows of one, or that it is out of reach."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import trio

from gateway import reach
from gateway.daemons import LostError, NotListeningError
from sandman import names
from sandman.errors import DeletedError, OutcomeUnknownError, SandmanError, UnreachableError

if TYPE_CHECKING:
    from gateway.config import Settings
    from gateway.either import Known, Reader
    from gateway.model import Instance
    from gateway.upstream import Upstream

KNOCK_S = 1.0
"""Seconds between two looks whether a sandbox answers again, of which nothing came for a while."""


class Losses:
    """Finds out.

    Args:
        roster: which pod has ended.
        upstream: the way to the daemons.
        pods: asked when the watch does not know yet why a daemon went silent.
        settings: `loss_s`.
    """

    def __init__(self, roster: Known, upstream: Upstream, pods: Reader, settings: Settings) -> None:
        self._roster = roster
        self._registry = roster.registry
        self._upstream = upstream
        self._pods = pods
        self._settings = settings

    async def diagnose(
        self, instance: Instance, lost: LostError | None, method: str, until: float
    ) -> SandmanError:
        """Why the daemon went silent: what is known at once, else what is found out in `loss_s`.

        Args:
            instance: whose.
            lost: what became of the call; None: the sandbox has ended.
            method: of the call.
            until: when its caller must have heard that a sandbox cannot be reached, on trio's clock.
        """
        since, sent = (None, False) if lost is None else (lost.since, lost.sent)
        now, loss_s = trio.current_time(), self._settings.loss_s
        answers = False
        with trio.move_on_at(reach.search_until(now, until, loss_s, since, sent=sent)):
            async with trio.open_nursery() as nursery:

                async def knock() -> None:
                    nonlocal answers
                    await self._answered(instance)
                    answers = True
                    nursery.cancel_scope.cancel()

                if since is not None:
                    nursery.start_soon(knock)
                error = await self._reason(instance)
                nursery.cancel_scope.cancel()
                return error
        return _out_of_reach(instance, lost, method, None if answers else since)

    async def _reason(self, instance: Instance) -> SandmanError:
        """Waits until it is known why this sandbox is no more."""
        while (error := self.known_end(instance)) is None:
            if await self._is_gone(instance):
                return self.known_end(instance) or DeletedError(
                    "somebody deleted its pod", sandbox=instance.id
                )
            if self.known_end(instance) is None:
                with trio.move_on_after(1.0):
                    await self._roster.wait_change(instance.uid)
        return error

    async def _answered(self, instance: Instance) -> None:
        """Waits until the daemon of a sandbox that was silent answers again."""
        while True:
            with contextlib.suppress(NotListeningError, SandmanError):
                await self._upstream.info(instance)
                return
            await trio.sleep(KNOCK_S)

    def known_end(self, instance: Instance) -> SandmanError | None:
        """Why this sandbox is no more; None while nobody knows of an end."""
        now = self._registry.get(instance.uid)
        if now is not None and now.ending is not None:
            return now.ending.error(instance.id)
        remembered = self._registry.ending(instance.id)
        return None if remembered is None else remembered[1].error(instance.id)

    async def _is_gone(self, instance: Instance) -> bool:
        """Ask the API server itself: the watch may be behind."""
        try:
            now = await self._pods.read(instance.namespace, instance.name)
        except SandmanError:
            return False
        if now is None or now.uid != instance.uid:
            return True
        if now.ending is not None:
            self._registry.put(now)
        return False


def _out_of_reach(
    instance: Instance, lost: LostError | None, method: str, since: float | None
) -> SandmanError:
    """Nobody knows why. `since`: when it was last heard of, where it still is not."""
    detail = f"the sandbox does not answer: {lost}" if lost else "the sandbox does not answer"
    # A caller that asks again anyway learns how much of its patience was spent on this already.
    silent_s = None if since is None else round(trio.current_time() - since, 1)
    facts = None if silent_s is None else {names.FACT_SILENT_S: silent_s}
    if lost is not None and lost.sent and method in {"POST", "PATCH"}:
        return OutcomeUnknownError(
            f"{detail}; the command may or may not have run", sandbox=instance.id, facts=facts
        )
    return UnreachableError(detail, sandbox=instance.id, retry_after=1.0, facts=facts)
