"""Waits until a pod that was just taken or made can run commands, or is known never to.

The daemon is dialled from early on, and the pod's news tell when there is nothing to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from gateway import versions
from gateway.daemons import NotListeningError
from sandman.errors import (
    BadRequestError,
    DeletedError,
    ImagePullError,
    SandmanError,
    UnreachableError,
    UnschedulableError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sized

    from gateway.config import Settings
    from gateway.daemons import Daemons
    from gateway.model import Instance
    from gateway.provider import Provider
    from gateway.roster import Roster
    from sandman import wire

    Greeting = Callable[[Instance, wire.Claim], Awaitable[wire.Info]] | None

FIRST_PAUSE_S = 0.003
"""Pause between two dials of a daemon that is just starting (a swap takes 200 ms, a start 20 ms)."""
PAUSE_EACH_S = 0.0005
"""Added up for each claim in hand it is the shortest pause: a dial that is refused costs a quarter of a
millisecond of processor, so that hundreds at once take up half of this program's."""
SWAP_FLOOR_S = 0.1
"""Seconds after a swap's claim in which no kubelet has stopped the old container and started the new
one (0.15 s at best): to dial earlier only takes processor time from that very work."""
EAGER_S = 1.0
"""Seconds for which the pause stays at its shortest: five times what a swap takes."""
LONGEST_PAUSE_S = 0.25


class Starting:
    """The way from a pod to a daemon that answers.

    Args:
        provider: explains why a pod does not start.
        daemons: reaches them.
        roster: has the news of pods.
        settings: `image_s`, `handshake_s`.
        in_hand: all claims that are being carried out.
    """

    def __init__(
        self,
        provider: Provider,
        daemons: Daemons,
        roster: Roster,
        settings: Settings,
        in_hand: Sized,
    ) -> None:
        self._provider = provider
        self._daemons = daemons
        self._roster = roster
        self._settings = settings
        self._in_hand = in_hand

    async def wait_ready(
        self, instance: Instance, claim: wire.Claim, greet: Greeting = None
    ) -> wire.Info:
        """Dial the daemon until it accepts the claim, or until the pod's news say that it never will.

        Args:
            instance: whose.
            claim: what it is told.
            greet: how, if not by the claim itself: `Preparation.meet`.

        Raises:
            SandmanError: why it will not become ready.
        """
        with trio.move_on_after(self._settings.image_s + self._settings.handshake_s):
            return await self._dial(instance, claim, greet)
        raise self._too_late(instance)

    async def _dial(self, instance: Instance, claim: wire.Claim, greet: Greeting) -> wire.Info:
        uid = instance.uid
        if claim.previous_boot_id is not None:
            await trio.sleep(SWAP_FLOOR_S)
        pause, begun = FIRST_PAUSE_S, trio.current_time()
        while True:
            instance = self._roster.registry.get(uid) or instance
            await self._check(uid, instance)
            if instance.address is not None:
                try:
                    info = await (greet or self._daemons.claim)(instance, claim)
                except BadRequestError as error:
                    if error.field != "lease" or claim.lease is None:
                        raise
                    # A daemon from before there were leases; its placeholder may be days old.
                    claim = claim._replace(lease=None)
                    continue
                except NotListeningError:
                    # A refused connection costs nothing beside what a late one costs the caller.
                    if trio.current_time() - begun > EAGER_S:
                        pause = min(pause * 1.3, LONGEST_PAUSE_S)
                else:
                    versions.check(info.version, instance.id)
                    return info
                wait = max(pause, PAUSE_EACH_S * len(self._in_hand))
            else:
                begun, wait = trio.current_time(), LONGEST_PAUSE_S
            with trio.move_on_after(wait):
                await self._roster.wait_change(uid)

    async def _check(self, uid: str, instance: Instance) -> None:
        """Raise when the pod will never be ready."""
        ended = self._roster.registry.ending(instance.id)
        ending = instance.ending or (ended[1] if ended else None)
        if ending is None and not instance.is_stuck and self._roster.registry.get(uid) is not None:
            return
        known = await self._provider.explain(instance)
        if known is not None:
            raise known.error(instance.id)
        if instance.is_stuck and ending is None and instance.waiting is not None:
            reason, message = instance.waiting
            raise ImagePullError(f"{instance.image}: {reason}: {message}", sandbox=instance.id)
        if ending is None:
            raise DeletedError("the pod went away before it was ready", sandbox=instance.id)
        raise ending.error(instance.id)

    def _too_late(self, instance: Instance) -> SandmanError:
        now = self._roster.registry.get(instance.uid) or instance
        if now.node is None:
            return UnschedulableError("no node had room in time", sandbox=instance.id)
        if not now.running:
            return ImagePullError(
                f"image {now.image} was not there in time",
                sandbox=instance.id,
                facts={"pull": "timeout"},
            )
        return UnreachableError("the daemon did not answer in time", sandbox=instance.id)
