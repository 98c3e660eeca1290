"""Which replica is the allocator: one Lease, one holder.

    holderIdentity = <pod>_<8 random>@<host:port>     who it is, and where calls are handed to

`candidacy` decides; this does what it says. A write that an old holder sent before it stood down, and
that arrives after, is caught by the `test` operations of each patch, not here.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog
import trio

from gateway.candidacy import Action, Candidacy, Leader, Timing, make_identity
from sandman.service import kube

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class Api(Protocol):
    """What is needed of `kube.Kube`."""

    async def get(
        self, resource: kube.Resource[T], name: str, *, namespace: str | None = None
    ) -> T:
        """Read one object."""

    async def create(
        self, resource: kube.Resource[T], body: object, *, namespace: str | None = None
    ) -> T:
        """Create one."""

    async def patch_merge(
        self, resource: kube.Resource[T], name: str, patch: object, *, namespace: str | None = None
    ) -> T:
        """Patch one; conditional by the version in the patch."""


class Election:
    """One replica's part in the election. Start `run` in a nursery; ask `is_leader`, `address`.

    Args:
        api: the API server.
        namespace: of the Lease.
        name: of the Lease.
        identity: of this replica, as its pod's name; made unique for this start.
        address: `host:port` where the other replicas reach this one.
        timing: the seconds; the defaults if None.
        wall: the time of day, written for people; nothing is decided by it.
    """

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        name: str,
        identity: str,
        address: str,
        timing: Timing | None = None,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._timing = timing or Timing()
        self._wall = wall
        self._candidacy = Candidacy(
            make_identity(identity, address, secrets.token_hex(4)), self._timing
        )
        self._must_look = True
        self._changed = trio.Event()
        self._announced: tuple[Leader | None, int] = (None, 0)
        self._leading: set[trio.CancelScope] = set()
        self._log = structlog.get_logger().bind(me=self._candidacy.me)

    def __repr__(self) -> str:
        return f"<Election {self._namespace}/{self._name} {self._candidacy!r}>"

    # --- what others ask -------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """This candidate's identity in the Lease."""
        return self._candidacy.me

    @property
    def is_leader(self) -> bool:
        """Whether this replica is the leader now. True by the clock, not by the last message."""
        return self._candidacy.is_leader(trio.current_time())

    @property
    def address(self) -> str | None:
        """Where the leader serves, or None when there is none to be known of."""
        leader = self.current()
        return leader.address if leader else None

    def current(self) -> Leader | None:
        """The leader, or None when there is none to be known of."""
        return self._candidacy.leader(trio.current_time())

    async def wait_change(self) -> Leader | None:
        """Wait until there is another leader, or none; the same as `current` afterwards."""
        await self._changed.wait()
        return self.current()

    async def while_leading(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` each time this replica becomes leader; cancel it when it is no more.

        The cancellation comes by the clock at the fence, though this program's other tasks be late.
        Returns when `work` does by itself.
        """
        while True:
            while not self.is_leader:
                await self._changed.wait()
            with trio.CancelScope(deadline=self._candidacy.leads_until) as scope:
                self._leading.add(scope)
                try:
                    await work()
                finally:
                    self._leading.discard(scope)
            if not scope.cancel_called:
                return

    # --- the loop --------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take part until cancelled; then stand down and release the Lease, within `release_s`."""
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._announce_by_the_clock)
                while True:
                    await self._turn()
        finally:
            self._candidacy.stand_down()
            self._announce()
            with trio.move_on_after(self._timing.release_s, shield=True):
                await self._release()

    async def _turn(self) -> None:
        """One look or write, and the wait until the next is due."""
        began = trio.current_time()
        try:
            with trio.fail_after(self._timing.call_s):
                await self._act()
        except (kube.KubeError, trio.TooSlowError) as error:
            # Whether a write was done is not known: look before the next.
            self._must_look = True
            self._log.info("election_call_failed", error=str(error) or "no answer in time")
        self._announce()
        if self.is_leader and not self._must_look:
            await trio.sleep_until(began + self._timing.renew_s)
        else:
            await trio.sleep(self._timing.poll_s)

    async def _act(self) -> None:
        if self._must_look or self._candidacy.holder != self._candidacy.me:
            await self._look()
        action = self._candidacy.action(trio.current_time())
        if action is not Action.WAIT:
            await self._write(action)

    async def _look(self) -> None:
        lease: kube.Lease | None = None
        with suppress(kube.NotFoundError):
            lease = await self._api.get(kube.LEASES, self._name, namespace=self._namespace)
        self._candidacy.observe(trio.current_time(), lease)
        self._must_look = False

    async def _write(self, action: Action) -> None:
        sent_at = trio.current_time()
        claim = self._candidacy.claim(self._wall())
        if action is Action.CREATE:
            body = {**claim, "metadata": {"name": self._name}}
            lease = await self._api.create(kube.LEASES, body, namespace=self._namespace)
        else:
            lease = await self._patch(claim)
        self._candidacy.granted(sent_at, trio.current_time(), lease)
        for scope in self._leading:
            scope.deadline = self._candidacy.leads_until

    async def _patch(self, patch: object) -> kube.Lease:
        return await self._api.patch_merge(
            kube.LEASES, self._name, patch, namespace=self._namespace
        )

    async def _release(self) -> None:
        try:
            if self._must_look:
                await self._look()
            if self._candidacy.holder != self._candidacy.me:
                return
            await self._patch(self._candidacy.release(self._wall()))
        except kube.KubeError as error:
            self._log.info("election_not_released", error=str(error))
        else:
            self._log.info("election_released")

    # --- news ------------------------------------------------------------------------------------

    async def _announce_by_the_clock(self) -> None:
        """Tell of what comes by time alone: the fence, and another's silence."""
        while True:
            await trio.sleep(self._timing.poll_s)
            self._announce()

    def _announce(self) -> None:
        if not self.is_leader:
            for scope in self._leading:
                scope.cancel()
        leader = self.current()
        # With the term: to lose it and have it back between two looks is two changes.
        if (leader, self._candidacy.terms) == self._announced:
            return
        self._log.info("leader_changed", leader=leader.identity if leader else None)
        self._announced = leader, self._candidacy.terms
        self._changed.set()
        self._changed = trio.Event()
