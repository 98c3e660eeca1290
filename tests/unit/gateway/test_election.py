"""The election: never two leaders, soon one leader, whatever the network and the clocks do."""

from __future__ import annotations

from datetime import timedelta

import trio

from gateway.candidacy import Timing
from gateway.election import Election
from tests.unit.gateway.fake_leases import T0, Network, Server


def elect(server: Server, name: str, **options) -> tuple[Election, Network]:
    network = Network(server)
    election = Election(
        network, namespace="n", name="l", identity=name, address=f"10.0.0.{ord(name)}:8443",
        wall=lambda: T0 + timedelta(seconds=trio.current_time()), **options,
    )  # fmt: skip
    return election, network


async def until(condition, within: float = 60.0) -> float:
    began = trio.current_time()
    with trio.fail_after(within):
        while not condition():
            await trio.sleep(0.05)
    return trio.current_time() - began


# --- one and two candidates ----------------------------------------------------------------------


async def test_a_lone_candidate_leads_at_once_and_stays(autojump_clock):
    server = Server()
    election, _ = elect(server, "a")
    async with trio.open_nursery() as nursery:
        assert election.address is None
        await nursery.start(election.run)
        assert await until(lambda: election.is_leader) < 0.2
        assert election.address == "10.0.0.97:8443"
        assert server.lease.spec.lease_transitions == 0
        for _ in range(100):
            await trio.sleep(1)
            assert election.is_leader
        assert "holder='a_" in repr(election)
        nursery.cancel_scope.cancel()
    assert not election.is_leader
    assert server.lease.spec.holder_identity is None


