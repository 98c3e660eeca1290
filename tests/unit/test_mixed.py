"""The mixed load's own rules: its plan, its ledger, and a caller against a gateway that keeps all promises."""

from __future__ import annotations

import itertools
import ssl

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.mixed import plan
from tests.mixed.callers import Caller, Site
from tests.mixed.ledger import FORGOTTEN, SETTLE_S, Failure, Held, Ledger
from tests.mixed.plan import Fault
from tests.unit.client.fake_gateway import TOKEN, FakeGateway, answer, drop, drop_after

SEEDS = st.integers(0, 1_000_000)


def held(number: int = 1, caller: int = 0) -> Held:
    return Held(f"pod-{number}-1f0e9c3a", f"boot-{number}", "demo", caller)


def failure(reason: str, at: float = 10.0, pod: str | None = None) -> Failure:
    return Failure("execute", reason, "why", at, at + 1.0, pod)


# --- the plan ---


@given(SEEDS, st.integers(0, 50), st.lists(st.integers(0, plan.MOST_HELD), max_size=20))
def test_the_same_seed_and_successes_give_the_same_actions(seed, caller, numbers):
    one, two = plan.Script(seed, caller), plan.Script(seed, caller)
    assert [one.next(n) for n in numbers] == [two.next(n) for n in numbers]


@given(SEEDS, st.lists(st.integers(0, plan.MOST_HELD), min_size=2, max_size=20))
def test_one_outcome_changes_one_step_and_none_that_follows(seed, numbers):
    one, two = plan.Script(seed, 0), plan.Script(seed, 0)
    one.next(0)
    two.next(plan.MOST_HELD)
    assert [one.next(n) for n in numbers] == [two.next(n) for n in numbers]


@given(SEEDS)
def test_nothing_is_used_that_is_not_held_and_nobody_holds_too_many(seed):
    script = plan.Script(seed, 0)
    makes, uses = ({kind for kind, _ in menu} for menu in (plan.MAKING, plan.USING))
    assert type(script.next(0)[1]) in makes
    assert type(script.next(plan.MOST_HELD)[1]) in uses


def test_every_action_is_drawn():
    script = plan.Script(1, 1)
    drawn = [script.next(2)[1] for _ in range(2000)]
    assert {type(one) for one in drawn} == {kind for kind, _ in (*plan.MAKING, *plan.USING)}
    cut = {(one.by_client, one.returns) for one in drawn if isinstance(one, plan.Abandon)}
    assert len(cut) == 4


@given(SEEDS, st.floats(1.0, 2000.0), st.floats(1.0, 60.0))
def test_each_fault_comes_before_any_comes_again(seed, seconds, gap_s):
    found = plan.mishaps(seed, seconds, gap_s)
    assert found == plan.mishaps(seed, seconds, gap_s)
    for start in range(0, len(found), len(Fault)):
        group = [one.fault for one in found[start : start + len(Fault)]]
        assert len(set(group)) == len(group)
    times = [one.at for one in found]
    assert times == sorted(times)
    assert all(at < seconds for at in times)
    gaps = [later - at for at, later in itertools.pairwise(times)]
    assert all(gap_s / 2 - 1e-9 <= gap <= gap_s * 1.5 + 1e-9 for gap in gaps)


def test_a_files_bytes_are_those_of_its_size_and_fill():
    assert plan.content(4096, 7) == plan.content(4096, 7) != plan.content(4096, 8)
    assert [len(plan.content(size, 1)) for size in plan.FILE_BYTES] == list(plan.FILE_BYTES)


# --- the ledger ---


def test_what_is_held_and_what_is_there_are_compared_by_id_and_tenant():
    ledger = Ledger()
    for number in range(3):
        ledger.had(held(number))
    ids = list(ledger.held)
    assert ledger.compare(dict.fromkeys(ids, "demo")) == []
    [missing] = ledger.compare(dict.fromkeys(ids[1:], "demo"))
    assert missing == f"{ids[0]} is held and not there"
    [extra] = ledger.compare({**dict.fromkeys(ids, "demo"), "x": "other"})
    assert extra == "x is there and nobody's"
    [other] = ledger.compare({**dict.fromkeys(ids, "demo"), ids[2]: "other"})
    assert "is other's, not demo's" in other
    ledger.let_go(ledger.held[ids[0]])
    assert ledger.compare(dict.fromkeys(ids[1:], "demo")) == []


