"""Local mode's provider without processes: values, pools and their size; what is said of a machine."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
from pathlib import Path

import pytest
import trio
import trio.testing

from gateway import machine, provider
from gateway.config import Settings
from gateway.ground import RunKey
from gateway.leases import RUN_KEEP_S, Ledger
from gateway.model import NO_TERMS, Amounts, Assignment, Bounds, Broken, Ending, Instance, Tier
from gateway.provider import BusyError, ClaimLostError, RefusedError
from gateway.provider.local import isolation, life, pods
from gateway.provider.local.images import Image, ImageError
from gateway.provider.local.isolation import Machine
from gateway.provider.local.provider import LocalProvider
from gateway.provider.local.running import Here, Place
from gateway.provider.pods import fingerprint
from sandman import errors, names

NOW = 1000.0


class Process:
    """In the place of a life: runs until it is told how it ends."""

    made: list[Process]

    def __init__(self, instance, image, _machine, sock, scratch, _key) -> None:
        self.instance, self.image, self.sock, self.scratch = instance, image, sock, scratch
        self.said = "its last words"
        self.code: int | None = None
        self._ended = trio.Event()
        Process.made.append(self)

    async def run(self, *, task_status) -> int:
        task_status.started()
        await self._ended.wait()
        return self.code

    def end(self, code: int) -> None:
        self.code = code
        self._ended.set()


class Known:
    """Two images, found at once."""

    def names(self) -> tuple[str, ...]:
        return ("base:1", "task:1")

    async def get(self, name: str) -> Image:
        if name not in self.names():
            raise ImageError("image_not_found", "missing", "none is named so")
        return Image(Path("/image"), "directory")


class Bed:
    """A provider of one pool, and the news that it tells."""

    def __init__(self, tmp_path, **options) -> None:
        wanted = machine.Wanted(**{"image": "base:1", "free": 1, "most": 3, **options})
        self.spec = machine.pool(Settings(), wanted, can_limit=False)
        here = Here(machine=Machine(), scratch=tmp_path)
        place = Place(here=here, daemon_port=0, key_id="k", daemon_key=b"k" * 32)
        self.provider = LocalProvider([self.spec], Known(), place, lambda: NOW)
        self.send, self.receive = trio.open_memory_channel(1000)
        self.seen: dict[str, Instance] = {}
        self.gone: dict[str, Ending] = {}
        self.spec_now = self.spec
        self.synced = False

    async def settle(self) -> None:
        await trio.testing.wait_all_tasks_blocked()
        while self.receive.statistics().current_buffer_used:
            match self.receive.receive_nowait():
                case provider.Seen(instance):
                    self.seen[instance.uid] = instance
                case provider.Gone(uid, ending):
                    del self.seen[uid]
                    self.gone[uid] = ending
                case provider.PoolSeen(spec):
                    self.spec_now = spec
                case provider.Synced():
                    self.synced = True

    async def free(self):
        await self.settle()
        [found] = [one for one in self.seen.values() if one.state == names.STATE_FREE]
        return found


@pytest.fixture
async def bed(tmp_path, nursery, monkeypatch):
    Process.made = []
    monkeypatch.setattr(life, "Life", Process)
    one = Bed(tmp_path)
    nursery.start_soon(one.provider.watch, one.send)
    await one.settle()
    return one


def assignment(**more) -> Assignment:
    values = {
        "claim_id": "c1", "previous_boot_id": None, "tier": Tier.WARM, "tenant": "acme",
        "image": "base:1", "expires_at": NOW + 60, "max_s": 60.0, "request": {}, "terms": NO_TERMS,
    }  # fmt: skip
    return Assignment(**values | more)


async def test_a_pool_is_kept_at_its_size_and_what_is_taken_is_made_anew(bed):
    first = await bed.free()
    assert (bed.synced, first.running, first.hold, first.image_digest) == (
        True,
        True,
        None,
        "directory",
    )
    assert first.isolation["files"] == "own"
    taken = await bed.provider.claim(first, assignment())
    assert (taken.state, taken.tenant, taken.expires_at) == (names.STATE_LEASED, "acme", NOW + 60)
    # The next one waits until nobody waits for it.
    second = await bed.free()
    assert (second.hold, second.running) == (0, False)
    await bed.provider.start(second)
    await bed.provider.start(second)
    assert (await bed.free()).running
    assert len(Process.made) == 2
    with pytest.raises(ClaimLostError):
        await bed.provider.claim(first, assignment(claim_id="c2"))
    assert bed.provider.claim_writes == {"warm": 2}


async def test_another_image_is_another_process_of_the_same_sandbox(bed):
    first = await bed.free()
    taken = await bed.provider.claim(
        first, assignment(image="task:1", tier=Tier.SWAP, previous_boot_id="b")
    )
    assert (taken.uid, taken.image, taken.image_digest) == (first.uid, "task:1", None)
    assert taken.was_swapped
    await bed.settle()
    assert bed.seen[first.uid].image_digest == "directory"
    before, after = Process.made
    assert before.sock is after.sock
    assert before.scratch != after.scratch
    assert bed.seen[first.uid].ending is None


async def test_where_there_is_no_room_nothing_is_made(bed):
    await bed.provider.claim(await bed.free(), assignment())
    for name in ("one", "two"):
        spec = bed.spec_now
        if name == "one":
            made = await bed.provider.create(spec, name, assignment(claim_id=name, tier=Tier.COLD))
            assert (made.name, made.state, made.tier) == ("one", names.STATE_LEASED, "cold")
        else:
            with pytest.raises(BusyError, match="all 3 sandboxes") as caught:
                await bed.provider.create(spec, name, assignment())
            assert caught.value.error.reason == "capacity"
    await bed.provider.delete(made)
    await bed.settle()
    assert bed.gone[made.uid].reason == "deleted"
    assert (await bed.provider.read("", "one")) is None


@pytest.mark.parametrize(
    ("code", "reason", "cause"),
    [
        (0, "died", None),
        (names.EXIT_EXPIRED, "expired", None),
        (128 + signal.SIGKILL, "died", None),
        (pods.EXIT_CANNOT, "died", "infrastructure"),
        (-9, "died", "infrastructure"),
    ],
)
async def test_an_end_is_told_and_the_sandbox_stays_until_it_is_deleted(bed, code, reason, cause):
    taken = await bed.provider.claim(await bed.free(), assignment())
    Process.made[0].end(code)
    await bed.settle()
    ending = bed.seen[taken.uid].ending
    assert (ending.reason, ending.cause, ending.at) == (reason, cause, NOW)
    assert ("its last words" in ending.detail) == (code == pods.EXIT_CANNOT)
    assert not bed.seen[taken.uid].running
    await bed.provider.delete(taken)
    await bed.settle()
    assert bed.gone[taken.uid] == ending


def test_a_want_of_memory_is_told_where_it_is_known():
    assert pods.why(137, "", NOW, oom=True).reason == "oom"
    assert pods.why(1, "", NOW, oom=True).reason == "died"


async def test_a_placeholder_that_dies_is_replaced(bed):
    first = await bed.free()
    Process.made[0].end(1)
    await bed.settle()
    free = [one for one in bed.seen.values() if one.ending is None]
    assert [one.hold for one in free] == [0]
    assert bed.seen[first.uid].ending is not None


async def test_an_image_that_is_none_is_explained(bed):
    made = await bed.provider.create(bed.spec, "x", assignment(image="no/such:1"))
    await bed.settle()
    ending = bed.seen[made.uid].ending
    assert (ending.reason, ending.facts) == ("image_not_found", {"pull": "missing"})
    assert await bed.provider.explain(made) == ending
    assert await bed.provider.explain(dataclasses.replace(made, uid="other")) is None


async def test_without_an_address_there_is_no_sandbox(bed, monkeypatch):
    def refuse(_port):
        raise OSError("no address")

    monkeypatch.setattr(life, "listener", refuse)
    made = await bed.provider.create(bed.spec, "x", assignment())
    await bed.settle()
    assert "no address" in bed.seen[made.uid].ending.detail


async def test_pools_are_made_smaller_and_larger_stopped_and_started(bed):
    await bed.provider.scale(bed.spec, 2)
    await bed.settle()
    assert len(bed.seen) == 2
    await bed.provider.scale(bed.spec, 0)
    await bed.settle()
    assert (bed.seen, {one.detail for one in bed.gone.values()}) == (
        {},
        {"its pool was made smaller"},
    )
    broken = Broken("they die", NOW, 1, fingerprint(bed.spec.template))
    await bed.provider.stop_pool(bed.spec, broken)
    await bed.settle()
    assert (bed.spec_now.stopped, bed.spec_now.broken) == (True, broken)
    await bed.provider.restart_pool(bed.spec)
    assert (await bed.free()).hold == 0
    assert (bed.spec_now.wanted, bed.spec_now.stopped) == (1, False)


async def test_the_sweepers_writes(bed):
    taken = await bed.provider.claim(await bed.free(), assignment())
    await bed.provider.renew(taken, 2.0)
    await bed.settle()
    renewed = bed.seen[taken.uid]
    assert renewed.renewed
    # Decided before the renewal: it counts for more.
    assert not await bed.provider.reclaim(taken, Ending("expired", "it is over"))
    assert await bed.provider.reclaim(renewed, Ending("expired", "it is over"))
    await bed.settle()
    assert bed.gone[taken.uid].reason == "expired"
    assert await bed.provider.reclaim(renewed, Ending("idle", "nobody"))
    await bed.provider.renew(renewed, 1.0)
    await bed.provider.mark(renewed, Ending("idle", "nobody"))


async def test_a_mark_is_the_end_that_is_told(bed):
    taken = await bed.provider.claim(await bed.free(), assignment())
    await bed.provider.mark(taken, Ending("released", "it was released"))
    await bed.provider.bury(taken)
    await bed.settle()
    assert bed.gone[taken.uid].reason == "released"


async def test_what_is_prepared_is_marked_and_then_taken(bed):
    reserved = await bed.provider.claim(await bed.free(), assignment(reservation="r1"))
    assert (reserved.state, reserved.tier, reserved.expires_at) == (
        names.STATE_RESERVED,
        None,
        None,
    )
    marked = await bed.provider.mark_prepared(reserved, "what", "boot")
    assert (marked.prepared, marked.prepared_boot_id) == ("what", "boot")
    taken = await bed.provider.claim(marked, assignment(image="task:1", claim_id="c2"))
    assert (taken.image, taken.state) == ("base:1", names.STATE_LEASED)
    for call in (
        bed.provider.mark_prepared(taken, "what", "boot"),
        bed.provider.set_network(dataclasses.replace(taken, uid="other"), "none"),
        bed.provider.agree(dataclasses.replace(taken, uid="other"), {}),
    ):
        with pytest.raises(errors.DeletedError):
            await call


async def test_what_this_machine_cannot_do_is_refused(bed):
    taken = await bed.provider.claim(await bed.free(), assignment())
    with pytest.raises(RefusedError):
        await bed.provider.resize(taken, Bounds())
    assert (await bed.provider.set_network(taken, "none")).uid == taken.uid
    assert (await bed.provider.agree(taken, {"a": 1})).request == {"a": 1}
    with pytest.raises(errors.BadRequestError):
        await bed.provider.set_network(taken, "internet")
    assert set(await bed.provider.profiles("ns")) == {"none"}
    assert await bed.provider.owner("ns", "job") is None


async def test_a_claim_that_was_given_up_is_found_by_its_id(bed):
    taken = await bed.provider.claim(await bed.free(), assignment())
    assert await bed.provider.discard("ns", taken.name, "another") is None
    assert (await bed.provider.discard("ns", taken.name, "c1")).uid == taken.uid
    await bed.settle()
    assert taken.uid in bed.gone


# --- the machine ---


def test_what_is_kept_apart_is_told_as_it_is():
    root, user = Machine(), Machine(uid=1000, network="none allowed")
    own = isolation.told(root, is_own_root=False, network="none")
    assert (own["files"], own["network"], own["kernel"]) == ("own", "own: none", "shared")
    assert own["cpu"].startswith("shared")
    theirs = isolation.told(user, is_own_root=True, network="none")
    assert theirs["files"].startswith("read-only")
    assert "uid 1000" in theirs["users"]
    assert theirs["network"] == "shared"
    nothing = isolation.told(Machine(namespaces="forbidden"), is_own_root=True, network="none")
    assert all(how.startswith("shared") for how in nothing.values())
    limits = Amounts(memory=2**30)
    limited = isolation.told(Machine(cgroup=""), is_own_root=False, network="none", limits=limits)
    assert (limited["memory"], limited["cpu"]) == ("limited: 1Gi", "shared")


@pytest.mark.parametrize("output", [b"", b"[]", b'{"odd": 1}'])
def test_a_trial_that_fails_is_said(tmp_path, monkeypatch, output):
    done = subprocess.CompletedProcess([], 0, stdout=output)
    monkeypatch.setattr(isolation.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(OSError, match="is not known"):
        isolation.probe(tmp_path)


def test_each_sandbox_has_an_address_of_its_own():
    socks = [life.listener(0) for _ in range(3)]
    assert len({sock.getsockname()[0] for sock in socks}) == 3
    for sock in socks:
        sock.close()


async def test_with_no_address_left_it_is_said(monkeypatch):
    class Taken:
        def __init__(self, *_):
            self.closed = False

        def setsockopt(self, *_):
            pass

        def bind(self, _address):
            raise OSError("taken")

        def close(self):
            self.closed = True

    monkeypatch.setattr(life.socket, "socket", Taken)
    with pytest.raises(OSError, match="taken"):
        life.listener(0)


async def test_heartbeats_and_reservations_are_kept_in_memory():
    ledger = Ledger()
    runs = machine.KeptRuns(ledger)
    key = RunKey("acme", "r1")
    await runs.beat(key, 30.0)
    await runs.confirm(key)
    now = trio.current_time()
    await runs.tidy({("acme", "r1")}, now + 2 * RUN_KEEP_S)
    assert ("acme", "r1") in ledger.runs()
    await runs.tidy(set(), now)
    assert ("acme", "r1") in ledger.runs()
    await runs.tidy(set(), now + 2 * RUN_KEEP_S)
    assert ledger.runs() == {}
    await runs.beat(key, 30.0)
    await runs.end(key)
    assert ledger.runs() == {}


async def test_nobody_attaches_and_nobody_vouches():
    nobody, none = machine.Nobody(), machine.NoAttachments()
    assert not await nobody.may_exec(None, "ns")
    assert await nobody.ask("token") == {"authenticated": False}
    for call in (none.create(None), none.met(None, "b")):
        with pytest.raises(errors.NotFoundError, match="local mode"):
            await call
    await none.mark(None, None)
    await none.delete(None)
    assert (await none.read("a"), await none.workload(None), await none.pod("ns", "p")) == (
        None,
        None,
        [],
    )


def test_an_image_error_names_the_image():
    assert ImageError("image_pull", "disk", "full").ending("a").detail == "image a: full"
    assert Image(None, "host").workdir == "/"
