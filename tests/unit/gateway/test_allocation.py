"""The allocation's law: no placeholder serves two, no request is lost, whatever the order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.allocation import Allocation
from gateway.fairness import Ticket
from gateway.model import Tier
from gateway.orders import Order, Slot

BASE = "registry.example/base:1"
TASK = "registry.example/task:1"


def slot(uid: str, *, pool: str = "root", image: str = BASE, node: str = "n1", swap: bool = True):
    return Slot(uid, pool, image, node, swap)


def allocation(*, cold_max: int = 2, claims_max: int = 8) -> Allocation:
    made = Allocation(cold_max=cold_max, claims_max=claims_max)
    # Images that nobody has seen go through a canary: test_images.
    made.images.report("n0", [BASE, TASK])
    return made


def test_a_placeholder_of_the_same_image_is_warm_and_comes_before_any_other():
    a = allocation()
    a.offer(slot("other"))
    a.offer(slot("same", image=TASK))
    a.arrive(Ticket(1, "root", TASK))
    [order] = a.assign()
    assert (order.tier, order.slot and order.slot.uid) == (Tier.WARM, "same")


def test_any_other_placeholder_is_a_swap():
    a = allocation()
    a.offer(slot("p"))
    a.arrive(Ticket(1, "root", TASK))
    assert a.assign() == [Order(Ticket(1, "root", TASK), Tier.SWAP, slot("p"))]


def test_a_pool_that_forbids_swaps_gives_its_own_image_only():
    a = allocation()
    a.offer(slot("p", swap=False))
    a.arrive(Ticket(1, "root", TASK))
    a.arrive(Ticket(2, "root", BASE))
    assert [(o.ticket.number, o.tier) for o in a.assign()] == [(1, Tier.COLD), (2, Tier.WARM)]


def test_without_a_placeholder_a_pod_is_made_up_to_the_limit_and_the_rest_wait_in_order():
    a = allocation(cold_max=2)
    for number in (1, 2, 3, 4):
        a.arrive(Ticket(number, "root", TASK))
    assert [o.ticket.number for o in a.assign()] == [1, 2]
    assert a.position(Ticket(3, "root", TASK)) == 1
    assert a.position(Ticket(4, "root", TASK)) == 2
    a.done(Ticket(1, "root", TASK))
    assert [o.ticket.number for o in a.assign()] == [3]


def test_claims_in_flight_are_limited():
    a = allocation(claims_max=1, cold_max=0)
    a.offer(slot("p1"))
    a.offer(slot("p2"))
    a.arrive(Ticket(1, "root", TASK))
    a.arrive(Ticket(2, "root", TASK))
    assert len(a.assign()) == 1
    a.done(Ticket(1, "root", TASK))
    assert len(a.assign()) == 1


def test_a_pool_without_placeholders_does_not_hold_up_another():
    a = allocation(cold_max=0)
    a.offer(slot("p", pool="b"))
    a.arrive(Ticket(1, "a", TASK))
    a.arrive(Ticket(2, "b", TASK))
    assert [o.ticket.number for o in a.assign()] == [2]


def test_a_cordoned_node_gets_no_claim_until_it_is_open_again():
    a = allocation(cold_max=0)
    a.offer(slot("p", node="n1"))
    a.cordon("n1", closed=True)
    a.arrive(Ticket(1, "root", TASK))
    assert a.assign() == []
    a.cordon("n1", closed=False)
    assert len(a.assign()) == 1


def test_a_late_sighting_of_a_given_placeholder_does_not_make_it_free_again():
    a = allocation(cold_max=0)
    a.offer(slot("p"))
    a.arrive(Ticket(1, "root", TASK))
    [order] = a.assign()
    a.done(order.ticket)
    a.offer(slot("p"))
    a.arrive(Ticket(2, "root", TASK))
    assert a.assign() == []


def test_leaving_before_the_order_was_begun_gives_the_placeholder_back():
    a = allocation(cold_max=0)
    a.offer(slot("p"))
    a.arrive(Ticket(1, "root", TASK))
    [order] = a.assign()
    a.leave(order.ticket)
    a.arrive(Ticket(2, "root", TASK))
    assert [o.slot for o in a.assign()] == [slot("p")]


def test_a_placeholder_whose_pod_is_gone_is_not_given_back():
    a = allocation(cold_max=0)
    a.offer(slot("p"))
    a.arrive(Ticket(1, "root", TASK))
    [order] = a.assign()
    a.forget("p")
    a.leave(order.ticket)
    assert a.statistics().free == 0


def test_one_that_lost_its_placeholder_comes_first():
    a = allocation(cold_max=0)
    a.arrive(Ticket(1, "root", TASK))
    a.arrive(Ticket(2, "root", TASK), first=True)
    a.offer(slot("p"))
    assert [o.ticket.number for o in a.assign()] == [2]


def test_repr_shows_the_state_in_one_line():
    a = allocation()
    a.offer(slot("p"))
    a.arrive(Ticket(1, "root", TASK))
    a.assign()
    assert repr(a) == "<Allocation waiting=0 free=0 claiming=1 cold=0>"


def prepared(uid: str, what: str = "h1", **changes) -> Slot:
    return Slot(uid, "root", TASK, "n1", swap=True, prepared=what, **changes)


def test_what_was_prepared_for_a_request_comes_before_anything_else_and_is_warm():
    a = allocation()
    a.offer(slot("same", image=TASK))
    a.offer(prepared("ready"))
    a.arrive(Ticket(1, "root", TASK, prepared="h1"))
    [order] = a.assign()
    assert (order.tier, order.slot and order.slot.uid) == (Tier.WARM, "ready")


def test_what_was_prepared_for_others_serves_nobody_else():
    a = allocation(cold_max=0)
    a.offer(prepared("p"))
    for number, (pool, what) in enumerate([("root", ""), ("root", "h2"), ("other", "h1")]):
        a.arrive(Ticket(number, pool, TASK, prepared=what))
    assert a.assign() == []
    assert (a.statistics().free, a.statistics().prepared) == (0, 1)


def test_a_placeholder_comes_back_prepared_once_from_the_reservation_that_took_it():
    a = allocation(cold_max=0)
    a.offer(slot("p"))
    a.arrive(Ticket(1, "root", TASK))
    [order] = a.assign()
    a.done(order.ticket)
    a.offer(prepared("p"))
    a.arrive(Ticket(2, "root", TASK, prepared="h1"))
    [order] = a.assign()
    a.done(order.ticket)
    # The watch is behind.
    a.offer(prepared("p"))
    a.arrive(Ticket(3, "root", TASK, prepared="h1"))
    assert a.assign() == []


def test_on_a_cordoned_node_nothing_that_is_prepared_is_given():
    a = allocation(cold_max=0)
    a.cordon("n1", closed=True)
    a.offer(prepared("p"))
    a.arrive(Ticket(1, "root", TASK, prepared="h1"))
    assert a.assign() == []
    a.withdraw("p")
    a.offer(prepared("p"))
    a.cordon("n1", closed=False)
    assert len(a.assign()) == 1


class AnyOrder(RuleBasedStateMachine):
    """Every event in every order, against a plain account of who has what."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Allocation(cold_max=2, claims_max=3)
        self.exists: dict[str, Slot] = {}
        self.held: dict[str, int] = {}
        self.spent: set[str] = set()
        self.prepared: dict[str, Slot] = {}
        self.waiting: dict[int, Ticket] = {}
        self.busy: dict[int, Order] = {}
        self.numbers = 0

    pods = st.sampled_from([f"p{i}" for i in range(6)])
    pools = st.sampled_from(["root", "other"])
    images = st.sampled_from([BASE, TASK])
    hashes = st.sampled_from(["", "h1", "h2"])

    @rule(uid=pods, pool=pools, image=images)
    def seen_free(self, uid, pool, image):
        """Also a late sighting of one that was given or taken."""
        self.a.offer(self.exists.setdefault(uid, slot(uid, pool=pool, image=image)))

    @rule(uid=pods, what=st.sampled_from(["h1", "h2"]))
    def seen_prepared(self, uid, what):
        """What was taken comes back prepared; also a late sighting of that."""
        if uid in self.spent and uid not in self.prepared:
            self.spent.discard(uid)
            old = self.exists[uid]
            self.prepared[uid] = Slot(uid, old.pool, old.image, "n1", swap=True, prepared=what)
        if uid in self.prepared:
            self.a.offer(self.prepared[uid])

    @rule(uid=pods)
    def pod_gone(self, uid):
        self.a.forget(uid)
        self.prepared.pop(uid, None)
        self.exists.pop(uid, None)
        self.spent.discard(uid)
        self.held.pop(uid, None)

    @rule(pool=pools, image=images, what=hashes, first=st.booleans())
    def arrive(self, pool, image, what, first):
        self.numbers += 1
        ticket = Ticket(self.numbers, pool, image, prepared=what)
        self.a.arrive(ticket, first=first)
        self.waiting[ticket.number] = ticket

    @rule()
    def assign(self):
        for order in self.a.assign():
            del self.waiting[order.ticket.number]
            self.busy[order.ticket.number] = order
            if order.slot is not None:
                uid = order.slot.uid
                assert uid in self.exists, "given, though it does not exist"
                assert uid not in self.held, "given to two"
                assert uid not in self.spent, "given again after it was taken"
                assert order.slot.pool == order.ticket.pool
                ready = order.slot.prepared
                assert ready in {"", order.ticket.prepared}, "prepared for somebody else"
                assert ready or uid not in self.prepared, "free though it was prepared"
                is_warm = bool(ready) or order.slot.image == order.ticket.image
                assert (order.tier is Tier.WARM) == is_warm
                self.held[uid] = order.ticket.number

    @rule(data=st.data())
    def carried_out(self, data):
        if self.busy:
            number = data.draw(st.sampled_from(sorted(self.busy)))
            order = self.busy.pop(number)
            self.a.done(order.ticket)
            self.a.leave(order.ticket)
            if order.slot is not None and self.held.get(order.slot.uid) == number:
                del self.held[order.slot.uid]
                self.spent.add(order.slot.uid)

    @rule(data=st.data())
    def cancelled(self, data):
        every = {**self.waiting, **{n: o.ticket for n, o in self.busy.items()}}
        if every:
            number = data.draw(st.sampled_from(sorted(every)))
            self.a.leave(every[number])
            self.waiting.pop(number, None)
            order = self.busy.pop(number, None)
            slot_of = order.slot if order is not None else None
            if slot_of is not None and self.held.get(slot_of.uid) == number:
                del self.held[slot_of.uid]

    @invariant()
    def nothing_is_lost(self):
        counts = self.a.statistics()
        assert counts.waiting == len(self.waiting)
        assert counts.claiming + counts.cold == len(self.busy)
        assert counts.cold <= 2
        assert counts.claiming <= 3
        assert counts.free >= 0
        assert 0 <= counts.prepared <= len(self.prepared)


