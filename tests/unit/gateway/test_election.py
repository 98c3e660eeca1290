"""The election: never two leaders, soon one leader, whatever the network and the clocks do."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import random
from datetime import UTC, datetime, timedelta

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import candidacy
from gateway.candidacy import Action, Candidacy, Timing
from gateway.election import Election
from sandman.service import kube

T0 = datetime(2026, 11, 29, tzinfo=UTC)


# --- a fake of the Lease API: real versions, real conflicts, a network in front -------------------


class Server:
    """One Lease, with what the API server does to it."""

    def __init__(self) -> None:
        self.lease: kube.Lease | None = None
        self._versions = itertools.count(1)

    def get(self) -> kube.Lease:
        if self.lease is None:
            raise kube.NotFoundError("no lease", status=404)
        return self.lease

    def create(self, body: dict) -> kube.Lease:
        if self.lease is not None:
            raise kube.AlreadyExistsError("taken", status=409)
        return self._store(body["spec"])

    def patch(self, patch: dict) -> kube.Lease:
        wanted = patch["metadata"].get("resourceVersion")
        if wanted not in {None, self.get().metadata.resource_version}:
            raise kube.ConflictError("another version", status=409)
        old = self.lease.spec
        merged = {
            "holderIdentity": old.holder_identity,
            "leaseDurationSeconds": old.lease_duration_seconds,
            "renewTime": old.renew_time,
            "acquireTime": old.acquire_time,
            "leaseTransitions": old.lease_transitions,
        } | patch["spec"]
        return self._store(merged)

    def _store(self, spec: dict) -> kube.Lease:
        meta = kube.ObjectMeta(name="l", uid="u", resource_version=str(next(self._versions)))
        self.lease = kube.Lease(
            metadata=meta,
            spec=kube.LeaseSpec(
                holder_identity=spec.get("holderIdentity"),
                lease_duration_seconds=spec.get("leaseDurationSeconds"),
                acquire_time=spec.get("acquireTime"),
                renew_time=spec.get("renewTime"),
                lease_transitions=spec.get("leaseTransitions"),
            ),
        )
        return self.lease


class Network:
    """One candidate's way to the server. `up`, and seconds each way."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.up = True
        self.delay_there_s = 0.0
        self.delay_back_s = 0.0
        self.calls = 0

    async def get(self, resource, name, *, namespace=None):
        return await self._call(self.server.get)

    async def create(self, resource, body, *, namespace=None):
        return await self._call(lambda: self.server.create(body))

    async def patch_merge(self, resource, name, patch, *, namespace=None):
        return await self._call(lambda: self.server.patch(patch))

    async def _call(self, act):
        self.calls += 1
        await trio.sleep(self.delay_there_s)
        if not self.up:
            await trio.sleep(1.0)
            raise kube.UnavailableError("no connection")
        answer = act()
        await trio.sleep(self.delay_back_s)
        if not self.up:
            raise kube.UnavailableError("the answer was lost")
        return answer


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


# --- the decision --------------------------------------------------------------------------------


def lease_of(holder: str | None, *, duration: int | None = 6, version: str = "1") -> kube.Lease:
    return kube.Lease(
        metadata=kube.ObjectMeta(uid="u", resource_version=version),
        spec=kube.LeaseSpec(holder_identity=holder, lease_duration_seconds=duration),
    )


@pytest.mark.parametrize(
    ("lease", "now", "action"),
    [
        (None, 0, Action.CREATE),
        (lease_of(None), 0, Action.TAKE),
        (lease_of(""), 0, Action.TAKE),
        (lease_of("me"), 0, Action.RENEW),
        (lease_of("me"), 100, Action.RENEW),
        (lease_of("other"), 5.9, Action.WAIT),
        (lease_of("other"), 6, Action.TAKE),
        (lease_of("other", duration=15), 14.9, Action.WAIT),
        (lease_of("other", duration=15), 15, Action.TAKE),
        (lease_of("other", duration=1), 5.9, Action.WAIT),
        (lease_of("other", duration=None), 5.9, Action.WAIT),
    ],
)
def test_decisions(lease, now, action):
    assert candidacy.decide(now, lease, 0, "me", 6) is action


def test_addresses():
    identity = candidacy.make_identity("pod", "[fd00::1]:8443", "0a1b2c3d")
    assert identity == "pod_0a1b2c3d@[fd00::1]:8443"
    assert candidacy.address_of(identity) == "[fd00::1]:8443"
    assert candidacy.address_of("somebody-else") == ""


def test_another_clock_in_the_lease_decides_nothing():
    """renewTime of a past or future century: only changes count."""
    me = Candidacy("me", Timing())
    for version, stamp in enumerate(["1999-01-01T00:00:00Z", "2999-01-01T00:00:00Z"]):
        lease = kube.Lease(
            metadata=kube.ObjectMeta(uid="u", resource_version=str(version)),
            spec=kube.LeaseSpec(holder_identity="other", renew_time=stamp),
        )
        me.observe(version * 5.0, lease)
        assert me.action(version * 5.0 + 5.9) is Action.WAIT
    assert me.action(11.0) is Action.TAKE


