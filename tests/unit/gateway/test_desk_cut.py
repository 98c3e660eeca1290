"""The desk, cut at any moment: nothing is left behind."""

from __future__ import annotations

from types import SimpleNamespace

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from gateway.cases import LINGER_S
from gateway.desk import Desk
from gateway.fulfilment import LOOKS_APART_S
from gateway.model import DEFAULT_SHARE
from gateway.pool import SETTLE_EVERY_S
from sandman import names
from tests.fakes.cluster import FakeCluster
from tests.unit.gateway.test_pool import running, want
from tests.unit.gateway.test_pool_trouble import is_whole

# --- cancellation: at any moment, nothing is left behind ---


@settings(max_examples=80, deadline=None)
@given(
    at=st.floats(0.0, 1.6),
    before=st.sampled_from([0.0, 0.3]),
    after=st.sampled_from([0.0, 0.3]),
    free=st.integers(0, 3),
    key=st.sampled_from([None, "k"]),
    count=st.integers(1, 3),
    gang=st.booleans(),
    end=st.sampled_from(["caller", "drop", "desk"]),
)
def test_cut_at_any_moment_everything_is_handed_over_or_gone(**history):
    trio.run(cut_at, SimpleNamespace(**history), clock=MockClock(autojump_threshold=0))


async def cut_at(one: SimpleNamespace) -> None:
    cluster = FakeCluster()
    for _ in range(one.free):
        cluster.placeholder()
    request = want(count=one.count, gang=one.gang)
    told: dict[int, object] = {}

    async def tell(member, outcome) -> None:
        await trio.sleep(0.01)
        told[member.index] = outcome

    async def pause(_: int) -> None:
        await trio.lowlevel.checkpoint()

    async with running(cluster) as pool:
        async with trio.open_nursery() as nursery:
            desk = Desk(pool, lambda: True)
            await nursery.start(desk.run)
            cluster.delay_before, cluster.delay_after = one.before, one.after
            with trio.move_on_after(one.at):
                members = await desk.open("acme", request, one.key, DEFAULT_SHARE)
                await desk.follow(members, 60.0, tell, pause)
            if one.end == "drop":
                await desk.drop("acme", list(desk._cases))
            if one.end != "desk":
                await trio.sleep(LINGER_S + 2.0)
                assert desk._cases == {}
            nursery.cancel_scope.cancel()
        cluster.delay_before = cluster.delay_after = 0.0
        await trio.sleep(2 * SETTLE_EVERY_S + LOOKS_APART_S)
        assert len(cluster.leased()) == len(told)
        assert pool._fulfilment._unsettled == []
        is_whole(pool)
        untouched = [pod for pod in cluster.pods.values() if pod.state == names.STATE_FREE]
        assert pool._allocation.statistics().free == len(untouched)
