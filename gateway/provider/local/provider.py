"""What the pool asks for, done to sandboxes of this machine; and what a ReplicaSet does for its pools."""

from __future__ import annotations

import dataclasses
import math
import secrets
import socket
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from gateway import leases, profiles, sizing
from gateway.model import Bounds, Ending
from gateway.provider import (
    BusyError,
    ClaimLostError,
    Gone,
    News,
    NodeSeen,
    PoolSeen,
    RefusedError,
    Seen,
    Synced,
)
from gateway.provider.local import pods
from gateway.provider.local.images import ImageError
from gateway.provider.local.running import Runner
from gateway.provider.pods import fingerprint
from sandman import names
from sandman.errors import BadRequestError, CapacityError, DeletedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gateway.model import Assignment, Broken, Instance, PoolSpec
    from gateway.provider.local.images import Images
    from gateway.provider.local.running import Place

log = structlog.get_logger()

FULL_S = 0.2
"""Seconds until another try where there is no room: whoever waits keeps his place."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Life:
    """One process of a sandbox."""

    scope: trio.CancelScope = dataclasses.field(default_factory=trio.CancelScope)
    over: trio.Event = dataclasses.field(default_factory=trio.Event)
    """Nothing of it runs any more."""


class LocalProvider:
    """Processes as sandboxes. Its methods are those of `Provider`, and told there.

    Args:
        specs: the pools.
        images: what runs in sandboxes.
        place: where they are.
        wall: seconds since the epoch.
    """

    def __init__(
        self, specs: Iterable[PoolSpec], images: Images, place: Place, wall: Callable[[], float]
    ) -> None:
        self.claim_writes: Counter[str] = Counter()
        self._specs = {spec.name: spec for spec in specs}
        self._images = images
        self._place = place
        self._runner = Runner(place, images, wall)
        self._wall = wall
        self._node = socket.gethostname()
        self._pods: dict[str, Instance] = {}
        self._lives: dict[str, _Life] = {}
        self._unreadable: dict[str, Ending] = {}
        """What was wrong with the image of one that ended for it."""
        self._reasons: dict[str, Ending] = {}
        """Why those go that are going."""
        self._send, self._receive = trio.open_memory_channel[News](math.inf)
        self._nursery: trio.Nursery
        self._is_synced = False

    def __repr__(self) -> str:
        return f"<LocalProvider pods={len(self._pods)}>"

    # --- running ---

    async def watch(self, send: trio.MemorySendChannel[News]) -> None:
        """Tell the news, and keep pools at their size, until cancelled; then no sandbox is left."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await self._tell(send)
        finally:
            self._runner.close_all()

    async def _tell(self, send: trio.MemorySendChannel[News]) -> None:
        self._send.send_nowait(NodeSeen(self._node, closed=False, images=self._images.names()))
        for spec in self._specs.values():
            self._send.send_nowait(PoolSeen(spec))
            self._refill(spec.name)
        self._send.send_nowait(Synced())
        self._is_synced = True
        async with self._receive.clone() as news:
            async for one in news:
                await send.send(one)

    def _refill(self, pool: str) -> None:
        """As many free placeholders as are wanted, no more, and not more pods than there may be."""
        spec = self._specs[pool]
        free = [one for one in self._of(pool) if one.state == names.STATE_FREE]
        for one in free[spec.wanted :]:
            self._remove(one, Ending("deleted", "its pool was made smaller"))
        room = math.inf if spec.most is None else spec.most - len(self._of(pool))
        for _ in range(int(min(spec.wanted - len(free), room))):
            made = self._make(f"local-{pool}-{secrets.token_hex(5)}")
            # Those of the start need wait for nobody.
            one = pods.placeholder(spec, made, self._wall(), is_held=self._is_synced)
            self._put(one)
            if one.hold is None:
                self._begin(one)

    def _of(self, pool: str) -> list[Instance]:
        """Those that run, or will."""
        return [
            one
            for one in self._pods.values()
            if one.pool == pool and not one.deleting and one.ending is None
        ]

    def _make(self, name: str) -> pods.Made:
        return pods.Made(
            name, secrets.token_hex(16), secrets.token_hex(16), self._place.key_id, self._node
        )

    def _put(self, instance: Instance) -> Instance:
        self._pods[instance.uid] = instance
        self._send.send_nowait(Seen(instance))
        return instance

    # --- lives ---

    def _begin(self, instance: Instance) -> None:
        life = _Life()
        before, self._lives[instance.uid] = self._lives.get(instance.uid), life
        if before is not None:
            before.scope.cancel()
        self._nursery.start_soon(self._follow, instance, life, before)

    async def _follow(self, instance: Instance, life: _Life, before: _Life | None) -> None:
        """Begin when the one before is over: both would take calls from the same socket, and the new one's
        callers would meet the old one."""
        try:
            if before is not None:
                with trio.CancelScope(shield=True):  # it is cancelled, and its end is limited
                    await before.over.wait()
            await self._live(instance, life)
        finally:
            life.over.set()

    async def _live(self, instance: Instance, life: _Life) -> None:
        """One process of a sandbox; where another is to follow, that one is its own life."""
        uid = instance.uid
        with life.scope:
            await trio.lowlevel.checkpoint()  # it may have been taken away before it began
            try:
                ending = await self._runner.run(instance, partial(self._pods.get, uid), self._put)
            except ImageError as error:
                ending = self._unreadable[uid] = error.ending(instance.image)
            except OSError as error:
                ending = pods.why(pods.EXIT_CANNOT, str(error), self._wall())
            now = self._pods.get(uid)
            if now is not None and self._lives.get(uid) is life:
                log.info(
                    "a sandbox has ended", pod=now.name, reason=ending.reason, detail=ending.detail
                )
                self._put(pods.ended(now, ending))
                self._runner.close(uid)
                self._refill(now.pool)
        if self._lives.get(uid) is life:
            del self._lives[uid]
            self._forget(uid)

    def _remove(self, instance: Instance, ending: Ending) -> None:
        """It is to go; that it is gone is told when nothing of it runs."""
        self._reasons[instance.uid] = ending
        self._put(dataclasses.replace(instance, version=pods.bumped(instance), deleting=True))
        if (life := self._lives.get(instance.uid)) is not None:
            life.scope.cancel()
        else:
            self._forget(instance.uid)

    def _forget(self, uid: str) -> None:
        """Nothing of it runs any more. One that ended by itself is kept, and told of, until it is deleted."""
        instance = self._pods.get(uid)
        if instance is None or not instance.deleting:
            return
        del self._pods[uid]
        self._runner.close(uid)
        self._unreadable.pop(uid, None)
        self._send.send_nowait(Gone(uid, instance.ending or self._reasons.pop(uid)))
        self._reasons.pop(uid, None)
        self._refill(instance.pool)

    def _now(self, instance: Instance) -> Instance | None:
        """Exactly this one, as it is; None when it is gone, or going."""
        now = self._pods.get(instance.uid)
        return None if now is None or now.deleting else now

    # --- Provider ---

    async def claim(self, instance: Instance, assignment: Assignment) -> Instance:
        """See `Provider.claim`."""
        await trio.lowlevel.checkpoint()
        self.claim_writes[assignment.tier.value] += assignment.reservation is None
        now = self._now(instance)
        if now is None or now.state != instance.state or now.ending is not None:
            raise ClaimLostError(instance.uid)
        self._runner.check(sizing.of_record(assignment.request))
        taken = self._put(pods.taken(now, assignment, self._wall()))
        if pods.is_swap(now, assignment):
            self._begin(taken)
        self._refill(taken.pool)
        return taken

    async def create(self, spec: PoolSpec, name: str, assignment: Assignment) -> Instance:
        """See `Provider.create`."""
        await trio.lowlevel.checkpoint()
        self.claim_writes[assignment.tier.value] += assignment.reservation is None
        if spec.most is not None and len(self._of(spec.name)) >= spec.most:
            text = f"all {spec.most} sandboxes that this machine is to have are in use"
            raise BusyError(CapacityError(text, retry_after=FULL_S))
        self._runner.check(sizing.of_record(assignment.request))
        bounds = sizing.scaled(spec.bounds, assignment.resources)
        fresh = pods.placeholder(spec, self._make(name), self._wall(), is_held=False)
        taken = dataclasses.replace(
            pods.taken(fresh, assignment, self._wall()),
            image=assignment.image,
            bounds=bounds,
        )
        taken = self._put(taken)
        self._begin(taken)
        return taken

    async def mark_prepared(self, instance: Instance, what: str, boot_id: str) -> Instance:
        """See `Provider.mark_prepared`."""
        await trio.lowlevel.checkpoint()
        now = self._now(instance)
        if now is None or now.state != names.STATE_RESERVED:
            raise DeletedError("it went away while it was prepared", sandbox=instance.id)
        changed = dataclasses.replace(now, prepared=what, prepared_boot_id=boot_id)
        return self._put(dataclasses.replace(changed, version=pods.bumped(now)))

    async def resize(self, instance: Instance, bounds: Bounds) -> None:
        """See `Provider.resize`."""
        await trio.lowlevel.checkpoint()
        now = self._now(instance)
        if now is None:
            raise DeletedError("it ends, or is gone", sandbox=instance.id)
        self._runner.check(bounds.limits)
        try:
            told = self._runner.limit(now, bounds.limits)
        except OSError as error:
            text = f"local mode cannot give it these resources: {error}"
            raise RefusedError(BadRequestError(text, field="resources")) from error
        self._put(pods.resized(now, bounds, told))

    async def start(self, instance: Instance) -> None:
        """See `Provider.start`."""
        await trio.lowlevel.checkpoint()
        now = self._now(instance)
        if now is not None and now.hold is not None:
            self._begin(self._put(dataclasses.replace(now, hold=None, version=pods.bumped(now))))

    async def mark(self, instance: Instance, ending: Ending) -> None:
        """See `Provider.mark`."""
        await trio.lowlevel.checkpoint()
        now = self._now(instance)
        if now is not None:
            self._put(dataclasses.replace(now, ending=ending, version=pods.bumped(now)))

    async def delete(self, instance: Instance) -> None:
        """See `Provider.delete`."""
        await trio.lowlevel.checkpoint()
        now = self._now(instance)
        if now is not None:
            self._remove(now, Ending("deleted", "somebody deleted it"))

    async def bury(self, instance: Instance) -> None:
        """See `Provider.bury`."""
        await self.delete(instance)

    async def renew(self, instance: Instance, age: float) -> None:
        """See `Provider.renew`."""
        await trio.lowlevel.checkpoint()
        now = self._now(instance)
        if now is not None and now.ending is None:
            text = leases.renewal(self._wall(), age)
            self._put(dataclasses.replace(now, renewed=text, version=pods.bumped(now)))

    async def reclaim(self, instance: Instance, ending: Ending) -> bool:
        """See `Provider.reclaim`."""
        await trio.lowlevel.checkpoint()
        now = self._now(instance)
        if now is None:
            return True
        if now.renewed != instance.renewed or now.ending is not None:
            return False
        self._remove(dataclasses.replace(now, ending=ending), ending)
        return True

    async def set_network(self, instance: Instance, profile: str) -> Instance:
        """See `Provider.set_network`: a process cannot change its network."""
        await trio.lowlevel.checkpoint()
        now = self._now(instance)
        if now is None or now.ending is not None:
            raise DeletedError("it ends, or is gone", sandbox=instance.id)
        if profile != now.network:
            raise BadRequestError("in local mode a sandbox keeps its network", field="network")
        return now

    async def agree(self, instance: Instance, request: Mapping[str, object]) -> Instance:
        """See `Provider.agree`."""
        await trio.lowlevel.checkpoint()
        now = self._now(instance)
        if now is None or now.ending is not None:
            raise DeletedError("it ends, or is gone", sandbox=instance.id)
        changed = dataclasses.replace(now, request=request, version=pods.bumped(now))
        return self._put(changed)

    async def profiles(self, namespace: str) -> profiles.Known:
        """See `Provider.profiles`."""
        del namespace
        await trio.lowlevel.checkpoint()
        return {names.NETWORK_NONE: profiles.NONE}

    async def owner(self, namespace: str, name: str) -> str | None:
        """See `Provider.owner`: there are no Jobs here."""
        del namespace, name
        await trio.lowlevel.checkpoint()
        return None

    async def discard(self, namespace: str, name: str, claim_id: str) -> Instance | None:
        """See `Provider.discard`."""
        found = await self.read(namespace, name)
        if found is None or found.claim_id != claim_id:
            return None
        await self.delete(found)
        return found

    async def read(self, namespace: str, name: str) -> Instance | None:
        """See `Provider.read`."""
        del namespace
        await trio.lowlevel.checkpoint()
        return next((one for one in self._pods.values() if one.name == name), None)

    async def scale(self, spec: PoolSpec, replicas: int) -> None:
        """See `scaler.Scale`."""
        await trio.lowlevel.checkpoint()
        self._tell_pool(dataclasses.replace(self._specs[spec.name], wanted=replicas))

    async def stop_pool(self, spec: PoolSpec, broken: Broken) -> None:
        """See `Provider.stop_pool`."""
        await trio.lowlevel.checkpoint()
        stopped = broken.template == fingerprint(spec.template)
        now = self._specs[spec.name]
        self._tell_pool(dataclasses.replace(now, wanted=0, broken=broken, stopped=stopped))

    async def restart_pool(self, spec: PoolSpec) -> None:
        """See `Provider.restart_pool`."""
        await trio.lowlevel.checkpoint()
        now = self._specs[spec.name]
        wanted = now.wanted or (now.broken.replicas if now.broken else 0)
        self._tell_pool(dataclasses.replace(now, wanted=wanted, broken=None, stopped=False))

    def _tell_pool(self, spec: PoolSpec) -> None:
        self._specs[spec.name] = spec
        self._send.send_nowait(PoolSeen(spec))
        self._refill(spec.name)

    async def explain(self, instance: Instance) -> Ending | None:
        """See `Provider.explain`."""
        await trio.lowlevel.checkpoint()
        return self._unreadable.get(instance.uid)
