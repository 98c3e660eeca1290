"""Pools whose placeholders never come up are stopped, soon enough and not without need."""

from __future__ import annotations

import dataclasses

import pytest
import structlog
import trio
from hypothesis import given
from hypothesis import strategies as st

from gateway import breaker, spread
from gateway.backoff import Window
from gateway.breaker import Breaker, PoolKey, Trip, is_open
from gateway.breaking import AGAIN_S, Breaking
from gateway.model import Broken, Ending, PoolSpec
from gateway.provider import pods
from gateway.provider.pods import fingerprint
from sandman.errors import CapacityError, UnreachableError
from tests.fakes.cluster import FakeCluster
from tests.unit.gateway.test_pool import running, settle, want
from tests.unit.gateway.test_roster import pod

DIED = Ending("died", "its first process ended with exit code 127")
TEMPLATE = {"spec": {"containers": [{"image": "base"}]}}
NOT_THERE = ("ErrImagePull", 'rpc error: code = NotFound desc = failed to pull and unpack image "base": '
             "failed to resolve reference: base: not found")  # fmt: skip
THROTTLED = (
    "ImagePullBackOff",
    'Back-off pulling image "base": ErrImagePull: 429 Too Many Requests',
)


def spec(wanted: int = 4, **changes) -> PoolSpec:
    values = {"swap": True, "most": None, "template": TEMPLATE, "deployment": "sandman-pool-root"}
    return PoolSpec("ns", "root", "base", wanted=wanted, **(values | changes))


def failed(number: int, ending: Ending = DIED, **changes):
    return pod(uid=f"{number:08d}-u", ending=ending, running=False, **changes)


def stuck(number: int, waiting: tuple[str, str], **changes):
    return pod(uid=f"{number:08d}-u", waiting=waiting, running=False, **changes)


def zero() -> float:
    return 0.0


def tripped(one: Breaker, of: PoolSpec, *, useful: int = 0, now: float = 0.0) -> bool:
    return bool(one.due([of], {PoolKey("ns", "root"): useful}, now))


@pytest.mark.parametrize(
    ("wanted", "useful", "failures"),
    [
        (1, 0, 2),
        (2, 0, 2),
        (3, 0, 3),
        (4, 0, 3),
        (1000, 0, 3),
        (4, 1, 4),
        (1000, 990, 1000),
        (1, 1, 2),
    ],
)
def test_so_many_in_a_row_stop_a_pool(wanted, useful, failures):
    assert breaker.limit(wanted, useful) == failures
    one = Breaker()
    for number in range(failures):
        assert not tripped(one, spec(wanted), useful=useful)
        one.saw(failed(number), zero)
        one.saw(failed(number), zero)
    [trip] = one.due([spec(wanted)], {PoolKey("ns", "root"): useful}, 0.0)
    assert f"{failures} placeholders in a row" in trip.reason
    assert "exit code 127" in trip.reason
    assert repr(one) == f"<Breaker in_a_row={{'root': {failures}}}>"


def test_one_that_comes_up_ends_the_row():
    one = Breaker()
    one.saw(pod(uid="00000008-u"), zero)
    assert one.is_calm
    for number in range(2):
        one.saw(failed(number), zero)
    assert not one.is_calm
    one.useful(pod(uid="00000009-u"))
    assert one.is_calm
    for number in range(2, 4):
        one.saw(failed(number), zero)
    assert not tripped(one, spec())


@pytest.mark.parametrize("reason", ["evicted", "preempted", "node_lost", "deleted", "expired"])
def test_what_the_cluster_does_is_not_held_against_a_pool(reason):
    one = Breaker()
    for number in range(9):
        one.saw(failed(number, Ending(reason, "x")), zero)
    assert not tripped(one, spec())


def test_what_had_failed_before_or_is_being_deleted_or_is_another_pools_does_not_count():
    one = Breaker()
    for number in range(9):
        one.saw(failed(number), zero, is_new=False)
        one.saw(failed(10 + number, deleting=True), zero)
        one.saw(failed(20 + number, pool="other"), zero)
        one.saw(failed(30 + number, namespace="elsewhere"), zero)
    assert not tripped(one, spec())