AnyOrder.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestAnyOrder = pytest.mark.timeout(120)(AnyOrder.TestCase)  # seconds of nothing but computing


def test_pools_for_evaluations_have_claims_and_new_pods_of_their_own():
    """An eighth, one at least, beyond what rollouts can have in hand."""
    a = allocation(claims_max=4, cold_max=2)
    a.evaluating.add("eval")
    for number in range(1, 7):
        a.offer(slot(f"root-{number}"))
        a.arrive(Ticket(number, "root", TASK))
    assert len(a.assign()) == 4
    for number in (11, 12):
        a.offer(slot(f"eval-{number}", pool="eval"))
        a.arrive(Ticket(number, "eval", TASK))
    assert [order.ticket.number for order in a.assign()] == [11]
    assert not a.assign()
    # The same where pods must be made; and none where none may be.
    b = allocation(claims_max=4, cold_max=2)
    b.evaluating.add("eval")
    for number in range(1, 5):
        b.arrive(Ticket(number, "root", TASK))
    assert len(b.assign()) == 2
    for number in (11, 12):
        b.arrive(Ticket(number, "eval", TASK))
    assert [order.ticket.number for order in b.assign()] == [11]
    c = allocation(cold_max=0)
    c.evaluating.add("eval")
    c.arrive(Ticket(1, "eval", TASK))
    assert not c.assign()


def test_nodes_that_a_request_avoids_serve_others():
    a = allocation(cold_max=0)
    away = frozenset({"n1"})
    a.offer(slot("warm", image=TASK, node="n1"))
    a.offer(slot("swap", node="n1"))
    a.offer(Slot("ready", "root", BASE, "n1", True, prepared="p"))
    a.arrive(Ticket(1, "root", TASK, prepared="p", avoid=away))
    assert not a.assign()
    a.arrive(Ticket(2, "root", TASK))
    [order] = a.assign()
    assert (order.ticket.number, order.slot.uid) == (2, "warm")
    a.offer(slot("other", node="n2"))
    [order] = a.assign()
    assert (order.ticket.number, order.slot.uid) == (1, "other")


def test_where_only_nodes_to_be_avoided_have_placeholders_a_pod_is_made():
    a = allocation()
    a.offer(slot("swap", node="n1"))
    a.arrive(Ticket(1, "root", TASK, avoid=frozenset({"n1"})))
    [order] = a.assign()
    assert (order.tier, order.slot) == (Tier.COLD, None)
