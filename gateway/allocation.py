"""Which request gets which placeholder. Pure: no clock, no task, no socket.

One owner (`pool`) tells it what it saw; `assign()` answers with what must be done. A request that
waits is a *ticket*, a placeholder that may be taken is a *slot*. A slot is given to one ticket at
most, whatever the order of events: it leaves `_free` when given, and nothing but `give_back` (the
pod was not taken) brings it in again. A pod seen as free by a late watch event is no slot if it
was given before: `_given` remembers that until the pod is gone.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

from gateway.fairness import FairQueue, Ticket
from gateway.gangs import Gangs
from gateway.images import Images
from gateway.model import Tier
from gateway.orders import Order, Slot, Statistics
from gateway.placing import ByNode

if TYPE_CHECKING:
    from collections.abc import Iterator


EVAL_PART = 8
"""An eighth of the claims and new pods that may be in hand comes on top of them for pools of evaluations, so that a burst
of rollouts, whose images take minutes to pull, holds up none."""


class Allocation:
    """The state behind `assign()`.

    Args:
        cold_max: pods in the making at once; 0: none are ever made.
        claims_max: claims in flight at once.
        images: what is known of images, shared with those who learn it.
    """

    def __init__(self, *, cold_max: int, claims_max: int, images: Images | None = None) -> None:
        self._cold_max = cold_max
        self._claims_max = claims_max
        self.images = images or Images()
        self.may_make = cold_max > 0
        """Whether pods can be made at all."""
        self.evaluating: set[str] = set()
        """Pools for evaluations."""
        self._gangs: Gangs[Order] = Gangs()
        # By pool; the one whose turn it is to choose first comes first.
        self._queues: OrderedDict[str, FairQueue] = OrderedDict()
        # pool → image → uid → slot: a warm match and "any other image" are both found at once.
        self._free: dict[str, dict[str, OrderedDict[str, Slot]]] = {}
        # The same by node, so that who avoids some looks past no placeholder of theirs.
        self._by_node: ByNode[Slot] = ByNode()
        self._slots: dict[str, Slot] = {}
        # What is prepared is found by what for: (pool, prepared) → uid → slot.
        self._ready = 0
        self._prepared: dict[tuple[str, str], OrderedDict[str, Slot]] = {}
        # uid → number of the ticket that it was given to.
        self._given: dict[str, int] = {}
        # Given to a reservation, and then free for whom it was prepared for: that once.
        self._came_back: set[str] = set()
        self._kept: set[str] = set()
        self._busy: dict[int, Order] = {}
        self._cordoned: set[str] = set()

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<Allocation waiting={s.waiting} free={s.free} claiming={s.claiming} cold={s.cold}>"

    def statistics(self) -> Statistics:
        """Counts for metrics."""
        cold = sum(order.slot is None for order in self._busy.values())
        waiting = sum(len(queue) for queue in self._queues.values()) + len(self._gangs)
        free = len(self._slots) - self._ready
        return Statistics(waiting, free, len(self._busy) - cold, cold, self._ready)

    def is_given(self, uid: str) -> bool:
        """Whether this placeholder was given to somebody."""
        return uid in self._given

    def is_in_play(self, uid: str) -> bool:
        """Whether this placeholder may be given to somebody, or was."""
        slot = self._slots.get(uid)
        return uid in self._given or (slot is not None and slot.node not in self._cordoned)

    def free(self) -> Counter[str]:
        """Placeholders that may be given, by pool; those on closed nodes are among them."""
        return Counter(slot.pool for slot in self._slots.values())

    def position(self, ticket: Ticket) -> int | None:
        """Place in the queue, first is 1; None when the ticket does not wait."""
        if ticket.number in self._gangs:
            return 1
        queue = self._queues.get(ticket.pool)
        return queue.place(ticket.number) if queue is not None else None

    def waiting(self, pool: str) -> int:
        """How many wait for this pool."""
        return len(self._queues.get(pool, ()))

    def is_waiting(self, ticket: Ticket) -> bool:
        """Whether it waits for an order."""
        return ticket.number in self._gangs or ticket.number in self._queues.get(ticket.pool, ())

    def has_queue(self, pool: str) -> bool:
        """Whether somebody waits for a sandbox of this pool."""
        return bool(self._queues.get(pool))

    def limit(self, *, claims: int, cold: int) -> None:
        """From now on so many claims in flight and pods in the making at once."""
        self._claims_max, self._cold_max = claims, cold

    # --- what the owner saw ---

    def arrive(self, ticket: Ticket, *, first: bool = False) -> None:
        """A request begins to wait; `first` for one that lost its placeholder through no fault."""
        self._gangs.arrive(ticket)
        queue = self._queues.setdefault(ticket.pool, FairQueue())
        (queue.put_back if first else queue.add)(ticket)

    def offer(self, slot: Slot) -> None:
        """A placeholder is free and vetted. One that was given before is passed over, unless it comes as
        prepared for the first time: then it was given to the reservation that had it prepared."""
        if slot.prepared and slot.uid not in self._came_back:
            self._came_back.add(slot.uid)
            self._given.pop(slot.uid, None)
        if slot.uid in self._given or slot.uid in self._slots:
            return
        self._slots[slot.uid] = slot
        self._ready += bool(slot.prepared)
        self.images.ran(slot.node, slot.image)
        self._show(slot)

    def withdraw(self, uid: str) -> None:
        """A placeholder is no longer free (taken elsewhere, ended, deleting)."""
        slot = self._slots.pop(uid, None)
        if slot is not None:
            self._ready -= bool(slot.prepared)
            self._hide(slot)
        elif (number := self._given.get(uid)) is not None and number in self._gangs:
            self._lose(number, uid)
        elif uid in self._kept:
            self._kept.discard(uid)
            del self._given[uid]

    def forget(self, uid: str) -> None:
        """The pod does not exist any more."""
        self.withdraw(uid)
        self._given.pop(uid, None)
        self._came_back.discard(uid)

    def cordon(self, node: str, *, closed: bool) -> None:
        """A node takes no more claims, or does again."""
        if closed == (node in self._cordoned):
            return
        here = [slot for slot in self._slots.values() if slot.node == node]
        for slot in here:
            self._hide(slot)
        (self._cordoned.add if closed else self._cordoned.discard)(node)
        for slot in here:
            self._show(slot)
        for order in self._gangs.kept():
            if closed and order.slot is not None and order.slot.node == node:
                self._lose(order.ticket.number, order.slot.uid)
                self.offer(order.slot)

    # --- what became of an order ---

    def done(self, ticket: Ticket) -> None:
        """The order was carried out, or its slot is lost: either way the slot is spent."""
        self._busy.pop(ticket.number, None)

    def leave(self, ticket: Ticket) -> None:
        """The request waits no more (served, cancelled, timed out). An order that was not begun
        gives its slot back; one that was begun must be ended with `done` first."""
        self.images.leave(ticket)
        queue = self._queues.get(ticket.pool)
        if queue is not None:
            queue.remove(ticket.number)
        order = self._gangs.leave(ticket) or self._busy.pop(ticket.number, None)
        if order is not None:
            self.give_back(order)

    def give_back(self, order: Order) -> None:
        """The order's slot was not taken after all. Nothing to give if its pod is gone meanwhile."""
        slot = order.slot
        if slot is not None and self._given.get(slot.uid) == order.ticket.number:
            del self._given[slot.uid]
            self._kept.discard(slot.uid)
            self.offer(slot)

    def keep(self, ticket: Ticket) -> Order | None:
        """A placeholder for one whose new pod finds no node, kept from all others until `give_back`; None: there is none
        that it could be given at once."""
        is_held = self.images.is_held(ticket) and not self.images.may_overtake(ticket)
        claims = self._most(ticket.pool)[0] - self.statistics().claiming - len(self._kept)
        if ticket.is_fresh or ticket.gang or is_held or claims <= 0:
            return None
        slot = self._choose(ticket)
        if slot is None:
            return None
        self.withdraw(slot.uid)
        self._given[slot.uid] = ticket.number
        self._kept.add(slot.uid)
        return Order(ticket, Tier.WARM, slot)

    # --- the decision ---

    def assign(self) -> list[Order]:
        """Orders for tickets that can be served now, in the order of `fairness` within each pool.

        A ticket that cannot be served (its pool has no slot and too many pods are in the making)
        does not hold up tickets of other pools. The pools take turns to choose first: claims and
        pods in the making at once are limited for all of them together. A gang's orders are kept back
        until they are due (`gangs`).
        """
        orders = self._due()
        for pool in list(self._queues):
            served = self._serve(pool)
            if served:
                self._queues.move_to_end(pool)
            orders += [order for order in served if order.ticket.number not in self._gangs]
        return orders + self._due()

    def _due(self) -> list[Order]:
        """Orders of a gang that were kept back and are so no longer."""
        claims = self._claims_max - self.statistics().claiming
        return [self._book(order) for order in self._gangs.take(claims, self._may_begin)]

    def _may_begin(self, order: Order) -> bool:
        """Whether it need not wait for a canary of its image."""
        return not self.images.is_held(order.ticket) or self.images.may_overtake(order.ticket)

    def _lose(self, number: int, uid: str) -> None:
        """What was kept for a member of a gang is no more: it waits again, before all others."""
        order = self._gangs.drop(number)
        if order is not None:
            del self._given[uid]
            self._queues[order.ticket.pool].put_back(order.ticket)

    def _serve(self, pool: str) -> list[Order]:
        orders = list(self._decide(pool))
        for order in orders:
            self._queues[pool].take(order.ticket.number)
        return orders

    def _decide(self, pool: str) -> Iterator[Order]:
        queue = self._queues[pool]
        counts = self.statistics()
        claims, cold = self._most(pool)
        claims, cold = claims - counts.claiming, cold - counts.cold
        if not queue or self._is_held(pool):
            return
        # What found nothing finds nothing later in this pass either: placeholders only become fewer. Where an image has
        # failed says which is the best, never whether there is one.
        barren: set[tuple[str, str, frozenset[str]]] = set()
        for ticket in queue.in_order():
            is_spent = not self._may_claim(pool, claims) and (cold <= 0 or self._serves_all(pool))
            if is_spent and not (ticket.is_fresh and cold > 0):
                return
            is_held = self.images.is_held(ticket)
            if self._gangs.is_barred(ticket) or (is_held and not self.images.may_overtake(ticket)):
                continue
            what = (ticket.image, ticket.prepared, ticket.avoid)
            slot = None if ticket.is_fresh or what in barren else self._choose(ticket)
            if slot is None and not ticket.is_fresh:
                barren.add(what)
            if slot is not None and claims > 0:
                order = self._give(ticket, slot)
                claims -= ticket.number not in self._gangs
                yield order
            elif slot is None and cold > 0 and not is_held:
                cold -= 1
                self._gangs.go_on_without(ticket)
                yield self._book(Order(ticket, Tier.COLD, None))

    def _most(self, pool: str) -> tuple[int, int]:
        """Claims and new pods that may be in hand for this pool to go on."""
        part = EVAL_PART if pool in self.evaluating else math.inf
        return (
            self._claims_max + math.ceil(self._claims_max / part),
            self._cold_max + math.ceil(self._cold_max / part),
        )

    def _is_held(self, pool: str) -> bool:
        """Whether all who wait hang on canaries: then nobody need be looked at. A canary itself may wait too,
        between two tries."""
        queue, canaries = self._queues[pool], self.images.canaries(pool)
        can_overtake = pool in self._free
        held = sum(
            queue.count(one.image)
            for one in canaries
            if not (can_overtake and self.images.may_overtake(one))
        )
        return held == len(queue) and not any(one.number in queue for one in canaries)

    def _may_claim(self, pool: str, claims: int) -> bool:
        """Whether some free placeholder would serve somebody who waits: else nobody need be looked at."""
        queue = self._queues[pool]
        if claims > 0 and any(at == pool and queue.wants(what) for at, what in self._prepared):
            return True
        return claims > 0 and any(
            queue.wants(image) or next(iter(slots.values())).swap
            for image, slots in self._free.get(pool, {}).items()
        )

    def _serves_all(self, pool: str) -> bool:
        """Whether there is a free placeholder for whoever asks: nothing need be made, and with no claim left
        nobody need be looked at."""
        return any(next(iter(slots.values())).swap for slots in self._free.get(pool, {}).values())

    def _choose(self, ticket: Ticket) -> Slot | None:
        """The best slot: one that was prepared for this, then one of the same image, then any whose image may
        be changed: on a node that holds the image, on one where the request has not failed yet, anywhere. Never on
        a node that its caller does not want."""
        pool, shunned = ticket.pool, ticket.avoid
        there = self._prepared.get((pool, ticket.prepared), OrderedDict())
        images = self._free.get(pool, {})
        alike = images.get(ticket.image, OrderedDict())
        for what, slots in ((ticket.prepared, there), (ticket.image, alike)):
            # The oldest of these; any on another node for whom shuns some.
            same = next(iter(slots.values()), None)
            if same is not None and shunned:
                same = self._by_node.elsewhere(pool, shunned, what)
            if same is not None:
                return same
        avoid = {*self.images.avoided(ticket), *shunned}
        near = self._by_node.best(pool, near=self.images.likely(ticket), avoid=avoid)
        if near is None and avoid:
            near = self._by_node.elsewhere(pool, avoid)
        last = near or self._by_node.elsewhere(pool, shunned)
        if shunned or near is not None or last is None:
            return last
        # The oldest, on whatever node: this spreads.
        return next((one for slots in images.values() for one in slots.values() if one.swap), last)

    def _give(self, ticket: Ticket, slot: Slot) -> Order:
        self.withdraw(slot.uid)
        self._given[slot.uid] = ticket.number
        is_warm = bool(slot.prepared) or slot.image == ticket.image
        order = Order(ticket, Tier.WARM if is_warm else Tier.SWAP, slot)
        return order if self._gangs.keep(ticket, order) else self._book(order)

    def _book(self, order: Order) -> Order:
        self.images.begin(order.ticket, order.slot.node if order.slot else "")
        self._busy[order.ticket.number] = order
        return order

    def _show(self, slot: Slot) -> None:
        """It may be chosen, unless its node takes no claims."""
        if slot.node in self._cordoned:
            return
        self._by_node.add(slot, slot.prepared or slot.image)
        if slot.prepared:
            self._prepared.setdefault((slot.pool, slot.prepared), OrderedDict())[slot.uid] = slot
        else:
            images = self._free.setdefault(slot.pool, {})
            images.setdefault(slot.image, OrderedDict())[slot.uid] = slot
            if slot.swap:
                self._by_node.add(slot)

    def _hide(self, slot: Slot) -> None:
        if slot.node in self._cordoned:
            return
        self._by_node.remove(slot, slot.prepared or slot.image)
        if slot.prepared:
            ready = self._prepared[slot.pool, slot.prepared]
            ready.pop(slot.uid, None)
            if not ready:
                del self._prepared[slot.pool, slot.prepared]
            return
        self._by_node.remove(slot)
        images = self._free[slot.pool]
        images[slot.image].pop(slot.uid, None)
        if not images[slot.image]:
            del images[slot.image]
        if not images:
            del self._free[slot.pool]
