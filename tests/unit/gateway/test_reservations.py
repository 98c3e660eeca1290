"""Reservations over a cluster in memory, in virtual time."""

from __future__ import annotations

import contextlib
import json
from types import SimpleNamespace

import pytest
import trio

from gateway import reserving, steps
from gateway.config import Settings
from gateway.fulfilment import LOOKS_APART_S
from gateway.leases import RUN_KEEP_S
from gateway.model import DEFAULT_SHARE, Ending, Tier
from gateway.provider import Seen
from gateway.release import Releaser
from gateway.reservations import LOOK_EVERY_S, READ_EVERY_S, Reservations
from gateway.reserving import Reservation
from sandman import names
from sandman.errors import (
    ConflictError,
    NotFoundError,
    QuotaError,
    UnreachableError,
)
from tests.fakes.cluster import BASE, TASK, FakeCluster
from tests.unit.gateway.test_pool import running, want

STEPS = steps.parse([{"exec": {"argv": ["make"]}}])
LOTS = Settings(cold_max=0)


@contextlib.asynccontextmanager
async def reserving_over(cluster: FakeCluster, settings: Settings = LOTS):
    async with running(cluster, settings) as pool, trio.open_nursery() as nursery:
        bed = SimpleNamespace(pool=pool, is_leader=True, keys={"k": DEFAULT_SHARE})
        releaser = Releaser(pool._roster.registry, cluster, trio.current_time)
        bed.all = Reservations(
            cluster.store, pool, pool._roster, releaser, is_leader=lambda: bed.is_leader,
            shares=bed.keys.get, wall=trio.current_time,
        )  # fmt: skip
        nursery.start_soon(bed.all.run)
        await trio.sleep(0.1)
        yield bed
        nursery.cancel_scope.cancel()


def asked(**changes) -> Reservation:
    values = {
        "id": "", "tenant": "acme", "key_id": "k", "image": TASK, "pool": "root", "count": 3,
        "until": trio.current_time() + 600.0, "created_at": trio.current_time(), "steps": STEPS,
    }  # fmt: skip
    return Reservation(**(values | changes))


def placeholders(cluster: FakeCluster, count: int) -> None:
    for _ in range(count):
        cluster.placeholder()


def reserved(cluster: FakeCluster) -> int:
    return sum(one.state == names.STATE_RESERVED for one in cluster.pods.values())


def told(bed, made: Reservation) -> tuple[str, int, int]:
    one, progress = bed.all.get("acme", made.id)
    return reserving.state(one, progress), progress.ready, one.used


async def test_all_are_prepared_ahead_and_handed_over_at_once(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 25)
    cluster.call_s = 3.0
    async with reserving_over(cluster) as bed:
        made = await bed.all.create(asked(count=20), None)
        await trio.sleep(9.0)
        assert told(bed, made) == ("ready", 20, 0)
        begun = trio.current_time()
        for _ in range(20):
            box = await bed.pool.allocate("acme", want(prepare=STEPS), None)
            assert box.instance.tier == Tier.WARM
        assert trio.current_time() - begun < 0.05
        await trio.sleep(LOOK_EVERY_S * 2)
        # Each is handed out once: nothing is made again for it.
        assert told(bed, made) == ("ready", 0, 20)
        assert len(cluster.calls) == 20
        assert cluster.store.kept[made.id].used == 20


async def test_what_nobody_used_is_released_at_the_end(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 4)
    async with reserving_over(cluster) as bed:
        made = await bed.all.create(asked(until=trio.current_time() + 60.0), None)
        await trio.sleep(5.0)
        box = await bed.pool.allocate("acme", want(prepare=STEPS), None)
        assert reserved(cluster) == 2
        await trio.sleep(60.0)
        assert reserved(cluster) == 0
        assert cluster.store.kept == {}
        assert box.instance.uid in cluster.pods
        with pytest.raises(NotFoundError):
            bed.all.get("acme", made.id)


@pytest.mark.parametrize("run", ["r1", None])
async def test_that_of_a_run_that_is_over_ends_with_it(autojump_clock, run):
    """Its heartbeats are over, and it has no sandbox any more. One without a run has its time."""
    cluster = FakeCluster()
    placeholders(cluster, 4)
    async with reserving_over(cluster) as bed:
        begun, ledger = trio.current_time(), bed.pool._roster.ledger
        await bed.all.create(asked(run=run, count=2, until=begun + 9000.0), None)
        box = await bed.pool.allocate("acme", want(run="r1", image=BASE), None)
        # Nobody has heard of its run yet: the forecast may be older than that.
        await trio.sleep(2 * RUN_KEEP_S)
        assert reserved(cluster) == 2
        ledger.beat("acme", "r1", trio.current_time())
        await trio.sleep(2 * RUN_KEEP_S)
        assert reserved(cluster) == 2
        cluster.remove(box.instance.uid, Ending("released", "its owner"))
        await trio.sleep(LOOK_EVERY_S * 2)
        assert reserved(cluster) == (0 if run else 2)


