"""Images in any order of events."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway import images
from gateway.allocation import Allocation
from gateway.fairness import Ticket
from gateway.orders import Slot
from sandman.errors import (
    DiedError,
    QuotaError,
)
from tests.unit.gateway.test_images import MISSING, THROTTLED


class AnyHistory(RuleBasedStateMachine):
    """Every order of events: one canary at most for each pool and image never seen, no request is held
    for ever, placeholders near their image come first."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Allocation(cold_max=2, claims_max=6)
        self.now = 0.0
        self.numbers = 0
        self.waiting: dict[int, Ticket] = {}
        self.busy: dict[int, object] = {}
        self.paused: dict[int, Ticket] = {}
        self.proved: set[str] = set()

    some_images = st.sampled_from(["r.example/a:1", "r.example/b:1", "r.example/c:1"])
    some_pools = st.sampled_from(["root", "other"])
    some_nodes = st.sampled_from(["n1", "n2", "n3"])

    @rule(image=some_images, pool=some_pools)
    def arrive(self, image, pool):
        if self.a.images.failure(pool, image, "", self.now):
            return
        self.numbers += 1
        one = Ticket(self.numbers, pool, image)
        self.a.arrive(one)
        self.waiting[one.number] = one

    @rule(node=some_nodes, pool=some_pools)
    def offer(self, node, pool):
        self.numbers += 1
        self.a.offer(Slot(f"p{self.numbers}", pool, "base", node, swap=True))

    @rule(node=some_nodes, held=st.sets(some_images))
    def report(self, node, held):
        self.a.images.report(node, held)

    @rule(node=some_nodes)
    def node_goes(self, node):
        self.a.images.gone(node)

    @rule()
    def assign(self):
        near = {
            (number, node): node in self.a.images.holders(one.image)
            for number, one in self.waiting.items()
            for node in ("n1", "n2", "n3")
        }
        free = list(self.a._slots.values())
        for order in self.a.assign():
            number = order.ticket.number
            del self.waiting[number]
            self.busy[number] = order
            if order.slot is None:
                continue
            avoided = self.a.images.avoided(order.ticket)
            choice = [
                one for one in free
                if one.pool == order.ticket.pool and one.node not in avoided
                and near[number, one.node]
            ]  # fmt: skip
            if choice:
                assert near[number, order.slot.node], "there was one nearer"
            elif any(one.pool == order.ticket.pool and one.node not in avoided for one in free):
                assert order.slot.node not in avoided, "it failed there"
            free.remove(order.slot)

    @rule(
        data=st.data(),
        error=st.sampled_from([None, MISSING, THROTTLED, DiedError("x"), QuotaError()]),
    )
    def over(self, data, error):
        if not self.busy:
            return
        number = data.draw(st.sampled_from(sorted(self.busy)))
        order = self.busy.pop(number)
        node = order.slot.node if order.slot else "n1"
        pause = None
        if error is None:
            self.a.images.succeeded(order.ticket, node)
        else:
            verdict = self.a.images.failed(order.ticket, node, error, self.now, left_s=60.0)
            pause = verdict.pause_s
            if verdict.failure is not None:
                for one in list({**self.waiting, **self.paused}.values()):
                    if verdict.failure.key.concerns(one):
                        self.a.leave(one)
                        self.waiting.pop(one.number, None)
                        self.paused.pop(one.number, None)
        self.a.done(order.ticket)
        if pause is None:
            self.a.leave(order.ticket)
        else:
            self.paused[number] = order.ticket

    @rule(data=st.data())
    def try_again(self, data):
        if self.paused:
            one = self.paused.pop(data.draw(st.sampled_from(sorted(self.paused))))
            self.a.arrive(one, first=True)
            self.waiting[one.number] = one

    @rule(data=st.data())
    def cancel(self, data):
        every = {**self.waiting, **self.paused, **{n: o.ticket for n, o in self.busy.items()}}
        if every:
            number = data.draw(st.sampled_from(sorted(every)))
            self.a.leave(every[number])
            for kept in (self.waiting, self.paused, self.busy):
                kept.pop(number, None)

    @rule(seconds=st.sampled_from([1.0, images.TROUBLE_S, images.PERMANENT_S]))
    def time_goes(self, seconds):
        self.now += seconds

    @invariant()
    def a_canary_is_somebodys_and_the_only_one(self):
        known = self.a.images
        assert set(known._canary_of.values()) == set(known._canaries)
        assert {one.number for one in known._canaries.values()} == set(known._canary_of)
        assert known._unplaced <= set(known._canaries)
        there = {*self.waiting, *self.paused, *self.busy}
        for pool in ("root", "other"):
            canaries = self.a.images.canaries(pool)
            assert {one.number for one in canaries} <= there
            assert len({images.key_of(one) for one in canaries}) == len(canaries)
        for one in self.waiting.values():
            if self.a.images.is_held(one):
                assert any(
                    images.key_of(other) == images.key_of(one)
                    for other in self.a.images.canaries(one.pool)
                )

    def teardown(self):
        """Nobody is held for ever: with enough placeholders all who wait are served."""
        for _ in range(3 * self.numbers + 3):
            for number, order in list(self.busy.items()):
                self.a.images.succeeded(order.ticket, "n1")
                self.a.done(order.ticket)
                self.a.leave(order.ticket)
                del self.busy[number]
            for number in list(self.paused):
                one = self.paused.pop(number)
                self.a.arrive(one, first=True)
                self.waiting[number] = one
            for order in self.a.assign():
                del self.waiting[order.ticket.number]
                self.busy[order.ticket.number] = order
        assert not self.waiting
        assert not self.busy
        assert not self.a.images._tries


AnyHistory.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase
