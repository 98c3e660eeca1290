"""When held placeholders start; the decision by itself, the task over a fake cluster in virtual time."""

from __future__ import annotations

import pytest
import trio
from structlog.testing import CapturingLogger

from gateway import refill
from gateway.allocation import Allocation
from gateway.fairness import Ticket
from gateway.model import Ending
from gateway.orders import Slot, Statistics
from gateway.provider import Gone, Seen
from gateway.refill import HOLD_S, Refill, due
from gateway.registry import Registry
from gateway.roster import Roster
from sandman.errors import UnreachableError
from tests.fakes.cluster import FakeCluster
from tests.unit.gateway.test_roster import pod

IDLE = Statistics(waiting=0, free=3, claiming=0, cold=0)
CLAIMING = Statistics(waiting=0, free=3, claiming=1, cold=0)
MAKING = Statistics(waiting=0, free=0, claiming=0, cold=1)
STARVED = Statistics(waiting=5, free=0, claiming=0, cold=0)


@pytest.mark.parametrize(
    ("counts", "held_for", "is_due"),
    [
        (IDLE, 0.0, True),
        (CLAIMING, 0.0, False),
        (MAKING, HOLD_S - 0.01, False),
        (CLAIMING, HOLD_S, True),
        # Requests that wait for a placeholder, and nothing in hand: it is what they wait for.
        (STARVED, 0.0, True),
    ],
)
def test_a_placeholder_starts_when_nothing_is_in_hand_or_its_time_is_over(counts, held_for, is_due):
    assert due({"u": 100.0}, {}, counts, 100.0 + held_for) == (["u"] if is_due else [])


def test_one_that_was_let_go_is_let_go_again_only_when_that_had_no_effect():
    held, asked = {"u": 100.0}, {"u": 101.0}
    assert due(held, asked, IDLE, 101.0 + refill.AGAIN_S - 0.01) == []
    assert due(held, asked, IDLE, 101.0 + refill.AGAIN_S) == ["u"]


class Stage:
    """A roster, an allocation that can be kept busy, and the task under test."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.allocation = Allocation(cold_max=0, claims_max=10)
        self.roster = Roster(Registry(keep_ended=3), self.allocation)
        self.leads = True
        self.refill = Refill(self.roster, self.cluster, lambda: self.leads)

    def busy(self) -> Ticket:
        self.allocation.offer(Slot("free-uid", "root", "base", "n1", swap=True))
        ticket = Ticket(1, "root", "base")
        self.allocation.arrive(ticket)
        assert len(self.allocation.assign()) == 1
        return ticket

    def hold(self, number: int = 1):
        one = pod(uid=f"{number:08d}-u", name=f"held-{number}", hold=0, running=False, address=None)
        self.cluster.pods[one.uid] = one
        self.roster.apply(Seen(one))
        return one

    async def watch(self) -> None:
        async for news in self.cluster.receive:
            self.roster.apply(news)

    def started(self) -> list[str]:
        return [name for kind, name in self.cluster.writes if kind == "start"]


async def test_an_idle_allocator_lets_them_all_go(autojump_clock, nursery):
    stage = Stage()
    for number in range(40):
        stage.hold(number)
    nursery.start_soon(stage.watch)
    nursery.start_soon(stage.refill.run)
    await trio.sleep(2 * refill.LOOK_EVERY_S)
    assert sorted(stage.started()) == sorted(f"held-{n}" for n in range(40))
    assert stage.roster.held == {}
    await trio.sleep(5)
    assert len(stage.started()) == 40


async def test_a_claim_comes_first_and_its_end_lets_go(autojump_clock, nursery):
    stage = Stage()
    ticket = stage.busy()
    stage.hold()
    nursery.start_soon(stage.watch)
    nursery.start_soon(stage.refill.run)
    await trio.sleep(HOLD_S / 2)
    assert stage.started() == []
    stage.allocation.done(ticket)
    await trio.sleep(2 * refill.LOOK_EVERY_S)
    assert stage.started() == ["held-1"]


async def test_a_storm_without_end_holds_them_no_longer_than_its_limit(autojump_clock, nursery):
    stage = Stage()
    stage.busy()
    stage.hold()
    nursery.start_soon(stage.watch)
    nursery.start_soon(stage.refill.run)
    await trio.sleep(HOLD_S + 2 * refill.LOOK_EVERY_S)
    assert stage.started() == ["held-1"]


async def test_who_does_not_decide_lets_nothing_go_until_it_does(autojump_clock, nursery):
    stage = Stage()
    stage.leads = False
    stage.hold()
    nursery.start_soon(stage.watch)
    nursery.start_soon(stage.refill.run)
    await trio.sleep(5)
    assert stage.started() == []
    stage.leads = True
    await trio.sleep(2 * refill.LOOK_EVERY_S)
    assert stage.started() == ["held-1"]


async def test_a_write_that_fails_is_made_again_after_a_pause(autojump_clock, nursery):
    stage = Stage()
    stage.cluster.fail_starts = [UnreachableError("no connection")]
    stage.hold()
    nursery.start_soon(stage.watch)
    nursery.start_soon(stage.refill.run)
    await trio.sleep(refill.TROUBLE_PAUSE_S)
    assert stage.started() == []
    assert list(stage.roster.held) == ["00000001-u"]
    await trio.sleep(3 * refill.LOOK_EVERY_S)
    assert stage.started() == ["held-1"]


async def test_a_write_without_effect_is_made_again_and_told(autojump_clock, nursery, monkeypatch):
    """An admission policy may refuse it with the status of a patch that did not fit."""
    stage = Stage()
    told = CapturingLogger()
    monkeypatch.setattr(refill, "log", told)
    one = stage.hold()
    del stage.cluster.pods[one.uid]
    nursery.start_soon(stage.refill.run)
    await trio.sleep(2 * refill.AGAIN_S + 1)
    assert stage.started() == ["held-1"] * 3
    assert list(stage.roster.held) == [one.uid]
    assert [call.args for call in told.calls] == [("a placeholder is held still",)] * 2


async def test_what_the_watch_tells_decides_who_is_held(autojump_clock):
    stage = Stage()
    for news in (
        lambda one: Gone(one.uid, Ending("deleted", "x")),
        lambda _: Seen(pod(hold=None)),
        lambda _: Seen(pod(hold=0, deleting=True)),
    ):
        one = stage.hold()
        assert list(stage.roster.held) == [one.uid]
        stage.roster.apply(news(one))
        assert stage.roster.held == {}


async def test_a_placeholder_that_went_between_look_and_write_is_nothing_to_do(autojump_clock):
    stage = Stage()
    stage.roster.held["gone-u"] = 0.0
    assert await stage.refill._let_go()
    assert stage.started() == []