@pytest.mark.parametrize("timing", [{"renew_s": 4}, {"fence_s": 6}, {"renew_s": 5, "fence_s": 4}])
def test_seconds_that_are_not_safe_are_refused(timing):
    with pytest.raises(ValueError, match="does not hold"):
        Timing(**timing)


# --- never two -----------------------------------------------------------------------------------


class Simulation:
    """Candidates with clocks of their own, a server, and a network that delays and loses at will.

    A heap of (true time, …) runs the same turns as `Election`: look or write, then a pause; a call
    is given up after `call_s`, and may arrive even so.
    """

    def __init__(self, seed: int, timing: Timing, people: int = 3) -> None:
        self.luck = random.Random(seed)
        self.server = Server()
        self.timing = timing
        self.now = 0.0
        self.order = itertools.count()
        self.events: list = []
        self.rates = [self.luck.uniform(0.8, 1.2) for _ in range(people)]
        self.offsets = [self.luck.uniform(-1e6, 1e6) for _ in range(people)]
        self.cores = [Candidacy(f"c{index}", timing) for index in range(people)]
        self.must_look = [True] * people
        self.waiting: dict[int, int] = {}
        self.elected: list[int] = []
        for index in range(people):
            self.after(self.luck.uniform(0, 3), self.turn, index)

    def clock(self, index: int) -> float:
        return self.offsets[index] + self.rates[index] * self.now

    def after(self, true_s: float, act, *args) -> None:
        heapq.heappush(self.events, (self.now + true_s, next(self.order), act, args))

    def pause(self, index: int, local_s: float, act, *args) -> None:
        self.after(local_s / self.rates[index], act, *args)

    def run(self, true_s: float) -> None:
        while self.events and self.events[0][0] < true_s:
            self.now, _, act, args = heapq.heappop(self.events)
            act(*args)

    def delay(self) -> float:
        return self.luck.choice([0.001, 0.01, 0.5, self.luck.uniform(0, 12)])

    def turn(self, index: int) -> None:
        core = self.cores[index]
        looks = self.must_look[index] or core.holder != core.me
        action = core.action(self.clock(index))
        call = ("look", None) if looks else ("claim", core.claim(T0))
        if looks and self.luck.random() < 0.5 and action in {Action.TAKE, Action.CREATE}:
            call = ("create" if action is Action.CREATE else "claim", core.claim(T0))
        number = next(self.order)
        self.after(self.delay(), self.arrive, index, call, number, self.clock(index))
        self.waiting[index] = number
        self.pause(index, self.timing.call_s, self.give_up, index, number)

    def give_up(self, index: int, number: int) -> None:
        if self.waiting.get(index) == number:
            self.must_look[index] = True
            del self.waiting[index]
            self.pause(index, self.timing.poll_s, self.turn, index)

    def arrive(self, index: int, call, number: int, sent: float) -> None:
        kind, body = call
        try:
            if kind == "look":
                answer = self.server.lease
            else:
                act = self.server.create if kind == "create" else self.server.patch
                answer = act(body)
        except kube.KubeError as error:
            answer = error
        if self.luck.random() > 0.1:
            self.after(self.delay(), self.answered, index, kind, answer, number, sent)

    def answered(self, index: int, kind: str, answer, number: int, sent: float) -> None:
        if self.waiting.get(index) != number:
            return
        del self.waiting[index]
        core, now = self.cores[index], self.clock(index)
        self.must_look[index] = isinstance(answer, kube.KubeError)
        if not self.must_look[index]:
            if kind == "look":
                core.observe(now, answer)
            else:
                core.granted(sent, now, answer)
                self.check(index)
        if core.is_leader(now) and self.luck.random() < 0.05:
            self.release(index)
        wait = self.timing.renew_s if core.is_leader(now) else self.timing.poll_s
        self.pause(index, wait, self.turn, index)

    def release(self, index: int) -> None:
        self.cores[index].stand_down()
        with contextlib.suppress(kube.KubeError):
            self.server.patch(self.cores[index].release(T0))

    def check(self, index: int) -> None:
        leaders = [
            core.me for other, core in enumerate(self.cores) if core.is_leader(self.clock(other))
        ]
        assert len(leaders) <= 1, (self.now, leaders)
        if leaders and self.elected[-1:] != [index]:
            self.elected.append(index)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_there_are_never_two_leaders(seed):
    Simulation(seed, Timing()).run(300)


def test_the_simulation_does_elect_and_does_change_leaders():
    changes = 0
    for seed in range(30):
        simulation = Simulation(seed, Timing())
        simulation.run(300)
        changes += len(simulation.elected)
    assert changes > 60


def test_the_check_of_two_leaders_can_fail():
    """With a fence as late as the Lease's end the property must break: clocks differ."""
    assert any(_breaks(seed, Timing(fence_s=5.9)) for seed in range(300))


def _breaks(seed: int, timing: Timing) -> bool:
    try:
        Simulation(seed, timing).run(300)
    except AssertionError:
        return True
    return False