def test_an_image_that_is_not_there_counts_at_once_and_a_throttled_one_after_a_while():
    one = Breaker()
    for number in range(3):
        one.saw(stuck(number, NOT_THERE), zero)
    assert tripped(one, spec())
    other = Breaker()
    for number in range(4):
        other.saw(stuck(number, THROTTLED), zero)
    assert not other.is_calm
    other.saw(pod(uid="00000003-u"), zero)
    assert not tripped(other, spec(), now=breaker.STUCK_S - 1)
    assert tripped(other, spec(), now=breaker.STUCK_S)
    assert "429" in other.due([spec()], {}, 0.0)[0].reason


def test_what_is_gone_waits_no_more():
    one = Breaker()
    for number in range(4):
        one.saw(stuck(number, THROTTLED), zero)
        one.gone(stuck(number, THROTTLED))
    one.gone(pod(pool="never seen"))
    assert not tripped(one, spec(), now=9e9)


def test_a_pool_that_wants_nothing_or_is_stopped_is_left_alone():
    one = Breaker()
    for number in range(4):
        one.saw(failed(number), zero)
    assert not tripped(one, spec(0))
    assert not tripped(one, spec(stopped=True))
    one.forget(spec())
    assert not tripped(one, spec())


def test_a_stopped_pool_is_closed_by_another_template_and_by_nothing_else():
    broken = breaker.opened(Trip(spec(7), "why"), 5.0)
    assert broken == Broken("why", 5.0, 7, fingerprint(TEMPLATE))
    still = spec(0, broken=broken, stopped=True)
    assert is_open(still)
    assert not breaker.is_to_restart(still)
    assert not breaker.is_to_stop_again(still)
    assert breaker.is_to_stop_again(dataclasses.replace(still, wanted=4))
    mended = dataclasses.replace(still, stopped=False)
    assert breaker.is_to_restart(mended)
    assert not breaker.is_to_restart(spec())


def test_of_a_pool_in_several_namespaces_one_that_goes_on_is_enough():
    one = spec(broken=Broken("why", 0.0, 4, "t"), stopped=True)
    other = dataclasses.replace(spec(), namespace="other")
    assert not is_open(spread.merged([one, other]))
    both = spread.merged([one, dataclasses.replace(one, namespace="other")])
    assert is_open(both)
    assert both.broken is not None


def test_whom_one_namespace_shuts_out_the_pool_shuts_out():
    one = spec(tenants=frozenset({"acme", "zeta"}))
    other = dataclasses.replace(spec(), namespace="other")
    assert spread.merged([one, other]).tenants == {"acme", "zeta"}
    third = dataclasses.replace(one, namespace="third", tenants=frozenset({"zeta"}))
    assert spread.merged([one, other, third]).tenants == {"zeta"}
    assert spread.merged([other]).tenants is None


@given(
    wanted=st.integers(2, 12),
    bad=st.booleans(),
    choices=st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=80),
)
def test_a_pool_of_which_none_comes_up_makes_twice_its_size_in_pods_at_most(wanted, bad, choices):
    """A ReplicaSet that replaces what fails at once, and a breaker that is heard after each failure."""
    one, made = Breaker(), wanted
    alive = list(range(wanted))
    is_stopped, useful = False, 0
    for pick, comes_up in choices:
        if is_stopped or not alive:
            break
        number = alive.pop(pick % len(alive))
        if comes_up and not bad:
            one.useful(pod(uid=f"{number:08d}-u"))
            useful += 1
            continue
        one.saw(failed(number), zero)
        alive.append(made)
        made += 1
        is_stopped = tripped(one, spec(wanted), useful=useful)
    if bad:
        assert made <= 2 * wanted
        assert is_stopped or made - wanted < breaker.MOST_IN_A_ROW
    if is_stopped:
        assert made - wanted >= breaker.LEAST_IN_A_ROW


# --- carried out ---


class Watched:
    """A pool that is running, with its breaker."""

    def __init__(self, cluster: FakeCluster, pool, nursery) -> None:
        self.leads = True
        self.breaking = Breaking(pool._roster, cluster, lambda: self.leads, lambda: 100.0)
        nursery.start_soon(self.breaking.run)


async def fail_some(cluster: FakeCluster, count: int) -> None:
    for _ in range(count):
        one = cluster.placeholder(up_in=float("inf"))
        cluster.end(one.uid, DIED)
    await settle()


