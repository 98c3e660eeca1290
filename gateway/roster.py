"""What is there just now: takes the provider's news one by one and keeps registry, pools and the
allocation's free slots in step with it. Sync; between two awaits of its owner it is whole."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import structlog
import trio

from gateway import provider as providers
from gateway import spread
from gateway.breaker import Breaker, PoolKey, is_open
from gateway.leases import Ledger
from gateway.orders import Slot
from sandman import names

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.allocation import Allocation
    from gateway.model import Ending, Instance, PoolSpec
    from gateway.registry import Registry

log = structlog.get_logger()


class Roster:
    """State behind the pool.

    Args:
        registry: gets every pod.
        allocation: gets every vetted free placeholder.
        wall: seconds since the epoch; trio's clock if None.
    """

    def __init__(
        self,
        registry: Registry,
        allocation: Allocation,
        wall: Callable[[], float] = trio.current_time,
    ) -> None:
        self.registry = registry
        self.allocation = allocation
        self.ledger = Ledger()
        """Gets every sandbox; on trio's clock."""
        self.lost_nodes: dict[str, float] = {}
        """Nodes whose kubelets are not heard of: name → since when (trio's clock)."""
        self._wall = wall
        self.pools: dict[str, PoolSpec] = {}
        """By name. Where several namespaces have a pool of one name, all of them as one."""
        self._specs: dict[str, dict[str, PoolSpec]] = {}
        self._full: dict[str, float] = {}
        self.synced = trio.Event()
        self.breaker = Breaker()
        self.held: dict[str, float] = {}
        """Placeholders that wait for `refill` to let them start: uid → since when (trio's clock)."""
        self.open_nodes: int | None = None
        """How many nodes take pods; None when nothing is known of nodes."""
        self._nodes: dict[str, bool] = {}
        self.handed_over: list[Instance] = []
        """What was prepared ahead and is somebody's sandbox since: for `reservations` to count."""
        self.skewed: set[str] = set()
        """Placeholders, by uid, whose daemons are too old or too new for this gateway."""
        self._boots: dict[str, str] = {}
        self._changes: dict[str, trio.Event] = {}

    def __repr__(self) -> str:
        return f"<Roster pools={sorted(self.pools)} {self.registry!r} {self.allocation!r}>"

    def apply(self, news: providers.News) -> Instance | None:
        """Take in one piece of news; answers the pod that must be vetted before it counts as free."""
        match news:
            case providers.Seen(instance):
                return self._seen(instance)
            case providers.Gone(uid, ending):
                self._gone(uid, ending)
            case providers.PoolSeen(spec):
                self._pool_seen(spec)
            case providers.PoolGone(namespace, name):
                self._pool_gone(namespace, name)
            case providers.NodeSeen(name, closed, images, gone, lost):
                self.allocation.cordon(name, closed=closed)
                known = self.allocation.images
                known.gone(name) if gone else known.report(name, images)
                self._nodes[name] = not closed
                if gone:
                    del self._nodes[name]
                self.open_nodes = sum(self._nodes.values()) if self._nodes else None
                self._note_node(name, lost=lost)
                self._forget_node(name)
            case providers.Synced():
                self.synced.set()
        return None

    def vetted(self, uid: str, boot_id: str) -> None:
        """The daemon of a free placeholder answered: it may be given from now on."""
        instance = self.registry.get(uid)
        if instance is not None:
            self._boots[uid] = boot_id
            self.breaker.useful(instance)
            self._offer(instance)

    def prepared(self, instance: Instance) -> None:
        """A reserved pod is prepared, and this is what the API server answered to our saying so."""
        known = self.registry.get(instance.uid)
        if known is not None and instance.prepared_boot_id is not None:
            instance = self.registry.put(instance, claimed=True)
            self._boots[instance.uid] = instance.prepared_boot_id or ""
            self._offer(instance)

    def avoidable(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Of these nodes those that a sandbox can be kept away from: none, where no other takes pods."""
        others = any(is_open and name not in nodes for name, is_open in self._nodes.items())
        return nodes if others or not self._nodes else ()

    def take_back(self, uid: str) -> bool:
        """Nobody gets this prepared placeholder any more; False when somebody has it, or is about to."""
        if self.allocation.is_given(uid):
            return False
        self.allocation.withdraw(uid)
        return True

    def prepared_claims(self, what: str) -> set[str | None]:
        """Claims of what is prepared so and can be handed over."""
        ready = self.registry.prepared(what)
        return {one.claim_id for one in ready if self.allocation.is_in_play(one.uid)}

    def boot_id(self, uid: str) -> str | None:
        """The daemon start that was vetted."""
        return self._boots.get(uid)

    def taken(self, instance: Instance, *, uid_was_known: bool) -> None:
        """Our own claim or creation succeeded, and this is what the API server answered.

        The watch may have overtaken the answer: what it told of the claimed pod is newer, and a pod
        that it has seen go must not come in again, for nobody would ever take it out.
        """
        if instance.prepared is not None:
            self.handed_over.append(instance)
        known = self.registry.get(instance.uid)
        is_gone = known is None and (uid_was_known or self.registry.ending(instance.id) is not None)
        if is_gone or (known is not None and known.claim_id == instance.claim_id):
            return
        self.registry.put(instance, claimed=True)
        self._enter(instance)

    def specs(self) -> list[PoolSpec]:
        """Every pool of every namespace."""
        return [spec for known in self._specs.values() for spec in known.values()]

    def useful(self) -> Counter[PoolKey]:
        """How many vetted placeholders each pool has."""
        found = (self.registry.get(uid) for uid in self._boots)
        return Counter(PoolKey(o.namespace, o.pool) for o in found if o is not None and is_free(o))

    def spec(self, pool: str, namespace: str) -> PoolSpec | None:
        """The pool as its Deployment in this namespace declares it."""
        return self._specs.get(pool, {}).get(namespace)

    def places(self, pool: str) -> list[PoolSpec]:
        """Where a new pod of the pool may be made, the best place first; none where there is no such pool."""
        now = trio.current_time()
        full = [name for name, until in self._full.items() if now < until]
        specs = [spec for spec in self._specs.get(pool, {}).values() if not is_open(spec)]
        return spread.places(specs, self.registry.pods, full)

    def is_full(self, namespace: str) -> None:
        """The namespace's quota has just refused a pod."""
        self._full[namespace] = trio.current_time() + spread.FULL_S

    async def wait_change(self, uid: str) -> None:
        """Return at the pod's next news."""
        event = self._changes.setdefault(uid, trio.Event())
        try:
            await event.wait()
        finally:
            # Of a pod that is gone there will be no news to take it away.
            if not event.statistics().tasks_waiting and self._changes.get(uid) is event:
                del self._changes[uid]

    def _offer(self, instance: Instance) -> None:
        spec = self.spec(instance.pool, instance.namespace)
        if spec is not None and is_free(instance):
            node = instance.node or ""
            slot = Slot(
                instance.uid,
                instance.pool,
                instance.image,
                node,
                spec.swap,
                instance.prepared or "",
            )
            self.allocation.offer(slot)

    def _pool_seen(self, spec: PoolSpec) -> None:
        """A pool may be told of after its pods, and its swap setting may change."""
        old = self.spec(spec.name, spec.namespace)
        if old is not None and is_open(old) and not is_open(spec):
            self.breaker.forget(spec)
        if spec.tenants is not None and not spec.tenants:
            log.warning("a pool is nobody's: its annotation names no tenant", pool=spec.name)
        known = self._specs.setdefault(spec.name, {})
        known[spec.namespace] = spec
        self.pools[spec.name] = spread.merged(known.values())
        evaluating = self.allocation.evaluating
        (evaluating.add if self.pools[spec.name].evaluates else evaluating.discard)(spec.name)
        if old is not None and old.swap == spec.swap:
            return
        for uid in self._boots:
            instance = self.registry.get(uid)
            if instance is None or instance.namespace != spec.namespace:
                continue
            if instance.pool == spec.name:
                self.allocation.withdraw(uid)
                self._offer(instance)

    def _pool_gone(self, namespace: str, name: str) -> None:
        left = self._specs.get(name, {})
        left.pop(namespace, None)
        if left:
            self.pools[name] = spread.merged(left.values())
        else:
            self._specs.pop(name, None)
            self.pools.pop(name, None)

    def _seen(self, instance: Instance) -> Instance | None:
        instance = self.registry.put(instance)
        self._wake(instance.uid)
        self._enter(instance)
        self._note_hold(instance)
        self._note_image(instance)
        if instance.state == names.STATE_FREE and instance.uid not in self._boots:
            self.breaker.saw(instance, trio.current_time, is_new=self.synced.is_set())
        if is_free(instance):
            return None if instance.uid in self._boots else instance
        self.allocation.withdraw(instance.uid)
        self.skewed.discard(instance.uid)
        if instance.state in {names.STATE_FREE, names.STATE_RESERVED}:
            # Should it come back, another daemon may answer there: it is met anew.
            self._boots.pop(instance.uid, None)
        return None

    def _note_image(self, instance: Instance) -> None:
        """Where it runs, its node holds its image. After a swap the digest tells that it runs and not only
        shall."""
        if instance.running and instance.node and instance.image_digest:
            self.allocation.images.ran(instance.node, instance.image, instance.image_digest)

    def _enter(self, instance: Instance) -> None:
        if instance.state == names.STATE_LEASED:
            self.ledger.saw(instance, trio.current_time(), self._wall())

    def _note_node(self, name: str, *, lost: bool) -> None:
        if lost:
            self.lost_nodes.setdefault(name, trio.current_time())
        else:
            self.lost_nodes.pop(name, None)

    def _forget_node(self, name: str) -> None:
        """Of a node that is no more nothing is kept but for the sake of its pods."""
        is_gone = name in self.lost_nodes and name not in self._nodes
        if is_gone and all(one.node != name for one in self.registry.all()):
            del self.lost_nodes[name]
            self.allocation.images.gone(name)

    def _note_hold(self, instance: Instance) -> None:
        if instance.hold is None or instance.deleting:
            self.held.pop(instance.uid, None)
        else:
            self.held.setdefault(instance.uid, trio.current_time())

    def _gone(self, uid: str, ending: Ending) -> None:
        self.held.pop(uid, None)
        instance = self.registry.get(uid)
        if instance is not None:
            self.breaker.gone(instance)
        self.registry.remove(uid, ending)
        if instance is not None and instance.node is not None:
            self._forget_node(instance.node)
        self.ledger.forget(uid)
        self.allocation.forget(uid)
        self._boots.pop(uid, None)
        self.skewed.discard(uid)
        self._wake(uid)

    def _wake(self, uid: str) -> None:
        event = self._changes.pop(uid, None)
        if event is not None:
            event.set()


def is_free(instance: Instance) -> bool:
    """Whether a pod is a placeholder that could be claimed, vetted or not; also one that was prepared."""
    is_prepared = instance.state == names.STATE_RESERVED and instance.prepared is not None
    return (
        (instance.state == names.STATE_FREE or is_prepared)
        and instance.running
        and instance.address is not None
        and instance.ending is None
        and not instance.deleting
    )
