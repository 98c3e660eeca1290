"""Every event in every order, gangs and changing limits among them: no pod serves two, no request is
lost, nothing is made beyond the limits, gangs are served whole, and two of them never hold halves."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.allocation import Allocation
from gateway.fairness import Ticket
from gateway.model import Purpose, Tier
from gateway.orders import Order, Slot

# The long form: SANDMAN_TEST_HISTORIES=10000.
HISTORIES = int(os.environ.get("SANDMAN_TEST_HISTORIES", "120"))

BASE, TASK = "registry.example/base:1", "registry.example/task:1"
CLAIMS, COLD = 3, 2


class Histories(RuleBasedStateMachine):
    """The allocation against a plain account of who has what."""

    cold_most = COLD

    def __init__(self) -> None:
        super().__init__()
        self.claims, self.cold = CLAIMS, self.cold_most
        self.a = Allocation(cold_max=self.cold, claims_max=self.claims)
        self.exists: dict[str, Slot] = {}
        self.cordoned: set[str] = set()
        self.spent: set[str] = set()
        """Pods that were taken: they serve nobody else, whatever is seen of them."""
        self.in_play: dict[int, Ticket] = {}
        self.waiting: set[int] = set()
        self.busy: dict[int, Order] = {}
        self.ready: set[int] = set()
        """Members of gangs that are served and wait for the others."""
        self.numbers = 0
        self.lives: dict[int, int] = {}

    def _uid(self, place: int) -> str:
        """The pod at this place: another one once it is gone, since uids never recur."""
        return f"p{place}.{self.lives.get(place, 0)}"

    places = st.integers(0, 7)
    pools = st.sampled_from(["root", "root", "other"])
    images = st.sampled_from([BASE, TASK])
    nodes = st.sampled_from(["n1", "n2"])

    # --- what happens ---

    @rule(place=places, pool=pools, image=images, node=nodes)
    def seen_free(self, place, pool, image, node):
        """Also a late sighting of one that was given or taken."""
        uid = self._uid(place)
        self.a.offer(self.exists.setdefault(uid, Slot(uid, pool, image, node, pool == "root")))

    @rule(place=places)
    def taken_elsewhere(self, place):
        self._note_lost(self._uid(place))
        self.a.withdraw(self._uid(place))

    def _note_lost(self, uid):
        """What was kept for a member whose gang is being served already goes as what was given to it may."""
        now = self.a._gangs._now
        kept = now.kept.items() if now is not None and now.is_under_way else ()
        self.was_lost |= {n for n, order in kept if order.slot and order.slot.uid == uid}

    @rule(place=places)
    def pod_gone(self, place):
        uid = self._uid(place)
        self._note_lost(uid)
        self.a.forget(uid)
        self.exists.pop(uid, None)
        self.lives[place] = self.lives.get(place, 0) + 1

    @rule(node=nodes, closed=st.booleans())
    def cordon(self, node, closed):
        if closed:
            for uid in [one.uid for one in self.exists.values() if one.node == node]:
                self._note_lost(uid)
        self.a.cordon(node, closed=closed)
        (self.cordoned.add if closed else self.cordoned.discard)(node)

    @rule(claims=st.integers(0, CLAIMS), cold=st.integers(0, COLD))
    def limits_change(self, claims, cold):
        self.claims, self.cold = claims, min(cold, self.cold_most)
        self.a.limit(claims=self.claims, cold=self.cold)

    @rule(
        pool=pools, image=images, size=st.integers(1, 4), is_gang=st.booleans(),
        tenant=st.sampled_from(["acme", "zeta"]), purpose=st.sampled_from(Purpose),
    )  # fmt: skip
    def arrive(self, pool, image, size, is_gang, tenant, purpose):
        name = f"g{self.numbers}" if is_gang else ""
        for _ in range(size):
            self.numbers += 1
            ticket = Ticket(
                self.numbers, pool, image, tenant=tenant, purpose=purpose, gang=name
            )  # fmt: skip
            self.a.arrive(ticket)
            self.in_play[ticket.number] = ticket
            self.waiting.add(ticket.number)

    @rule()
    def assign(self):
        orders = self.a.assign()
        for order in orders:
            self._check(order)
            self.waiting.remove(order.ticket.number)
            self.busy[order.ticket.number] = order
        for gang in {order.ticket.gang for order in orders} - {""}:
            self._check_whole(gang)

    def _check(self, order: Order) -> None:
        if order.slot is None:
            assert self.cold_most > 0, "made, though nothing may be made"
            return
        uid = order.slot.uid
        assert uid in self.exists, "given, though it does not exist"
        assert order.slot.node not in self.cordoned, "given on a cordoned node"
        assert uid not in self.spent, "given again after it was taken"
        others = [one.slot.uid for one in self.busy.values() if one.slot is not None]
        assert uid not in others, "given to two"
        assert order.slot.pool == order.ticket.pool
        assert (order.tier is Tier.WARM) == (order.slot.image == order.ticket.image)
        assert order.slot.swap or order.tier is Tier.WARM, "its image may not be changed"

    def _check_whole(self, gang: str) -> None:
        """Where nothing can be made, no member is served before there is one for each. What is kept for
        those that are not told yet (claims in flight are limited) no other can have."""
        members = {n for n, one in self.in_play.items() if one.gang == gang}
        unserved = members & self.waiting
        lost = {n for n in unserved if n in self.was_lost}
        if self.cold_most == 0:
            assert unserved - lost <= {order.ticket.number for order in self.a._gangs.kept()}

    was_lost: frozenset[int] = frozenset()

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), how=st.sampled_from(["ready", "lost", "failed", "refused"]))
    def ended(self, data, how):
        """An order was carried out, lost its pod to somebody, failed for good, or was not done at all."""
        number = data.draw(st.sampled_from(sorted(self.busy)))
        order = self.busy.pop(number)
        if how == "refused":
            self.a.give_back(order)
        elif order.slot is not None and order.slot.uid in self.exists:
            self.spent.add(order.slot.uid)
        self.a.done(order.ticket)
        if how == "ready":
            self.a.leave(order.ticket)
            self.in_play.pop(number)
        elif how == "failed":
            self._give_up(order.ticket)
        else:
            self.a.arrive(order.ticket, first=True)
            self.waiting.add(number)
            self.was_lost |= {number}

    @precondition(lambda self: self.in_play)
    @rule(data=st.data())
    def cancelled(self, data):
        number = data.draw(st.sampled_from(sorted(self.in_play)))
        self._give_up(self.in_play[number])

    def _give_up(self, ticket: Ticket) -> None:
        """With one member the whole gang gives up; orders that were not begun give their pods back."""
        members = [one for one in self.in_play.values() if one.gang and one.gang == ticket.gang]
        for one in members or [ticket]:
            self.a.leave(one)
            self.in_play.pop(one.number)
            self.waiting.discard(one.number)
            self.busy.pop(one.number, None)

    # --- what always holds ---

    @invariant()
    def nothing_is_lost_and_nothing_is_made_beyond_the_limits(self):
        counts = self.a.statistics()
        assert counts.waiting == len(self.waiting)
        assert counts.claiming + counts.cold == len(self.busy)
        assert counts.cold <= self.cold_most
        assert counts.claiming <= CLAIMS
        for number in self.waiting:
            assert self.a.is_waiting(self.in_play[number])
            assert self.a.position(self.in_play[number]) is not None

    @invariant()
    def never_two_gangs_at_once(self):
        """Neither pods of two gangs on their way, nor pods kept for one beside another's."""
        at_work = {order.ticket.gang for order in self.busy.values()}
        at_work |= {order.ticket.gang for order in self.a._gangs.kept()}
        assert len(at_work - {""}) <= 1

    @invariant()
    def each_pod_is_kept_given_or_free_once(self):
        kept = [order.slot.uid for order in self.a._gangs.kept() if order.slot is not None]
        given = [order.slot.uid for order in self.busy.values() if order.slot is not None]
        assert len(kept) == len(set(kept))
        assert not set(kept) & set(given)
        assert not (set(kept) | set(given)) & set(self.a._slots)

    def teardown(self):
        """Once all goes well, everybody who waits is served."""
        for node in ("n1", "n2"):
            self.cordon(node, closed=False)
        self.claims, self.cold = CLAIMS, self.cold_most
        self.a.limit(claims=CLAIMS, cold=self.cold_most)
        fresh = 0
        for _ in range(4 * len(self.in_play) + 4):
            for order in list(self.busy.values()):
                self.a.done(order.ticket)
                self.a.leave(order.ticket)
                self.in_play.pop(order.ticket.number)
            self.busy.clear()
            for pool, image in (("root", BASE), ("other", BASE), ("other", TASK)):
                fresh += 1
                self.exists[f"new{fresh}"] = Slot(f"new{fresh}", pool, image, "n1", pool == "root")
                self.a.offer(self.exists[f"new{fresh}"])
            self.assign()
        assert not self.waiting, f"{len(self.waiting)} wait for ever"
        super().teardown()