def test_one_sandbox_for_two_callers_is_wrong_and_twice_for_one_is_not():
    ledger = Ledger()
    assert ledger.had(held()) is ledger.had(held())
    assert ledger.wrong == []
    ledger.had(held(caller=1))
    assert len(ledger.wrong) == 1


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("reason", ["unreachable", "outcome_unknown", "capacity"])
def test_what_a_fault_explains_for_others(fault, reason):
    ledger = Ledger()
    assert not ledger.explains(failure(reason))
    felt = ledger.began(fault, 11.0, "pod-9")
    is_felt = fault in (
        Fault.KILL_GATEWAY, Fault.KILL_ALLOCATOR, Fault.DELETE_GATEWAY, Fault.RESTART_API,
    )  # fmt: skip
    assert ledger.explains(failure(reason)) == is_felt
    # Before it there was none, and while it is not over it may be felt for ever.
    assert not ledger.explains(failure(reason, at=9.0))
    assert ledger.explains(failure(reason, at=500.0)) == is_felt
    ledger.over(felt, 20.0)
    assert ledger.explains(failure(reason, at=20.0 + SETTLE_S)) == is_felt
    assert not ledger.explains(failure(reason, at=20.1 + SETTLE_S))


@pytest.mark.parametrize("reason", ["internal", "bad_request", "conflict", "expired", "released"])
def test_no_fault_explains_a_fault_of_ours(reason):
    ledger = Ledger()
    for fault in Fault:
        ledger.began(fault, 1.0, "pod-1")
    ledger.failed(failure(reason, pod="pod-1"))
    [wrong] = ledger.wrong
    assert reason in wrong
    assert Fault.RESTART_API.value in wrong
    assert ledger.counts[f"failed: {reason}"] == 1


def test_what_is_wrong_is_told_at_once():
    told: list[str] = []
    ledger = Ledger(told.append)
    ledger.failed(failure("internal"))
    ledger.blame(["odd"])
    assert [text.partition(":")[0] for text in told] == ["told", "WRONG", "WRONG"]
    assert ledger.wrong[1] == "odd"


def test_a_sandbox_that_was_hit_says_what_hit_it_and_no_other_does():
    ledger = Ledger()
    one, other = ledger.had(held(1)), ledger.had(held(2))
    ledger.began(Fault.KILL_SANDBOX, 5.0, one.pod)
    assert ledger.wrecks(one.pod) == {"died", FORGOTTEN}
    assert ledger.explains(failure("died", pod=one.pod))
    assert not ledger.explains(failure("deleted", pod=one.pod))
    assert not ledger.explains(failure("died", pod=other.pod))
    assert not ledger.explains(failure(FORGOTTEN, pod=other.pod))
    assert ledger.compare({other.id: "demo"}) == []
    ledger.began(Fault.DELETE_SANDBOX, 6.0, one.pod)
    assert ledger.explains(failure("deleted", pod=one.pod))


def test_a_file_is_what_was_written_or_was_being_written():
    ledger, one = Ledger(), held()
    assert ledger.compare_file(one, "/a", None) == []
    assert ledger.compare_file(one, "/a", "x") != []
    one.writing("/a", "x")
    assert ledger.compare_file(one, "/a", None) == ledger.compare_file(one, "/a", "x") == []
    one.written("/a", "x")
    assert ledger.compare_file(one, "/a", None) != []
    one.writing("/a", "y")
    assert ledger.compare_file(one, "/a", "x") == ledger.compare_file(one, "/a", "y") == []
    assert ledger.compare_file(one, "/a", "z") != []