async def test_the_other_follows_and_knows_the_address(autojump_clock):
    server = Server()
    first, _ = elect(server, "a")
    second, _ = elect(server, "b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        await until(lambda: first.is_leader)
        nursery.start_soon(second.run)
        await trio.sleep(30)
        assert not second.is_leader
        leader = second.current()
        assert (leader.identity, leader.address, leader.is_me) == (
            first.identity, "10.0.0.97:8443", False,
        )  # fmt: skip
        nursery.cancel_scope.cancel()


async def test_a_clean_stop_hands_over_at_once(autojump_clock):
    server = Server()
    first, _ = elect(server, "a")
    second, _ = elect(server, "b")
    async with trio.open_nursery() as nursery:
        first_scope = trio.CancelScope()

        async def run_first() -> None:
            with first_scope:
                await first.run()

        nursery.start_soon(run_first)
        await until(lambda: first.is_leader)
        nursery.start_soon(second.run)
        await trio.sleep(10.1)
        first_scope.cancel()
        assert await until(lambda: second.is_leader) <= Timing().poll_s + 0.1
        assert server.lease.spec.lease_transitions == 1
        nursery.cancel_scope.cancel()


async def test_a_partitioned_leader_stands_down_before_the_other_begins(autojump_clock):
    server = Server()
    first, network = elect(server, "a")
    second, _ = elect(server, "b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        await until(lambda: first.is_leader)
        nursery.start_soon(second.run)
        await trio.sleep(10)
        network.up = False
        down = await until(lambda: not first.is_leader)
        assert down <= Timing().fence_s + 0.1
        assert not second.is_leader
        up = await until(lambda: second.is_leader)
        assert down + up <= Timing().lease_s + Timing().renew_s + 2 * Timing().poll_s
        network.up = True
        await until(lambda: first.current() is not None)
        assert first.address == "10.0.0.98:8443"
        nursery.cancel_scope.cancel()


async def test_nobody_is_known_while_nobody_leads(autojump_clock):
    server = Server()
    first, network = elect(server, "a")
    follower, follower_network = elect(server, "b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        await until(lambda: first.is_leader)
        nursery.start_soon(follower.run)
        await trio.sleep(5)
        network.up = follower_network.up = False
        await trio.sleep(Timing().lease_s + 2)
        assert first.current() is None
        assert follower.current() is None
        assert follower.address is None
        nursery.cancel_scope.cancel()


async def test_a_slow_api_makes_no_false_leader(autojump_clock):
    """Each way takes 2.5 s: an answer comes after the fence of what it answers."""
    server = Server()
    election, network = elect(server, "a")
    network.delay_there_s = network.delay_back_s = 2.5
    async with trio.open_nursery() as nursery:
        nursery.start_soon(election.run)
        for _ in range(100):
            await trio.sleep(0.5)
            assert not election.is_leader
        network.delay_there_s = network.delay_back_s = 0.5
        await until(lambda: election.is_leader)
        for _ in range(60):
            await trio.sleep(0.5)
            assert election.is_leader
        nursery.cancel_scope.cancel()


async def test_a_deleted_lease_is_made_again_but_not_under_its_holder(autojump_clock):
    server = Server()
    first, network = elect(server, "a")
    second, _ = elect(server, "b")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.run)
        await until(lambda: first.is_leader)
        nursery.start_soon(second.run)
        await trio.sleep(5)
        network.up = False
        server.lease = None
        gone = trio.current_time()
        await until(lambda: second.is_leader)
        assert not first.is_leader
        assert trio.current_time() - gone >= Timing().fence_s
        network.up = True
        nursery.cancel_scope.cancel()


async def test_a_holder_makes_its_deleted_lease_again(autojump_clock):
    server = Server()
    election, _ = elect(server, "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(election.run)
        await until(lambda: election.is_leader)
        server.lease = None
        await until(lambda: server.lease is not None)
        assert await until(lambda: election.is_leader) == 0
        nursery.cancel_scope.cancel()


async def test_who_is_put_out_by_hand_stands_down_when_it_sees(autojump_clock):
    server = Server()
    election, _ = elect(server, "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(election.run)
        await until(lambda: election.is_leader)
        server.patch({"metadata": {}, "spec": {"holderIdentity": "someone"}})
        await until(lambda: not election.is_leader, within=Timing().renew_s + Timing().poll_s + 0.2)
        assert election.current().address == ""
        nursery.cancel_scope.cancel()


async def test_a_stop_without_the_server_ends_in_time(autojump_clock):
    server = Server()
    election, network = elect(server, "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(election.run)
        await until(lambda: election.is_leader)
        network.up = False
        network.delay_there_s = 100
        began = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - began <= Timing().release_s


async def test_a_refused_release_is_only_told(autojump_clock):
    server = Server()
    election, network = elect(server, "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(election.run)
        await until(lambda: election.is_leader)
        network.up = False
        nursery.cancel_scope.cancel()
    assert server.lease.spec.holder_identity == election.identity


async def test_a_lost_answer_is_looked_after_before_the_release(autojump_clock):
    server = Server()
    election, network = elect(server, "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(election.run)
        await until(lambda: election.is_leader)
        network.delay_back_s = 100
        await trio.sleep(Timing().renew_s + Timing().call_s + 0.1)
        network.delay_back_s = 0
        nursery.cancel_scope.cancel()
    assert server.lease.spec.holder_identity is None


async def test_a_follower_releases_nothing(autojump_clock):
    server = Server()
    server.create({"spec": {"holderIdentity": "x@y", "leaseDurationSeconds": 6}})
    election, _ = elect(server, "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(election.run)
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    assert server.lease.spec.holder_identity == "x@y"


# --- work while leading --------------------------------------------------------------------------


async def test_work_runs_while_leading_and_again_after(autojump_clock):
    server = Server()
    election, network = elect(server, "a")
    running = 0
    starts = 0

    async def work() -> None:
        nonlocal running, starts
        starts += 1
        running += 1
        try:
            await trio.sleep_forever()
        finally:
            running -= 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(election.while_leading, work)
        await trio.sleep(1)
        assert starts == 0
        nursery.start_soon(election.run)
        await until(lambda: running == 1)
        await trio.sleep(20)
        assert (running, starts) == (1, 1)
        network.up = False
        lost = await until(lambda: running == 0)
        assert lost <= Timing().fence_s + 0.1
        assert not election.is_leader
        network.up = True
        await until(lambda: running == 1)
        assert starts == 2
        nursery.cancel_scope.cancel()


async def test_work_that_ends_is_not_begun_again(autojump_clock):
    election, _ = elect(Server(), "a")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(election.run)

        async def work() -> None:
            await trio.sleep(1)

        await election.while_leading(work)
        nursery.cancel_scope.cancel()


async def test_changes_are_told(autojump_clock):
    server = Server()
    election, network = elect(server, "a")
    told = []

    async def listen() -> None:
        while True:
            told.append(await election.wait_change())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        nursery.start_soon(election.run)
        await trio.sleep(3)
        network.up = False
        await trio.sleep(10)
        network.up = True
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert [leader and leader.is_me for leader in told] == [True, None, True]
