"""Heartbeats: while the process lives, whatever its event loop does, and no longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import anyio
import pytest

from sandman._core import heart
from sandman._core.heart import Debt, Heart
from sandman._core.values import ReservationInfo
from sandman._sync.reservation import seconds_left
from sandman._sync.transport import Transport
from sandman.client import Client
from sandman.errors import ForbiddenError, UnreachableError
from sandman.sync import Client as SyncClient
from tests.unit.client.backends import on_backends
from tests.unit.client.fake_gateway import TOKEN, answer, drop_after
from tests.unit.daemon.harness import wait_until

if TYPE_CHECKING:
    from tests.unit.client.fake_gateway import FakeGateway

BEAT = "POST /v1/runs/r1/heartbeat"
SOON_S = 0.2
"""A `ttl_s` whose beats come each twentieth of a second; no real gateway takes it."""


def hearts() -> int:
    return sum(thread.name == "sandman-heart" for thread in threading.enumerate())


@on_backends
async def test_it_beats_while_the_loop_is_held_up_and_stops_with_the_client(gateway: FakeGateway):
    async with Client(gateway.url, TOKEN) as client:
        await client.create(run="r1", ttl_s=SOON_S)
        await client.create(run="r1", ttl_s=60)
        assert wait_until(lambda: len(gateway.calls(BEAT)) >= 3)
        [first, *_] = [one for one in gateway.requests if one.path.endswith("/heartbeat")]
        assert first.json() == {"ttl_s": SOON_S}
        assert repr(client._heart) == "<Heart runs=['r1']>"
    count = len(gateway.calls(BEAT))
    assert hearts() == 0
    await anyio.sleep(0.2)
    assert len(gateway.calls(BEAT)) == count


def test_it_beats_for_the_synchronous_client(gateway: FakeGateway):
    with SyncClient(gateway.url, TOKEN) as client:
        client.create(run="r1", ttl_s=SOON_S)
        assert wait_until(lambda: len(gateway.calls(BEAT)) >= 3)
    assert hearts() == 0


def test_without_sandboxes_of_heartbeats_there_is_no_thread(gateway: FakeGateway):
    with SyncClient(gateway.url, TOKEN) as client:
        client.create(heartbeat=False, ttl_s=SOON_S)
        assert not client._heart.beats
        assert hearts() == 0


def test_a_run_without_sandboxes_is_forgotten_and_comes_back(gateway: FakeGateway):
    with SyncClient(gateway.url, TOKEN) as client:
        with client.sandbox(run="r1", ttl_s=SOON_S):
            assert wait_until(lambda: gateway.calls(BEAT))
        assert wait_until(lambda: not client._heart._runs)
        count = len(gateway.calls(BEAT))
        with client.sandbox(run="r1", ttl_s=SOON_S):
            assert wait_until(lambda: len(gateway.calls(BEAT)) > count)


def test_a_run_for_which_something_is_reserved_is_kept_until_that_ends(gateway: FakeGateway):
    with SyncClient(gateway.url, TOKEN) as client:
        beats = client._heart
        beats.reserved("r1", 60.0, SOON_S)
        assert wait_until(lambda: len(gateway.calls(BEAT)) >= 3)
        assert "r1" in beats._runs
        beats._runs["r1"].reserved_until = 0.0
        assert wait_until(lambda: not beats._runs)


def test_only_what_is_reserved_for_a_run_needs_heartbeats(gateway: FakeGateway):
    with SyncClient(gateway.url, TOKEN) as client:
        client.reserve(count=1, for_s=60.0)
        assert not client._heart.beats
        until = (datetime.now(UTC) + timedelta(minutes=1)).isoformat()
        made = client.reserve(count=1, until=until, run="r1")
        left = client._heart._runs["r1"].reserved_until - time.monotonic()
        assert (made.info.run, 50.0 < left <= 61.0) == ("r1", True)


@pytest.mark.parametrize("until", [None, "soon", "2001-01-01T00:00:00Z"])
def test_of_a_reservation_that_does_not_say_when_it_ends_nothing_is_kept(until):
    assert seconds_left(ReservationInfo(id="1", until=until)) == 0.0


def test_one_made_meanwhile_keeps_its_run(gateway: FakeGateway):
    with SyncClient(gateway.url, TOKEN) as client:
        client.create(run="r1")
        asked = client._heart._runs["r1"].asked
        client._heart._forget("r1", asked - 1)
        assert "r1" in client._heart._runs
        with client._heart.expecting("r1", 60):
            client._heart._forget("r1", asked + 1)
            assert "r1" in client._heart._runs
        client._heart._forget("r1", asked + 2)
        assert "r1" not in client._heart._runs


def test_one_that_failed_is_sent_again_soon(gateway: FakeGateway, monkeypatch):
    monkeypatch.setattr(heart, "AGAIN_S", 0.05)
    with SyncClient(gateway.url, TOKEN) as client:
        gateway.plan(BEAT, answer(403), answer(403))
        client.create(run="r1", ttl_s=SOON_S)
        assert wait_until(lambda: len(gateway.calls(BEAT)) >= 4)


def test_a_fault_of_ours_ends_no_heartbeats(gateway: FakeGateway, monkeypatch):
    """What they keep alive is worth more than the word of an exception nobody thought of."""
    monkeypatch.setattr(heart, "AGAIN_S", 0.05)
    faults = [RuntimeError("of ours")] * 2
    json = Transport.json

    def failing(self, call):
        if faults and "heartbeat" in call.path:
            raise faults.pop()
        return json(self, call)

    monkeypatch.setattr(Transport, "json", failing)
    with SyncClient(gateway.url, TOKEN) as client:
        client.create(run="r1", ttl_s=SOON_S)
        assert wait_until(lambda: len(gateway.calls(BEAT)) >= 2)
    assert not faults


END = "DELETE /v1/runs/r1/heartbeat"


def test_of_a_run_that_is_over_it_is_said_that_no_more_will_come(gateway: FakeGateway):
    with SyncClient(gateway.url, TOKEN) as client:
        with client.sandbox(run="r1", ttl_s=SOON_S):
            assert wait_until(lambda: gateway.calls(BEAT))
        assert wait_until(lambda: gateway.calls(END))
    assert gateway.calls("DELETE /v1/runs") == [END]


@on_backends
async def test_a_client_that_closes_says_that_no_more_will_come(gateway: FakeGateway):
    async with Client(gateway.url, TOKEN) as client:
        async with client.sandbox(run="r1", ttl_s=60):
            client._heart._runs["r1"].was_kept = True
        # Never kept, and so nothing is left of it.
        await client.create(run="r2", ttl_s=60)
        gateway.plan(END, answer(403))
        assert gateway.calls(END) == []
    assert gateway.calls("DELETE /v1/runs") == [END]
    assert hearts() == 0


def test_what_another_replica_does_not_know_yet_is_said_again(gateway: FakeGateway):
    with SyncClient(gateway.url, TOKEN) as client:
        client.create(run="r1", ttl_s=SOON_S)
        assert wait_until(lambda: gateway.calls(BEAT))
    # It has a sandbox still.
    assert len(gateway.calls(END)) == 2


def test_what_could_not_be_released_is_released_later(gateway: FakeGateway, monkeypatch, caplog):
    """Heartbeats would keep it for as long as the client lives."""
    monkeypatch.setattr(heart, "AGAIN_S", 0.05)
    with SyncClient(gateway.url, TOKEN) as client:
        gateway.plan("DELETE /v1/sandboxes", *[answer(403)] * 3)
        with client.sandbox(run="r1", ttl_s=60) as box:
            pass
        assert f"{box.id} is left to its lease" in caplog.text
        assert wait_until(lambda: not gateway.sandboxes)
        assert wait_until(lambda: not client._heart._debts)
        assert len(gateway.calls("DELETE /v1/sandboxes")) == 4


def test_who_releases_quietly_has_it_released_later(gateway: FakeGateway, monkeypatch):
    monkeypatch.setattr(heart, "AGAIN_S", 0.05)
    with SyncClient(gateway.url, TOKEN) as client:
        box = client.create(run="r1", ttl_s=60)
        gateway.plan("DELETE /v1/sandboxes", *[answer(403)] * 2)
        with pytest.raises(ForbiddenError):
            client.release(box.id)
        client.release(box.id, quietly=True)
        assert wait_until(lambda: not gateway.sandboxes)


@on_backends
async def test_what_was_perhaps_made_for_a_call_without_an_answer_is_given_up(
    gateway: FakeGateway, monkeypatch
):
    monkeypatch.setattr(heart, "AGAIN_S", 0.05)
    async with Client(gateway.url, TOKEN) as client:
        for key in (None, "mine"):
            gateway.plan("POST /v1/sandboxes", drop_after)
            with pytest.raises(UnreachableError):
                await client.create(run="r1", wait_s=0.0, idempotency_key=key)
        assert await anyio.to_thread.run_sync(wait_until, lambda: len(gateway.sandboxes) == 1)
        # The caller's own key is the caller's to ask again with.
        [kept] = gateway.by_key
        assert kept == "mine"
        assert len(gateway.calls("DELETE /v1/requests")) == 1


def test_heartbeats_do_not_wait_for_what_is_owed(gateway: FakeGateway, monkeypatch):
    monkeypatch.setattr(heart, "AGAIN_S", 0.1)
    with SyncClient(gateway.url, TOKEN) as client:
        client.create(run="r1", ttl_s=SOON_S)
        # Each is tried for a tenth of a second, and again.
        gateway.plan("DELETE /v1/sandboxes/x", *[answer(503)] * 10_000)
        for number in range(50):
            client._heart.owe(Debt(f"/v1/sandboxes/x{number}"))
        assert wait_until(lambda: gateway.calls("DELETE"))
        before = len(gateway.calls(BEAT))
        assert wait_until(lambda: len(gateway.calls(BEAT)) >= before + 3)
        between = " ".join(gateway.calls()).split(BEAT)
        assert max(len(set(part.split())) for part in between) < 20
        gateway._plans.clear()
        assert wait_until(lambda: not client._heart._debts)


def test_a_fault_of_ours_while_it_pays_or_ends_is_a_failure_like_others(
    gateway: FakeGateway, monkeypatch
):
    monkeypatch.setattr(heart, "AGAIN_S", 0.05)
    faults = {"/v1/sandboxes/x": 2, "/v1/runs/r1/heartbeat": 1}
    json = Transport.json

    def failing(self, call):
        if call.method == "DELETE" and faults.get(call.path):
            faults[call.path] -= 1
            raise RuntimeError("of ours")
        return json(self, call)

    monkeypatch.setattr(Transport, "json", failing)
    with SyncClient(gateway.url, TOKEN) as client:
        with client.sandbox(run="r1", ttl_s=SOON_S):
            client._heart.owe(Debt("/v1/sandboxes/x"))
            assert wait_until(lambda: not client._heart._debts)
            assert wait_until(lambda: gateway.calls(BEAT))
        assert wait_until(lambda: not any(faults.values()))
        before = len(gateway.calls(BEAT))
        with client.sandbox(run="r1", ttl_s=SOON_S):
            assert wait_until(lambda: len(gateway.calls(BEAT)) > before)


def test_what_may_be_had_again_by_its_own_key_is_not_given_up_later(gateway: FakeGateway):
    with SyncClient(gateway.url, TOKEN) as client:
        gateway.plan("DELETE /v1/requests", *[answer(403)] * 2)
        for key in ("mine", None):
            with client.sandboxes(1, idempotency_key=key) as batch:
                list(batch)
        [owed] = client._heart._debts
        assert owed.key != "mine"


def test_a_client_that_closes_tries_once_more_to_give_back(gateway: FakeGateway):
    with SyncClient(gateway.url, TOKEN) as client:
        gateway.plan("DELETE /v1/sandboxes", answer(403))
        with client.sandbox(run="r1"):
            pass
        assert len(gateway.sandboxes) == 1
    assert gateway.sandboxes == {}


def test_a_stopped_one_begins_no_more(gateway: FakeGateway):
    client = SyncClient(gateway.url, TOKEN)
    one = Heart(client.settings)
    with one.expecting("r1", 60.0):  # a creation that is under way
        one.stop()
        one.owe(Debt("/v1/sandboxes/b"))
        assert not one.beats
    with pytest.raises(RuntimeError, match="the client is closed"), one.expecting("r1", 60.0):
        pass
    one.reserved("r1", 60.0)
    assert not one.beats
    client.close()


async def test_a_closed_client_makes_nothing_that_nobody_would_keep(gateway: FakeGateway):
    for has_made in (False, True):
        async with Client(gateway.url, TOKEN) as client:
            if has_made:
                await client.create()
        before = len(gateway.sandboxes)
        with pytest.raises(RuntimeError, match=r"inside of `with`, or with heartbeat=False"):
            await client.create()
        with pytest.raises(RuntimeError):
            async with client.sandbox():
                pass
        assert len(gateway.sandboxes) == before
        assert (await client.create(heartbeat=False)).id in gateway.sandboxes
        # Entered again it makes what it keeps.
        async with client:
            box = await client.create()
            assert box.id in gateway.sandboxes
            assert client._heart.beats
            await box.release()
        assert not client._heart.beats


def test_a_thread_that_is_still_ending_has_nothing_of_the_next_ones(gateway: FakeGateway):
    """A heartbeat that hangs outlives its client by up to its patience."""
    one = Heart(SyncClient(gateway.url, TOKEN).settings)
    assert one.again() is one
    with one.expecting("r1", 60.0):
        one.stop()
        other = one.again()
        assert other is not one
        with other.expecting("r1", 60.0):
            assert (one._runs is not other._runs, one._lock is not other._lock) == (True, True)
        other.stop()


@pytest.mark.parametrize("ttl_s", [60.0, 1e5])
def test_pauses_are_a_quarter_and_a_minute_at_most(ttl_s):
    one = Heart(SyncClient("http://127.0.0.1:1", TOKEN).settings)
    one._thread = threading.current_thread()
    with one.expecting("r1", ttl_s):
        wait = one._wait(time.monotonic())
        assert wait == pytest.approx(min(ttl_s / 4, 60.0), abs=1.0)
        assert one._due(time.monotonic() + 100.0)[0][0] == "r1"


FORKS = """
import os, sys, time
from sandman.sync import Client
client = Client(sys.argv[1], "smk_test_secret")
client.create(run="parent", ttl_s=0.2)
if os.fork() == 0:
    client.create(run="child", ttl_s=0.2)
    time.sleep(30)
time.sleep(30)
"""


def test_a_forked_child_beats_for_itself_and_death_ends_it(gateway: FakeGateway):
    child, parent = "POST /v1/runs/child/heartbeat", "POST /v1/runs/parent/heartbeat"
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORKS, gateway.url], start_new_session=True
    ) as program:
        assert wait_until(lambda: len(gateway.calls(child)) >= 2, 20)
        # What the parent holds is not the child's to keep.
        program.kill()
        program.wait()
        time.sleep(0.1)
        held, count = len(gateway.calls(parent)), len(gateway.calls(child))
        assert wait_until(lambda: len(gateway.calls(child)) >= count + 3, 20)
        assert len(gateway.calls(parent)) == held
        os.killpg(program.pid, signal.SIGKILL)
    time.sleep(0.1)
    count = len(gateway.calls(child))
    time.sleep(0.3)
    assert len(gateway.calls(child)) == count
