"""Every pod that the gateway knows, found by id, run and idempotency key; and who waits for its end.

Fed by the watch and by the gateway's own writes, whichever comes first. Pure but for one thing: a
call in flight registers its cancel scope, so that it ends when its sandbox does.
"""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict, defaultdict
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sandman import names

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from gateway.model import Ending, Instance


_RANKS = {names.STATE_FREE: 0, names.STATE_RESERVED: 1}
"""States in the order in which a pod has them; all others come after."""


class Cancellable(Protocol):
    """What the registry needs of a cancel scope."""

    def cancel(self) -> None:
        """End the call that owns this scope."""


class Ended(NamedTuple):
    """What is kept of a sandbox that has ended."""

    id: str
    tenant: str | None
    run: str | None
    ending: Ending


class Registry:
    """Instances by uid, with indexes.

    Args:
        keep_ended: how many endings of pods that are gone are remembered.
    """

    def __init__(self, *, keep_ended: int) -> None:
        self._by_uid: dict[str, Instance] = {}
        self._by_id: dict[str, str] = {}
        self._by_key: dict[str, set[str]] = defaultdict(set)
        self._by_tenant: dict[str, set[str]] = defaultdict(set)
        self._by_prepared: dict[str, set[str]] = defaultdict(set)
        self.pods: Counter[tuple[str, str]] = Counter()
        """How many there are by namespace and pool."""
        self._ended: OrderedDict[str, Ended] = OrderedDict()
        self._keep_ended = keep_ended
        self._calls: dict[str, set[Cancellable]] = defaultdict(set)
        self._claimed: dict[str, Instance] = {}
        self.on_end: Callable[[Instance, Ending], None] = lambda _one, _ending: None
        """Told once of each sandbox that ends while this process looks on."""

    def __repr__(self) -> str:
        return f"<Registry pods={len(self._by_uid)} ended={len(self._ended)}>"

    # --- reading ---

    def get(self, uid: str) -> Instance | None:
        """The pod with this uid."""
        return self._by_uid.get(uid)

    def find(self, sandbox: str) -> Instance | None:
        """The pod with this sandbox id."""
        uid = self._by_id.get(sandbox)
        return None if uid is None else self._by_uid.get(uid)

    def ending(self, sandbox: str) -> tuple[str | None, Ending] | None:
        """Tenant and ending of a sandbox whose pod is gone, as long as it is remembered."""
        known = self._ended.get(sandbox)
        return None if known is None else (known.tenant, known.ending)

    def ended(self, tenant: str, run: str | None = None) -> list[Ended]:
        """The tenant's sandboxes that have ended and are not forgotten, the pods that are still there among
        them; in the order of their ids."""
        found = {
            id_: one
            for id_, one in self._ended.items()
            if one.tenant == tenant and (run is None or one.run == run)
        }
        for uid in self._by_tenant.get(tenant, ()):
            one = self._by_uid[uid]
            if one.ending is not None and (run is None or one.run == run):
                found.setdefault(one.id, Ended(one.id, tenant, one.run, one.ending))
        return [found[id_] for id_ in sorted(found)]

    def is_called(self, uid: str) -> bool:
        """Whether a call to it is in flight."""
        return uid in self._calls

    def with_key(
        self, key: str, *, now: float, given_up: Container[str | None] = ()
    ) -> Instance | None:
        """The living sandbox that was made under this idempotency key.

        Args:
            key: as the label holds it.
            now: seconds since the epoch: one whose lease has run out is none any more.
            given_up: claims whose pods are about to be deleted.
        """
        found = [self._by_uid[uid] for uid in self._by_key.get(key, ())]
        alive = [
            one
            for one in found
            if one.ending is None
            and not one.deleting
            and one.id not in self._ended
            and one.claim_id not in given_up
            and (one.expires_at is None or now < one.expires_at)
        ]
        return alive[0] if alive else None

    def of_tenant(self, tenant: str, run: str | None = None) -> list[Instance]:
        """The tenant's sandboxes, oldest first. One whose pod is being deleted, or that was released
        here a moment ago, is none of them any more, though its pod may take a second to go."""
        found = (self._by_uid[uid] for uid in self._by_tenant.get(tenant, ()))
        return sorted(
            (one for one in found if (run is None or one.run == run) and self._is_had(one)),
            key=lambda one: (one.created_at, one.id),
        )

    def prepared(self, what: str) -> list[Instance]:
        """Reserved pods that are prepared so."""
        return [self._by_uid[uid] for uid in self._by_prepared.get(what, ())]

    def most(self, tenant: str) -> int:
        """How many living sandboxes the tenant has at most: those that have ended are counted, too."""
        return len(self._by_tenant.get(tenant, ()))

    def living(self, tenant: str, *, besides: Container[str | None]) -> Iterator[Instance]:
        """The tenant's living sandboxes, those that are prepared ahead among them, but those of the claims
        `besides`."""
        found = (self._by_uid[uid] for uid in self._by_tenant.get(tenant, ()))
        return (
            one
            for one in found
            if one.ending is None and not self._is_going(one) and one.claim_id not in besides
        )

    def _is_had(self, one: Instance) -> bool:
        """Whether it is a sandbox of its tenant: one that is only prepared is not yet."""
        return one.state != names.STATE_RESERVED and not self._is_going(one)

    def _is_going(self, one: Instance) -> bool:
        return one.deleting or one.id in self._ended

    def all(self) -> list[Instance]:
        """Every pod."""
        return list(self._by_uid.values())

    # --- writing ---

    def put(self, instance: Instance, *, claimed: bool = False) -> Instance:
        """A pod as just seen; answers what is now known of it.

        Args:
            instance: what was seen.
            claimed: it is the answer to our own claim: until the watch has caught up with it, a
                sighting from before the claim must not undo it.
        """
        if claimed:
            self._claimed[instance.uid] = instance
        elif instance.uid in self._claimed:
            if _rank(instance) < _rank(self._claimed[instance.uid]):
                return self._by_uid[instance.uid]
            del self._claimed[instance.uid]
        old = self._by_uid.get(instance.uid)
        self._unindex(instance.uid)
        self._index(instance)
        if instance.ending is not None:
            self._end_calls(instance.uid)
            if old is not None and old.ending is None:
                self._tell_end(instance, instance.ending)
        return instance

    def remove(self, uid: str, ending: Ending) -> None:
        """The pod is gone. `ending` is told to later callers, unless the pod had one itself."""
        instance = self._by_uid.get(uid)
        self._claimed.pop(uid, None)
        if instance is None:
            return
        self._unindex(uid)
        if instance.state != names.STATE_FREE:
            self.remember(instance, instance.ending or ending)
        self._end_calls(uid)

    def forget(self, instance: Instance, ending: Ending) -> None:
        """The pod is gone by our own doing, though it may never have been seen here."""
        self.remember(instance, ending)
        self.remove(instance.uid, ending)

    def remember(self, instance: Instance, ending: Ending) -> None:
        """Keep why a sandbox ended; the first reason stays."""
        known = self._by_uid.get(instance.uid, instance)
        if known.ending is None:
            self._tell_end(instance, ending)
        kept = Ended(instance.id, instance.tenant, instance.run, ending)
        self._ended.setdefault(instance.id, kept)
        while len(self._ended) > self._keep_ended:
            self._ended.popitem(last=False)

    def _tell_end(self, instance: Instance, ending: Ending) -> None:
        if instance.id not in self._ended and instance.state != names.STATE_FREE:
            self.on_end(instance, ending)

    @contextlib.contextmanager
    def during(self, uid: str, call: Cancellable) -> Iterator[None]:
        """Cancel `call` when the pod ends while the block runs."""
        self._calls[uid].add(call)
        try:
            yield
        finally:
            calls = self._calls.get(uid)
            if calls is not None:
                calls.discard(call)
                if not calls:
                    del self._calls[uid]

    def _end_calls(self, uid: str) -> None:
        for call in list(self._calls.get(uid, ())):
            call.cancel()

    def _index(self, instance: Instance) -> None:
        self._by_uid[instance.uid] = instance
        self._by_id[instance.id] = instance.uid
        self.pods[instance.namespace, instance.pool] += 1
        if instance.key is not None:
            self._by_key[instance.key].add(instance.uid)
        if instance.tenant is not None:
            self._by_tenant[instance.tenant].add(instance.uid)
        if (what := _prepared(instance)) is not None:
            self._by_prepared[what].add(instance.uid)

    def _unindex(self, uid: str) -> None:
        old = self._by_uid.pop(uid, None)
        if old is None:
            return
        self._by_id.pop(old.id, None)
        self.pods[old.namespace, old.pool] -= 1
        for index, value in (
            (self._by_key, old.key),
            (self._by_tenant, old.tenant),
            (self._by_prepared, _prepared(old)),
        ):
            if value is not None and value in index:
                index[value].discard(uid)
                if not index[value]:
                    del index[value]


def _prepared(instance: Instance) -> str | None:
    return instance.prepared if instance.state == names.STATE_RESERVED else None


def _rank(instance: Instance) -> float:
    is_marked = _prepared(instance) is not None
    return _RANKS.get(instance.state, len(_RANKS)) + is_marked / 2