class NothingIsMade(Histories):
    """The same where pods cannot be made: gangs wait until they are whole."""

    cold_most = 0


LONG = settings(
    max_examples=HISTORIES, stateful_step_count=40, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
Histories.TestCase.settings = LONG
NothingIsMade.TestCase.settings = LONG
# Seconds of nothing but computing.
TestHistories = pytest.mark.timeout(120)(Histories.TestCase)
TestNothingIsMade = pytest.mark.timeout(120)(NothingIsMade.TestCase)


def test_a_node_that_closes_while_its_gang_is_served_is_as_pods_that_were_lost():
    """Found by the histories: the first member was told, the node of the second's pod closed before it was."""
    state = NothingIsMade()
    state.arrive("root", BASE, 2, is_gang=True, tenant="acme", purpose=Purpose.EVAL)
    for place in (0, 1):
        state.seen_free(place=place, pool="root", image=BASE, node="n1")
    state.limits_change(claims=1, cold=0)
    state.assign()
    [first] = state.busy
    state.cordon(node="n1", closed=True)
    state.ended(SimpleNamespace(draw=lambda _: first), how="ready")
    state.assign()
    assert len(state.waiting) == 1
    assert state.waiting == state.was_lost
    state.cordon(node="n1", closed=False)
    state.teardown()


def test_a_pod_that_goes_while_its_gang_is_served_is_as_one_that_was_lost():
    """Found by the histories: the first member was told, the second's pod went before it was."""
    state = NothingIsMade()
    state.arrive("root", BASE, 3, is_gang=True, tenant="acme", purpose=Purpose.EVAL)
    for place in (2, 0, 1):
        state.seen_free(place=place, pool="root", image=BASE, node="n1")
    state.limits_change(claims=1, cold=0)
    state.assign()
    [first] = state.busy
    kept = {order.slot.uid: order.ticket.number for order in state.a._gangs.kept()}
    state.pod_gone(place=0)
    state.ended(SimpleNamespace(draw=lambda _: first), how="ready")
    state.assign()
    assert len(kept) == 2
    assert len(state.busy) == 1
    assert state.waiting == state.was_lost
    state.teardown()
