"""A cluster in memory: pods that can be claimed once, daemons that boot, news in order.

A fake, not a mock: it keeps state and enforces what the API server enforces (a claim of what is not
free fails, a name is made once), and time in it is trio's, so that tests may own it.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from typing import TYPE_CHECKING

import trio

from gateway import changed, leases, profiles, sizing
from gateway.allocation import Allocation
from gateway.config import Settings
from gateway.fulfilment import Fulfilment
from gateway.model import NO_BOUNDS, Assignment, Bounds, Broken, Ending, Instance, PoolSpec
from gateway.pool import Pool
from gateway.provider import (
    ClaimLostError,
    Gone,
    News,
    NodeSeen,
    PoolSeen,
    RefusedError,
    Seen,
    Synced,
)
from gateway.registry import Registry
from gateway.roster import Roster
from sandman import names, wire
from sandman.errors import DeletedError, QuotaError
from sandman.version import __version__
from tests.fakes.pod_daemons import Daemons
from tests.fakes.store import FakeStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.leases import Activity
    from sandman.probes import Target

BASE = "registry.example/base:1"
TASK = "registry.example/task:1"
START_S = 0.5
"""Seconds from the making of a pod until its daemon answers."""
SWAP_S = 0.2
RESIZE_S = 0.7
PULLS = {"image_not_found": "missing", "image_denied": "denied", "image_pull": "throttled"}


class FakeCluster(Daemons):
    """Provider and daemons in one.

    `slow_writes` makes each write take that long, before (`write_before`) or after it took effect,
    so that a test can cancel it at either moment.
    """

    def __init__(self) -> None:
        self.send, self.receive = trio.open_memory_channel[News](1000)
        self.pods: dict[str, Instance] = {}
        self.boots: dict[str, str] = {}
        self.claims: dict[str, str] = {}
        self.leases: dict[str, list[wire.LeaseTerms | None]] = {}
        """What each daemon was told, by uid."""
        self.told_env: dict[str, tuple[tuple[str, str], ...]] = {}
        """The variables that its daemon was told, by uid."""
        self.up_at: dict[str, float] = {}
        self.bad_images: dict[str, str] = {}
        self.calls: list[tuple[str, str, str, bytes]] = []
        """Pod, method, path and body of each call of a daemon that was not a handshake."""
        self.answer = lambda _pod, _path, _body: (200, json.dumps({"exit_code": 0}).encode())
        """What a daemon answers to one."""
        self.call_s = 0.0
        """Seconds that one takes."""
        self.start_s = START_S
        self.is_full = False
        """No node has room for a new pod."""
        self.known_images = [BASE, TASK]
        """What its node says that it holds; of others a canary goes first."""
        self.fail_pulls: dict[str, int] = {}
        """How many times an image cannot be pulled for a passing reason, before it can."""
        self.version = __version__
        """What its daemons say that they are."""
        self.knows_no_leases = False
        """Daemons of a version before there were leases."""
        self.fail_claims: list[Exception] = []
        self.fail_starts: list[Exception] = []
        self.fail_stops: list[Exception] = []
        self.specs: dict[str, PoolSpec] = {}
        """Pools as last told."""
        self.fail_discards: list[Exception] = []
        self.pulls: list[tuple[str, str]] = []
        """Image and node of every pod that was claimed or made."""
        self.wanted = 1
        """Replicas of its pools."""
        self.fail_reclaims: list[Exception] = []
        self.jobs: dict[tuple[str, str], str] = {}
        """Uids of Jobs by namespace and name."""
        self.silent: set[str] = set()
        """Daemons that do not answer, by uid."""
        self.activity: dict[str, Activity] = {}
        """What daemons tell of their callers, by uid."""
        self.told: list[tuple[str, float, bool]] = []
        """Renewals that daemons got: name of the pod, ttl_s, whether its caller asked for it."""
        self.writes: list[tuple[str, str]] = []
        self.store = FakeStore()
        self.specs: dict[str, PoolSpec] = {}
        self.fail_scales: list[Exception] = []
        self.scales: list[int] = []
        self.policies: dict[str, list[dict]] = {}
        """NetworkPolicies by namespace."""
        self.fail_profiles: list[Exception] = []
        self.profile_lists = 0
        self.opened: dict[str, set[Target]] = {}
        """What its network plugin opens, by egress profile."""
        self.leaks: set[Target] = set()
        """What it leaves open to everybody."""
        self.probed: list[tuple[str, tuple[Target, ...]]] = []
        self.fail_probes: list[Exception] = []
        self.probe_s = 0.0
        self.nursery: trio.Nursery
        """Where its kubelets work."""
        self.fail_resizes: list[Exception] = []
        self.resizes: dict[str, str] = {}
        """What the kubelet of a node says of a resize that it does not do."""
        self.quotas: dict[str, float] = {}
        """Pods there may be, by namespace."""
        self.delay_before = 0.0
        self.delay_after = 0.0
        self._count = itertools.count(1)

    # --- what a test does to it ---

    def pool(self, name: str = "root", *, image: str = BASE, swap: bool = True, **more) -> None:
        self.send.send_nowait(NodeSeen("n1", closed=False, images=tuple(self.known_images)))
        values = {"namespace": "ns", "wanted": self.wanted, "most": None, **more}
        self.specs[name] = PoolSpec(name=name, image=image, swap=swap, **values)
        self.tell_pool(PoolSpec(name=name, image=image, swap=swap, **values))

    def tell_anew(self) -> None:
        """All there is, into a new channel: for a gateway that only begins."""
        self.send, self.receive = trio.open_memory_channel[News](1000)
        for pod in self.pods.values():
            self.send.send_nowait(Seen(pod))

    def synced(self) -> None:
        self.send.send_nowait(Synced())

    def placeholder(
        self,
        *,
        pool: str = "root",
        image: str = BASE,
        up_in: float = 0.0,
        address: str | None = None,
        key_id: str = "",
        namespace: str = "ns",
        node: str = "n1",
        bounds: Bounds = NO_BOUNDS,
    ) -> Instance:
        number = next(self._count)
        pod = Instance(
            namespace=namespace, name=f"pod-{number}", uid=f"{number:08d}-uid", version="1", pool=pool,
            state=names.STATE_FREE, image=image, node=node, bounds=bounds, actual=bounds,
            address=address or f"10.0.0.{number}",
            nonce=f"nonce-{number}", key_id=key_id, running=True,
        )  # fmt: skip
        self._boot(pod.uid, up_in)
        self._put(pod)
        return pod

    def end(self, uid: str, ending: Ending) -> None:
        self._put(dataclasses.replace(self.pods[uid], ending=ending, running=False))

    def remove(self, uid: str, ending: Ending) -> None:
        del self.pods[uid]
        self.send.send_nowait(Gone(uid, ending))

    def leased(self) -> list[Instance]:
        return [one for one in self.pods.values() if one.state == names.STATE_LEASED]

    # --- Provider ---

    async def claim(self, instance: Instance, assignment: Assignment) -> Instance:
        await trio.sleep(self.delay_before)
        if self.fail_claims:
            raise self.fail_claims.pop(0)
        now = self.pods.get(instance.uid)
        if now is None or now.state != instance.state or now.deleting:
            raise ClaimLostError(instance.uid)
        self.writes.append(("claim", instance.name))
        if assignment.image != now.image and now.state == names.STATE_FREE:
            self._boot(instance.uid, SWAP_S)
        taken = self._put(self._with(now, assignment))
        await trio.sleep(self.delay_after)
        self._judge_image(taken)
        return taken

    async def create(self, spec: PoolSpec, name: str, assignment: Assignment) -> Instance:
        await trio.sleep(self.delay_before)
        if sum(one.namespace == spec.namespace for one in self.pods.values()) >= self.quotas.get(
            spec.namespace, math.inf
        ):
            raise RefusedError(QuotaError(f"exceeded quota in {spec.namespace}", retry_after=5.0))
        number = next(self._count)
        assert all(one.name != name for one in self.pods.values())
        self.writes.append(("create", name))
        pod = Instance(
            namespace=spec.namespace, name=name, uid=f"{number:08d}-uid", version="1",
            pool=spec.name, state=names.STATE_LEASED, image=spec.image, nonce=f"nonce-{number}",
            bounds=sizing.scaled(spec.bounds, assignment.resources),
        )  # fmt: skip
        taken = self._with(pod, assignment)
        if self.is_full:
            taken = dataclasses.replace(taken, node=None, address=None, running=False)
        self._put(taken)
        self._boot(pod.uid, math.inf if self.is_full else self.start_s)
        await trio.sleep(self.delay_after)
        self._judge_image(taken)
        return taken

    async def mark_prepared(self, instance: Instance, what: str, boot_id: str) -> Instance:
        await trio.sleep(self.delay_before)
        now = self.pods.get(instance.uid)
        if now is None or now.state != names.STATE_RESERVED or now.deleting:
            raise DeletedError(instance.id)
        self.writes.append(("prepared", instance.name))
        return self._put(dataclasses.replace(now, prepared=what, prepared_boot_id=boot_id))

    async def resize(self, instance: Instance, bounds: Bounds) -> None:
        await trio.sleep(self.delay_before)
        if self.fail_resizes:
            raise self.fail_resizes.pop(0)
        self.writes.append(("resize", instance.name))
        now = dataclasses.replace(self.pods[instance.uid], bounds=bounds)
        said = self.resizes.get(now.node or "", "InProgress")
        self._put(dataclasses.replace(now, resize=said))
        if said == "InProgress":
            self.nursery.start_soon(self._actuate, instance.uid, bounds)

    async def _actuate(self, uid: str, bounds: Bounds) -> None:
        await trio.sleep(RESIZE_S)
        if uid in self.pods:
            self._put(dataclasses.replace(self.pods[uid], actual=bounds, resize=""))

    async def start(self, instance: Instance) -> None:
        await trio.lowlevel.checkpoint()
        if self.fail_starts:
            raise self.fail_starts.pop(0)
        self.writes.append(("start", instance.name))
        if instance.uid in self.pods:
            self._put(dataclasses.replace(self.pods[instance.uid], hold=None))

    async def scale(self, spec: PoolSpec, replicas: int) -> None:
        """As the ReplicaSet does: placeholders are made, or those that are left over go."""
        await trio.lowlevel.checkpoint()
        if self.fail_scales:
            raise self.fail_scales.pop(0)
        self.scales.append(replicas)
        self.specs[spec.name] = dataclasses.replace(self.specs[spec.name], wanted=replicas)
        self.send.send_nowait(PoolSeen(self.specs[spec.name]))
        self.replace(spec.name)

    def replace(self, pool: str = "root") -> None:
        """What the ReplicaSet makes or deletes to have as many as are wanted."""
        free = [one for one in self.pods.values() if one.state == names.STATE_FREE]
        for _ in range(self.specs[pool].wanted - len(free)):
            self.placeholder(pool=pool, up_in=START_S)
        for one in free[self.specs[pool].wanted :]:
            self.remove(one.uid, Ending("deleted", "scaled down"))

    async def mark(self, instance: Instance, ending: Ending) -> None:
        await trio.lowlevel.checkpoint()
        if instance.uid in self.pods:
            self._put(dataclasses.replace(self.pods[instance.uid], ending=ending))

    async def delete(self, instance: Instance) -> None:
        self.writes.append(("delete", instance.name))
        if instance.uid in self.pods:
            self.remove(instance.uid, Ending("deleted", "somebody deleted its pod"))

    async def renew(self, instance: Instance, age: float) -> None:
        await trio.lowlevel.checkpoint()
        self.writes.append(("renew", instance.name))
        now = self.pods.get(instance.uid)
        if now is not None and now.ending is None:
            text = leases.renewal(trio.current_time(), age)
            self._put(dataclasses.replace(now, renewed=text))

    async def reclaim(self, instance: Instance, ending: Ending) -> bool:
        await trio.lowlevel.checkpoint()
        if self.fail_reclaims:
            raise self.fail_reclaims.pop(0)
        now = self.pods.get(instance.uid)
        if now is None:
            return True
        if now.renewed != instance.renewed or now.ending is not None:
            return False
        await self.mark(instance, ending)
        await self.delete(instance)
        return True

    async def set_network(self, instance: Instance, profile: str) -> Instance:
        await trio.lowlevel.checkpoint()
        now = self.pods.get(instance.uid)
        if now is None or now.ending is not None or now.deleting:
            raise DeletedError(instance.id)
        self.writes.append(("network", instance.name))
        changes = changed.changed(now.network_changes, now.network, profile, trio.current_time())
        return self._put(dataclasses.replace(now, network=profile, network_changes=changes))

    async def agree(self, instance: Instance, request: Mapping[str, object]) -> Instance:
        await trio.lowlevel.checkpoint()
        now = self.pods.get(instance.uid)
        if now is None or now.ending is not None or now.deleting:
            raise DeletedError(instance.id)
        self.writes.append(("agreed", instance.name))
        return self._put(dataclasses.replace(now, request=request))

    async def profiles(self, namespace: str) -> profiles.Known:
        await trio.lowlevel.checkpoint()
        if self.fail_profiles:
            raise self.fail_profiles.pop(0)
        self.profile_lists += 1
        return profiles.of_policies(self.policies.get(namespace, []))

    async def bury(self, instance: Instance) -> None:
        await trio.lowlevel.checkpoint()
        self.writes.append(("bury", instance.name))
        if instance.uid in self.pods:
            self.remove(instance.uid, Ending("deleted", "somebody deleted its pod"))

    async def owner(self, namespace: str, name: str) -> str | None:
        await trio.lowlevel.checkpoint()
        return self.jobs.get((namespace, name))

    async def discard(self, namespace: str, name: str, claim_id: str) -> Instance | None:
        if self.fail_discards:
            raise self.fail_discards.pop(0)
        found = await self.read(namespace, name)
        if found is None or found.claim_id != claim_id:
            return None
        await self.delete(found)
        return found

    async def read(self, namespace: str, name: str) -> Instance | None:
        await trio.lowlevel.checkpoint()
        return next((one for one in self.pods.values() if one.name == name), None)

    async def stop_pool(self, spec: PoolSpec, broken: Broken) -> None:
        await trio.lowlevel.checkpoint()
        if self.fail_stops:
            raise self.fail_stops.pop(0)
        self.writes.append(("stop", spec.name))
        self.tell_pool(dataclasses.replace(spec, wanted=0, broken=broken, stopped=True))

    async def restart_pool(self, spec: PoolSpec) -> None:
        await trio.lowlevel.checkpoint()
        self.writes.append(("restart", spec.name))
        wanted = spec.wanted or (spec.broken.replicas if spec.broken else 0)
        self.tell_pool(dataclasses.replace(spec, wanted=wanted, broken=None, stopped=False))

    def tell_pool(self, spec: PoolSpec) -> None:
        self.specs[spec.name] = spec
        self.send.send_nowait(PoolSeen(spec))

    async def explain(self, instance: Instance) -> Ending | None:
        await trio.lowlevel.checkpoint()
        reason = self.bad_images.get(instance.image)
        if reason is None:
            return None
        return Ending(reason, f"image {instance.image}", facts={"pull": PULLS[reason]})

    # --- inside ---

    def _put(self, pod: Instance) -> Instance:
        self.pods[pod.uid] = pod
        self.send.send_nowait(Seen(pod))
        return pod

    def _judge_image(self, pod: Instance) -> None:
        self.pulls.append((pod.image, pod.node or ""))
        if self.fail_pulls.get(pod.image, 1) <= 0:
            self.bad_images.pop(pod.image, None)
        if pod.image in self.bad_images:
            self.fail_pulls[pod.image] = self.fail_pulls.get(pod.image, 1_000_000) - 1
            self.up_at[pod.uid] = float("inf")
            self.end(pod.uid, Ending("died", "its first process never ran"))

    def _with(self, pod: Instance, assignment: Assignment) -> Instance:
        return dataclasses.replace(
            pod, state=assignment.state, reservation=assignment.reservation or pod.reservation, image=assignment.image, tenant=assignment.tenant,
            run=assignment.run, key=assignment.key, tier=assignment.tier.value, node=pod.node or "n1",
            address=pod.address or "10.1.0.1", running=True, claim_id=assignment.claim_id,
            previous_boot_id=assignment.previous_boot_id, swapped=assignment.swapped, request=assignment.request,
            expires_at=assignment.expires_at, terms=assignment.terms, network=assignment.network,
        )  # fmt: skip


class FakeDaemons:
    """The daemons' side of a FakeCluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.info = cluster.info
        self.claim = cluster.claim_daemon
        self.open = cluster.open
        self.renew = cluster.renew_daemon
        self.probe = cluster.probe


def make_pool(cluster: FakeCluster, settings: Settings | None = None) -> Pool:
    """A pool over the fake; run it with `pool.run(cluster.receive)`."""
    settings = settings or Settings()
    registry = Registry(keep_ended=settings.keep_ended)
    allocation = Allocation(cold_max=settings.cold_max, claims_max=settings.claims_max)
    roster = Roster(registry, allocation)
    daemons = FakeDaemons(cluster)
    fulfilment = Fulfilment(cluster, daemons, roster, settings, trio.current_time)
    return Pool(roster, fulfilment, daemons, settings)
