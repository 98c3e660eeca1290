"""Turns: shares by weight while all wait, evaluations first, no credit for absence, nothing lost."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway import fairness
from gateway.allocation import Allocation
from gateway.fairness import FairQueue, Ticket
from gateway.model import Purpose
from gateway.orders import Slot

# The long form: SANDMAN_TEST_HISTORIES=10000.
HISTORIES = int(os.environ.get("SANDMAN_TEST_HISTORIES", "150"))


def ticket(number: int, tenant: str = "acme", *, run: str = "r", weight: float = 1.0, **changes):
    return Ticket(number, "root", "task", tenant=tenant, run=run, weight=weight, **changes)


def filled(*tickets: Ticket) -> FairQueue:
    queue = FairQueue()
    for one in tickets:
        queue.add(one)
    return queue


def serve(queue: FairQueue, count: int) -> list[Ticket]:
    """The next so many, each taken before the next is looked for."""
    taken = []
    for _ in range(count):
        one = next(queue.in_order())
        queue.take(one.number)
        taken.append(one)
    return taken


def crowd(tenant: str, first: int, count: int, **changes) -> list[Ticket]:
    return [ticket(first + n, tenant, **changes) for n in range(count)]


def test_of_one_tenant_and_run_who_came_first_is_first():
    queue = filled(*crowd("acme", 1, 4))
    assert [one.number for one in serve(queue, 4)] == [1, 2, 3, 4]


def test_shares_are_as_the_weights_while_both_wait():
    queue = filled(*crowd("big", 0, 300, weight=3.0), *crowd("small", 1000, 300))
    served = Counter(one.tenant for one in serve(queue, 200))
    assert served == {"big": 150, "small": 50}


def test_who_came_late_waits_for_nobodys_whole_crowd():
    queue = filled(*crowd("acme", 0, 500))
    serve(queue, 100)
    queue.add(ticket(900, "late"))
    assert 900 in [one.number for one in serve(queue, 2)]


def test_to_have_asked_for_nothing_earns_no_credit():
    queue = filled(*crowd("acme", 0, 500), ticket(900, "idle"))
    serve(queue, 200)
    for one in crowd("idle", 1000, 100):
        queue.add(one)
    served = Counter(one.tenant for one in serve(queue, 50))
    assert abs(served["acme"] - served["idle"]) <= 1


def test_to_leave_and_come_back_clears_no_debt():
    queue = filled(*crowd("acme", 0, 100), ticket(500, "hopper", weight=0.1))
    hops = 0
    for number in range(600, 620):
        taken = serve(queue, 1)[0]
        if taken.tenant == "hopper":
            hops += 1
            queue.add(ticket(number, "hopper", weight=0.1))
    assert hops <= 3


def test_evaluations_come_before_rollouts_of_their_tenant_and_of_no_other():
    evaluations = crowd("acme", 100, 2, purpose=Purpose.EVAL)
    queue = filled(*crowd("acme", 0, 4), *crowd("zeta", 200, 4), *evaluations)
    served = serve(queue, 8)
    assert [one.number for one in served if one.tenant == "acme"] == [100, 101, 0, 1]
    assert Counter(one.tenant for one in served) == {"acme": 4, "zeta": 4}


def test_runs_of_a_tenant_share_alike():
    queue = filled(*crowd("acme", 0, 100, run="wide"), *crowd("acme", 500, 5, run="narrow"))
    served = Counter(one.run for one in serve(queue, 10))
    assert served == {"wide": 5, "narrow": 5}


def test_one_that_lost_what_it_got_comes_first_and_pays_once():
    queue = filled(*crowd("acme", 0, 10), *crowd("zeta", 100, 10))
    [lost] = serve(queue, 1)
    queue.put_back(lost)
    assert queue.place(lost.number) == 1
    served = serve(queue, 7)
    assert served[0] == lost
    assert Counter(one.tenant for one in served) == {"acme": 4, "zeta": 3}


def test_places_are_those_of_the_service():
    queue = filled(*crowd("big", 0, 6, weight=2.0), *crowd("small", 100, 6))
    places = {number: queue.place(number) for number in [*range(6), *range(100, 106)]}
    served = [one.number for one in serve(queue, 12)]
    assert [places[number] for number in served] == list(range(1, 13))
    assert queue.place(0) is None


def test_who_leaves_is_not_served_and_may_have_left_before():
    queue = filled(*crowd("acme", 0, 3))
    assert queue.remove(1) is not None
    assert queue.remove(1) is None
    assert [one.number for one in serve(queue, 2)] == [0, 2]
    assert len(queue) == 0
    assert list(queue.in_order()) == []
    assert repr(queue) == "<FairQueue waiting=0 tenants=[]>"


def test_accounts_of_the_absent_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(fairness, "DEBTS_MAX", 10)
    queue = FairQueue()
    for number in range(500):
        queue.add(ticket(number, f"t{number}"))
        serve(queue, 1)
    assert len(queue._turns._used) <= 12


def test_newcomers_without_end_starve_nobody():
    """A run for each rollout is usual: one long run must get on beside them."""
    queue = filled(*crowd("acme", 0, 50, run="long"))
    served = []
    for number in range(100, 300):
        queue.add(ticket(number, run=f"run-{number}"))
        served += serve(queue, 1)
    assert sum(one.run == "long" for one in served) >= 5


def test_places_far_back_are_not_counted(monkeypatch):
    monkeypatch.setattr(fairness, "PLACE_MAX", 5)
    queue = filled(*crowd("acme", 0, 10))
    assert [queue.place(number) for number in (0, 4, 5, 9)] == [1, 5, None, None]


def test_thousands_of_runs_and_all_of_them_leaving_are_cheap():
    """A trainer with a run for each of its calls is killed: the allocator must not stand still for it."""
    queue = FairQueue()
    looks = 0

    class Counted(float):
        def __lt__(self, other: float) -> bool:
            nonlocal looks
            looks += 1
            return float.__lt__(self, other)

    for number in range(2000):
        queue.add(ticket(number, run=f"run-{number}"))
    runs = queue._tenants["acme"].purposes[Purpose.TRAIN]
    runs.turns._used = {run: Counted(used) for run, used in runs.turns._used.items()}
    assert next(queue.in_order()).number == 0
    # Comparisons of accounts, by heap: linear for the first, logarithmic for each after it.
    assert looks < 10_000
    for number in range(2000):
        queue.remove(number)
    assert len(queue) == 0
    assert not queue.wants("task")


@pytest.mark.parametrize("swap", [True, False])
def test_the_allocation_serves_by_turns(swap):
    allocation = Allocation(cold_max=0, claims_max=1000)
    for one in [*crowd("big", 0, 90, weight=3.0), *crowd("small", 100, 90)]:
        allocation.arrive(one)
    for number in range(40):
        allocation.offer(Slot(f"p{number}", "root", "task", "n1", swap=swap))
    served = Counter(order.ticket.tenant for order in allocation.assign())
    assert served == {"big": 30, "small": 10}


def test_pools_take_turns_where_a_limit_is_common():
    allocation = Allocation(cold_max=1, claims_max=0)
    allocation.images.report("n1", ["task"])
    for number in range(6):
        allocation.arrive(Ticket(number, "ab"[number % 2], "task"))
    served = []
    for _ in range(6):
        [order] = allocation.assign()
        served.append(order.ticket.pool)
        allocation.done(order.ticket)
    assert Counter(served[:4]) == {"a": 2, "b": 2}


def test_slots_that_serve_nobody_who_waits_cost_no_look_at_the_queue():
    allocation = Allocation(cold_max=0, claims_max=10)
    for number in range(5):
        allocation.offer(Slot(f"c{number}", "root", "task", "closed", swap=True))
        allocation.offer(Slot(f"o{number}", "fixed", "other", "n1", swap=False))
    allocation.cordon("closed", closed=True)
    for number in range(10):
        allocation.arrive(ticket(number))
        allocation.arrive(Ticket(100 + number, "fixed", "task"))
    assert not allocation._may_claim("root", 10)
    assert not allocation._may_claim("fixed", 10)
    assert allocation.assign() == []
    assert allocation.statistics().free == 10
    allocation.arrive(Ticket(200, "fixed", "other"))
    assert [order.ticket.number for order in allocation.assign()] == [200]
    allocation.cordon("closed", closed=False)
    assert len(allocation.assign()) == 5


def test_a_placeholder_of_a_closed_node_may_go_and_another_come():
    allocation = Allocation(cold_max=0, claims_max=10)
    allocation.cordon("n1", closed=True)
    allocation.cordon("n1", closed=True)
    allocation.offer(Slot("p", "root", "task", "n1", swap=True))
    allocation.forget("p")
    allocation.offer(Slot("q", "root", "task", "n1", swap=True))
    allocation.cordon("n1", closed=False)
    allocation.arrive(ticket(1))
    assert [order.slot.uid for order in allocation.assign() if order.slot] == ["q"]


WEIGHTS = {"a": 1.0, "b": 2.0, "c": 5.0}


@settings(max_examples=HISTORIES, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy")), max_size=60), st.data())
def test_no_one_gets_more_than_a_turn_beyond_their_share(waiting, data):
    """While all three wait, each has had its share to within one turn of each other."""
    queue = FairQueue()
    number = 0
    for tenant in "abc":
        for _ in range(100):
            queue.add(ticket(number, tenant, weight=WEIGHTS[tenant]))
            number += 1
    for tenant, run in waiting:
        queue.add(ticket(number, tenant, run=run, weight=WEIGHTS[tenant]))
        number += 1
    count = data.draw(st.integers(1, 150))
    served = Counter(one.tenant for one in serve(queue, count))
    rounds = {tenant: served[tenant] / weight for tenant, weight in WEIGHTS.items()}
    assert max(rounds.values()) - min(rounds.values()) <= 1.0 + 1e-9


class AnyHistory(RuleBasedStateMachine):
    """Arrivals, departures, service and returns in any order, against a plain account."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue()
        self.waiting: dict[int, Ticket] = {}
        self.served: dict[int, Ticket] = {}
        self.count = 0

    @rule(
        tenant=st.sampled_from("abc"),
        run=st.sampled_from("xy"),
        purpose=st.sampled_from(list(Purpose)),
    )
    def arrive(self, tenant, run, purpose):
        self.count += 1
        one = ticket(self.count, tenant, run=run, purpose=purpose, weight=WEIGHTS[tenant])
        self.queue.add(one)
        self.waiting[one.number] = one

    @rule()
    def take_the_next(self):
        one = next(self.queue.in_order(), None)
        assert (one is None) == (not self.waiting)
        if one is not None:
            self.queue.take(one.number)
            self.served[one.number] = self.waiting.pop(one.number)

    @rule(data=st.data())
    def take_another(self, data):
        """The next need not be what can be served."""
        if self.waiting:
            number = data.draw(st.sampled_from(sorted(self.waiting)))
            self.queue.take(number)
            self.served[number] = self.waiting.pop(number)

    @rule(data=st.data())
    def leave(self, data):
        if self.waiting:
            number = data.draw(st.sampled_from(sorted(self.waiting)))
            assert self.queue.remove(number) == self.waiting.pop(number)

    @rule(data=st.data())
    def come_back(self, data):
        if self.served:
            number = data.draw(st.sampled_from(sorted(self.served)))
            self.queue.put_back(self.served[number])
            self.waiting[number] = self.served.pop(number)

    @invariant()
    def all_that_wait_are_in_line_once(self):
        order = [one.number for one in self.queue.in_order()]
        assert sorted(order) == sorted(self.waiting)
        assert len(self.queue) == len(self.waiting)
        if order:
            assert self.queue.place(order[-1]) == len(order)

    @invariant()
    def evaluations_precede_rollouts_and_those_what_is_ahead_of_their_tenant(self):
        ranks = list(Purpose)
        latest: dict[str, int] = {}
        for one in self.queue.in_order():
            if one.number in self.queue._returned:
                continue
            assert ranks.index(one.purpose) >= latest.get(one.tenant, 0)
            latest[one.tenant] = ranks.index(one.purpose)


AnyHistory.TestCase.settings = settings(
    max_examples=HISTORIES, stateful_step_count=30, deadline=None
)
TestAnyHistory = AnyHistory.TestCase
