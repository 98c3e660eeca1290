"""Ends attachments to workloads whose time is over, or whose caller may not any more: one replica, in rounds.

Who has called is asked of the daemon, as the `sweeper` does for sandboxes; nothing is written for it, neither on the
pod, which is its owner's, nor on the Lease. A daemon that does not answer keeps its attachment until its longest life
is over: perhaps another replica reaches it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import structlog
import trio

from gateway import leases, workloads
from gateway.daemons import NotListeningError
from gateway.ground import RunKey
from gateway.leases import Activity, Verdict
from gateway.model import Ending
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.attach import Attacher
    from gateway.daemons import Daemons
    from gateway.ground import Access
    from gateway.workloads import Attachment

log = structlog.get_logger()

EVERY_S = 15.0
"""Seconds between two looks at what has run out, is left over or is not allowed any more: the right is asked for
each time."""


class Detaching:
    """Looks after attachments.

    Args:
        attacher: has them, and ends them.
        access: who may.
        daemons: are asked, and told that a gateway is there.
        confirm: looks for a run's heartbeat at its source.
        wall: seconds since the epoch.
        grace_s: how long daemons outlive a lease that nobody renews.
    """

    def __init__(
        self,
        attacher: Attacher,
        access: Access,
        daemons: Daemons,
        confirm: Callable[[RunKey], Awaitable[None]],
        wall: Callable[[], float],
        *,
        grace_s: float,
    ) -> None:
        self._attacher = attacher
        self._attached = attacher.attached
        self._ledger = attacher.attached.ledger
        self._access = access
        self._daemons = daemons
        self._confirm = confirm
        self._wall = wall
        self._grace_s = grace_s
        self._since: float | None = None
        self._told: dict[str, float] = {}
        """When each daemon was last told that a gateway is there."""

    def __repr__(self) -> str:
        return f"<Detaching since={self._since}>"

    async def run(self, is_leader: Callable[[], bool]) -> None:
        """End what must end, until cancelled. One replica does it."""
        while True:
            await trio.sleep(EVERY_S)
            if not is_leader():
                self._since = None
                continue
            if self._since is None:
                self._since = trio.current_time()
            await self.sweep(self._since)

    async def sweep(self, since: float) -> None:
        """One look at all attachments. `since`: since when this replica leads."""
        found = self._attached.attachments()
        self._told = {one.uid: self._told[one.uid] for one in found if one.uid in self._told}
        for one in found:
            try:
                why = await self._due(one, since)
                if why is not None:
                    await self._attacher.end(one, why)
            except SandmanError as error:
                log.warning("an attachment could not be ended", pod=one.pod, error=str(error))

    async def _due(self, one: Attachment, since: float) -> Ending | None:
        now = self._wall()
        if now >= one.expires_at:
            return Ending("expired", "its longest life was over", at=one.expires_at)
        if self._attacher.is_over(one):
            return Ending("died", "its handshake was never done", at=now)
        if (why := await self._attacher.ending(one)) is not None:
            # Its caller hears why from memory, as of any sandbox that is gone.
            return why
        return await self._lapsed(one, since) or await self._forbidden(one, now)

    async def _forbidden(self, one: Attachment, now: float) -> Ending | None:
        who = one.identity
        if who is not None and not (
            await self._access.may_exec(who, one.namespace)
            or await self._access.may_exec(who, one.namespace, one.pod)
        ):
            text = f"{who.user} may not create pods/exec there any more"
            return Ending("released", text, at=now)
        return None

    # --- leases ---

    async def _lapsed(self, one: Attachment, since: float) -> Ending | None:
        """Why it ends for want of word of its caller, or of anything to do."""
        target = workloads.instance(one, self._attached.workload(one))
        verdict = self._verdict(one, since)
        if verdict is Verdict.ASK:
            await self._ask(one)
            verdict = self._verdict(one, since)
        if verdict is Verdict.LAPSED and one.terms.of_run and one.run is not None:
            await self._confirm(RunKey(one.tenant, one.run))
            verdict = self._verdict(one, since)
        if (why := leases.ending(target, verdict)) is None:
            await self._tell(one)
        return why

    def _verdict(self, one: Attachment, since: float) -> Verdict:
        return self._ledger.verdict(one.uid, trio.current_time(), since)

    async def _ask(self, one: Attachment) -> None:
        asked = trio.current_time()
        target = workloads.instance(one, self._attached.workload(one))
        try:
            info = await self._daemons.info(target)
        except (NotListeningError, SandmanError) as error:
            log.info("a workload's daemon could not be asked", pod=one.pod, error=str(error))
            return
        if info.claim_id == one.claim_id:
            activity = Activity(info.used_s, info.renewed_s, info.idle_s)
            self._ledger.heard(one.uid, asked, trio.current_time(), activity)

    async def _tell(self, one: Attachment) -> None:
        """A daemon that no call reaches for `ttl_s` and the grace lets its guest go: three times in that span each
        is told that a gateway is there."""
        ttl_s, now = one.terms.ttl_s, trio.current_time()
        if ttl_s is None or one.boot_id is None:
            return
        if now < self._told.get(one.uid, -math.inf) + (ttl_s + self._grace_s) / 3:
            return
        target = workloads.instance(one, self._attached.workload(one))
        try:
            await self._daemons.renew(target, ttl_s, asked=False)
        except (NotListeningError, SandmanError) as error:
            log.info("a workload's daemon could not be told", pod=one.pod, error=str(error))
            return
        self._told[one.uid] = now