async def test_the_leader_stops_a_broken_pool_and_whoever_waits_hears_why(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as pool, trio.open_nursery() as nursery:
        watched = Watched(cluster, pool, nursery)
        cluster.tell_pool(dataclasses.replace(cluster.specs["root"], wanted=4))
        await settle()
        told = []

        async def call() -> None:
            with pytest.raises(CapacityError, match="exit code 127") as caught:
                await pool.allocate("acme", want(), None)
            told.append(caught.value)

        watched.leads = False
        await fail_some(cluster, 3)
        await trio.sleep(1)
        assert cluster.writes == []
        pool._fulfilment.backoff.cold = Window(0)
        nursery.start_soon(call)
        watched.leads = True
        await trio.sleep(1)
        assert cluster.writes == [("stop", "root")]
        assert len(told) == 1
        await call()
        assert told[1].facts == {"pool": "broken"}
        assert told[1].retry_after
        nursery.cancel_scope.cancel()


async def test_the_log_says_why_a_pool_was_stopped(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as pool, trio.open_nursery() as nursery:
        Watched(cluster, pool, nursery)
        cluster.tell_pool(dataclasses.replace(cluster.specs["root"], wanted=4))
        await settle()
        with structlog.testing.capture_logs() as lines:
            await fail_some(cluster, 3)
            await trio.sleep(1)
        [line] = [line for line in lines if line["event"] == "pool stopped"]
        assert "exit code 127" in str(line["reason"])
        nursery.cancel_scope.cancel()


async def test_a_changed_template_starts_it_again_with_what_it_wanted(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as pool, trio.open_nursery() as nursery:
        Watched(cluster, pool, nursery)
        cluster.tell_pool(dataclasses.replace(cluster.specs["root"], wanted=4))
        await settle()
        await fail_some(cluster, 3)
        await trio.sleep(AGAIN_S + 1)
        assert is_open(cluster.specs["root"])
        # Scaled by hand, and the reason still on it.
        cluster.tell_pool(dataclasses.replace(cluster.specs["root"], wanted=9))
        await trio.sleep(AGAIN_S + 1)
        assert cluster.specs["root"].wanted == 0
        cluster.tell_pool(dataclasses.replace(cluster.specs["root"], stopped=False))
        await trio.sleep(AGAIN_S + 1)
        assert cluster.specs["root"].wanted == 4
        assert [kind for kind, _ in cluster.writes] == ["stop", "stop", "restart"]
        # It begins anew: one more failure is the first.
        await fail_some(cluster, 1)
        await trio.sleep(1)
        assert not is_open(cluster.specs["root"])
        nursery.cancel_scope.cancel()


async def test_a_write_that_failed_is_tried_again(autojump_clock):
    cluster = FakeCluster()
    cluster.fail_stops = [UnreachableError("the API server is away")]
    async with running(cluster) as pool, trio.open_nursery() as nursery:
        Watched(cluster, pool, nursery)
        cluster.tell_pool(dataclasses.replace(cluster.specs["root"], wanted=4))
        await settle()
        await fail_some(cluster, 3)
        await trio.sleep(AGAIN_S + 1)
        assert cluster.writes == [("stop", "root")]
        nursery.cancel_scope.cancel()


async def test_placeholders_that_come_up_keep_their_pool(autojump_clock):
    cluster = FakeCluster()
    async with running(cluster) as pool, trio.open_nursery() as nursery:
        Watched(cluster, pool, nursery)
        cluster.tell_pool(dataclasses.replace(cluster.specs["root"], wanted=4))
        healthy = cluster.placeholder()
        await settle()
        await fail_some(cluster, 3)
        await trio.sleep(1)
        assert cluster.writes == []
        # One that was of use and died later is no sign of a bad template.
        cluster.end(healthy.uid, DIED)
        await trio.sleep(1)
        assert pool._roster.useful() == {}
        assert cluster.writes == [("stop", "root")], "the three stand, and none is of use now"
        nursery.cancel_scope.cancel()


def test_the_fingerprint_is_of_the_whole_template_and_of_nothing_else():
    assert fingerprint(TEMPLATE) == fingerprint({"spec": {"containers": [{"image": "base"}]}})
    assert fingerprint(TEMPLATE) != fingerprint(
        {**TEMPLATE, "metadata": {"annotations": {"a": "b"}}}
    )
    assert pods.EVERYBODY == "*"