async def test_a_heartbeat_keeps_what_is_reserved_for_a_run_without_sandboxes(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 2)
    async with reserving_over(cluster) as bed:
        until = trio.current_time() + 9000.0
        await bed.all.create(asked(run="r1", count=2, until=until), None)
        for _ in range(12):
            bed.pool._roster.ledger.beat("acme", "r1", trio.current_time())
            await trio.sleep(RUN_KEEP_S - LOOK_EVERY_S)
            assert reserved(cluster) == 2


async def test_it_is_ended_by_its_owner_alone(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 3)
    cluster.call_s = 1.0
    async with reserving_over(cluster) as bed:
        made = await bed.all.create(asked(), None)
        await trio.sleep(2.5)
        await bed.all.delete("zeta", made.id)
        assert bed.all.of_tenant("zeta") == []
        with pytest.raises(NotFoundError):
            bed.all.get("zeta", made.id)
        await trio.sleep(0.1)
        assert told(bed, made)[0] in {"preparing", "ready"}
        await bed.all.delete("acme", made.id)
        await bed.all.delete("acme", made.id)
        await trio.sleep(LOOKS_APART_S * 2)
        assert reserved(cluster) == 0
        assert bed.all.of_tenant("acme") == []


async def test_a_new_allocator_goes_on_where_the_old_one_ended(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 5)
    cluster.call_s = 1.0
    async with reserving_over(cluster) as bed:
        made = await bed.all.create(asked(count=4), None)
        await trio.sleep(1.6)
        await bed.pool.allocate("acme", want(prepare=STEPS), None)
        await trio.sleep(LOOK_EVERY_S * 2)
        # Killed while something is half prepared.
        half = cluster.placeholder()
        cluster.fail_discards = [UnreachableError("x")] * 9
    cluster.fail_discards = []
    ready = {uid for uid, one in cluster.pods.items() if one.prepared and one.state == "reserved"}
    cluster.pods[half.uid] = half
    cluster.tell_anew()
    async with reserving_over(cluster) as bed:
        await trio.sleep(5.0)
        assert told(bed, made) == ("ready", 3, 1)
        assert ready <= set(cluster.pods)


async def test_what_an_allocator_left_half_prepared_is_released(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 1)
    cluster.call_s = 30.0
    async with reserving_over(cluster) as bed:
        await bed.all.create(asked(count=1), None)
        await trio.sleep(5.0)
        [uid] = cluster.pods
        cluster.fail_discards = [UnreachableError("x")] * 9
    cluster.fail_discards = []
    assert cluster.pods[uid].state == names.STATE_RESERVED
    cluster.call_s = 1.0
    cluster.tell_anew()
    placeholders(cluster, 1)
    async with reserving_over(cluster) as bed:
        await trio.sleep(5.0)
        assert uid not in cluster.pods
        assert reserved(cluster) == 1


async def test_a_replica_that_is_no_allocator_any_more_lets_go_of_all(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 3)
    cluster.call_s = 20.0
    async with reserving_over(cluster) as bed:
        made = await bed.all.create(asked(), None)
        await trio.sleep(2.0)
        bed.is_leader = False
        await trio.sleep(2.0)
        assert reserved(cluster) == 0
        for call in (lambda: bed.all.get("acme", made.id), lambda: bed.all.of_tenant("acme")):
            with pytest.raises(UnreachableError):
                call()
        assert list(cluster.store.kept) == [made.id]


async def test_a_step_that_fails_is_told_and_tried_three_times(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 9)
    cluster.answer = lambda *_: (200, json.dumps({"exit_code": 2, "stdout": "no"}).encode())
    async with reserving_over(cluster) as bed:
        made = await bed.all.create(asked(), None)
        await trio.sleep(60.0)
        one, progress = bed.all.get("acme", made.id)
        assert reserving.state(one, progress) == "failed"
        assert len(cluster.calls) == 3
        last = progress.trouble.failures[-1]
        assert (last.reason, last.facts["exit_code"], last.facts["output"]) == (
            "prepare_failed", 2, "no",
        )  # fmt: skip
        assert reserved(cluster) == 0


async def test_one_that_dies_before_it_is_used_is_made_anew(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 4)
    async with reserving_over(cluster) as bed:
        made = await bed.all.create(asked(), None)
        await trio.sleep(3.0)
        uid = next(uid for uid, one in cluster.pods.items() if one.prepared)
        cluster.end(uid, Ending("oom", "killed"))
        await trio.sleep(3.0)
        assert told(bed, made) == ("ready", 3, 0)