def test_a_mark_is_there_once_or_perhaps_once_and_never_twice():
    ledger, one = Ledger(), held()
    one.marks |= {"ran": True, "perhaps": False}
    assert ledger.compare_marks(one, ["ran"]) == ledger.compare_marks(one, ["perhaps", "ran"]) == []
    assert ledger.compare_marks(one, []) == [f"{one.id}: ran ran and left nothing"]
    assert ledger.compare_marks(one, ["ran", "ran"]) == [f"{one.id}: ran ran 2 times"]
    assert ledger.compare_marks(one, ["ran", "odd"]) == [f"{one.id}: odd is nobody's"]


# --- a caller ---


@pytest.fixture
def gateway():
    with FakeGateway() as one:
        one.ready_at_once = True
        yield one


def caller(gateway: FakeGateway, ledger: Ledger, folder: str = "/nowhere") -> Caller:
    asks = {way: {"pool": "root"} for way in plan.Way}
    trust = ssl.create_default_context()
    site = Site(gateway.url, trust, "gateway", {"demo": TOKEN}, asks, {"pool": "root"}, folder)
    return Caller(0, 1, site, ledger, trio.current_time)


def check(gateway: FakeGateway, ledger: Ledger) -> None:
    assert ledger.wrong == []
    assert ledger.compare(dict.fromkeys(gateway.sandboxes, "demo")) == []


async def test_a_caller_holds_what_it_was_given(gateway, tmp_path):
    ledger = Ledger()
    # The fake's sandboxes are this machine.
    one = caller(gateway, ledger, str(tmp_path))
    way = plan.Way.WARM
    async with one.open():
        for action in (
            plan.Create(way), plan.Twice(way), plan.Batch(way, 2, gang=True),
            plan.Execute(1, 77), plan.Put(1, "a", 4096, 7), plan.Get(1, "a"), plan.Get(1, "b"),
            plan.Renew(1), plan.Release(0),
            plan.Abandon(way, 5.0, by_client=True, returns=False),
            plan.Abandon(way, 5.0, by_client=False, returns=False),
            plan.Abandon(way, 0.0, by_client=True, returns=False),
        ):  # fmt: skip
            await one._do(action)
        assert len(one.held) == 3
        check(gateway, ledger)
        assert ledger.failures == []
        [used] = [box for box in one.held if box.marks]
        (tmp_path / "marks").write_text(next(iter(used.marks)))
        assert await one.look(used) == []
        (tmp_path / "marks").write_text("odd")
        await one.client.attach(used.id).files.write(f"{tmp_path}/a", b"")
        assert len(await one.look(used)) == 3
        assert ledger.wrong == []


async def test_what_is_not_answered_is_given_back_in_the_end(gateway):
    ledger = Ledger()
    ledger.began(Fault.KILL_GATEWAY, 0.0)
    one = caller(gateway, ledger)
    async with one.open():
        await one._do(plan.Create(plan.Way.WARM))
        gateway.plan("DELETE /v1/sandboxes", *[drop] * 500)
        with trio.move_on_after(0.3):
            await one._do(plan.Release(0))
        assert one.held == []
        gateway._plans.clear()
        assert len(gateway.sandboxes) == 1
        await one.settle()
        check(gateway, ledger)


async def test_a_failure_that_nothing_explains_is_wrong(gateway):
    ledger = Ledger()
    one = caller(gateway, ledger)
    async with one.open():
        gateway.plan("POST /v1/sandboxes", answer(500))
        await one._do(plan.Create(plan.Way.WARM))
        [wrong] = ledger.wrong
        assert "internal" in wrong


async def test_a_cut_that_comes_back_finds_its_sandbox(gateway):
    ledger = Ledger()
    one = caller(gateway, ledger)
    async with one.open():
        gateway.plan("POST /v1/sandboxes", drop_after)
        await one._do(plan.Abandon(plan.Way.WARM, 5.0, by_client=False, returns=True))
        assert gateway.created == len(one.held) == 1
        check(gateway, ledger)