async def test_one_that_is_being_handed_over_at_the_end_is_a_sandbox(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 2)
    async with reserving_over(cluster) as bed, trio.open_nursery() as nursery:
        made = await bed.all.create(asked(count=2), None)
        await trio.sleep(3.0)
        cluster.delay_before = 2.0
        nursery.start_soon(bed.pool.allocate, "acme", want(prepare=STEPS), None)
        await trio.sleep(1.0)
        await bed.all.delete("acme", made.id)
        await trio.sleep(5.0)
        [box] = cluster.pods.values()
        assert box.state == names.STATE_LEASED


async def test_a_late_sighting_of_what_was_only_reserved_costs_nothing(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 1)
    async with reserving_over(cluster) as bed:
        made = await bed.all.create(asked(count=1), None)
        real, before = cluster.mark_prepared, []

        async def mark(instance, what, boot_id):
            before.append(cluster.pods[instance.uid])
            # The watch tells of it only after what came in between.
            send, cluster.send = cluster.send, trio.open_memory_channel(10)[0]
            ready = await real(instance, what, boot_id)
            cluster.send = send
            return ready

        cluster.mark_prepared = mark
        await trio.sleep(1.0)
        bed.pool._roster.apply(Seen(before[0]))
        await trio.sleep(3 * LOOK_EVERY_S)
        assert told(bed, made) == ("ready", 1, 0)
        assert (await bed.pool.allocate("acme", want(prepare=STEPS), None)).instance.tier == "warm"


async def test_what_cannot_be_released_now_is_released_later(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 2)
    async with reserving_over(cluster) as bed:
        made = await bed.all.create(asked(count=2), None)
        await trio.sleep(3.0)
        real, refused = cluster.delete, []

        async def delete(instance) -> None:
            if not refused:
                refused.append(instance)
                raise UnreachableError("the API server is away")
            await real(instance)

        cluster.delete = delete
        await bed.all.delete("acme", made.id)
        assert reserved(cluster) == 1
        await trio.sleep(3 * LOOK_EVERY_S)
        assert reserved(cluster) == 0


async def test_what_will_be_asked_for_yet_is_known(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 3)
    async with reserving_over(cluster) as bed:
        await bed.all.create(asked(count=9), None)
        await trio.sleep(3.0)
        # Three are ready, and the other six wait in the queue.
        assert bed.all.forecast() == {"root": 0}
        await bed.all.create(asked(count=100, tenant="zeta", image="other:1"), None)
        await trio.sleep(1.0)
        assert bed.all.forecast() == {"root": 99}


async def test_the_same_key_is_the_same_reservation(autojump_clock):
    cluster = FakeCluster()
    async with reserving_over(cluster) as bed:
        first = await bed.all.create(asked(), "key")
        await trio.sleep(1.0)
        again = await bed.all.create(asked(), "key")
        assert again.id == first.id
        with pytest.raises(ConflictError):
            await bed.all.create(asked(count=4), "key")
        other = await bed.all.create(asked(), None)
        assert [one.id for one, _ in bed.all.of_tenant("acme")] == [first.id, other.id]


async def test_a_tenant_has_so_many_and_no_more(autojump_clock):
    cluster = FakeCluster()
    async with reserving_over(cluster) as bed:
        for number in range(reserving.TENANT_MAX):
            await bed.all.create(asked(), f"key {number}")
        with pytest.raises(QuotaError):
            await bed.all.create(asked(), "one more")
        await bed.all.create(asked(), "key 0")
        await bed.all.create(asked(tenant="zeta"), None)


async def test_one_that_somebody_deleted_by_hand_is_ended(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 3)
    async with reserving_over(cluster) as bed:
        await bed.all.create(asked(), None)
        await trio.sleep(3.0)
        assert reserved(cluster) == 3
        cluster.store.kept.clear()
        await trio.sleep(READ_EVERY_S + 2 * LOOK_EVERY_S)
        assert reserved(cluster) == 0


async def test_a_key_that_is_revoked_ends_its_reservations(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 3)
    async with reserving_over(cluster) as bed:
        await bed.all.create(asked(), None)
        await trio.sleep(3.0)
        bed.keys.clear()
        await trio.sleep(2 * LOOK_EVERY_S)
        assert reserved(cluster) == 0
        assert cluster.store.kept == {}


async def test_an_api_server_that_is_away_is_asked_again(autojump_clock):
    cluster = FakeCluster()
    placeholders(cluster, 3)
    cluster.store.faults = [UnreachableError("away")]
    async with reserving_over(cluster) as bed:
        with pytest.raises(UnreachableError):
            await bed.all.create(asked(), None)
        await trio.sleep(2 * LOOK_EVERY_S)
        made = await bed.all.create(asked(), None)
        await trio.sleep(3.0)
        cluster.store.faults = [UnreachableError("away")]
        await bed.pool.allocate("acme", want(prepare=STEPS), None)
        await trio.sleep(4 * LOOK_EVERY_S)
        assert cluster.store.kept[made.id].used == 1
        assert repr(bed.all) == "<Reservations 1>"
