"""When attachments to workloads end, in virtual time."""

from __future__ import annotations

import contextlib

import pytest
import structlog.testing
import trio

from gateway.attached import Attached
from gateway.daemons import NotListeningError
from gateway.detaching import EVERY_S, Detaching
from gateway.leases import Ledger
from gateway.model import Identity, Terms
from gateway.workloads import Attachment, Workload, instance
from sandman import wire
from sandman.errors import UnreachableError

BEGAN = 1e6
GRACE_S = 600.0


class Attacher:
    """Ends are noted and done."""

    def __init__(self, attached: Attached) -> None:
        self.attached = attached
        self.ends: list[tuple[float, str, str]] = []
        self.trouble: list[Exception] = []

    def is_over(self, _one: Attachment) -> bool:
        return False

    async def ending(self, one: Attachment):
        return self.attached.ending(one)

    async def end(self, one: Attachment, why) -> None:
        if self.trouble:
            raise self.trouble.pop()
        self.ends.append((trio.current_time(), why.reason, why.detail))
        self.attached.gone(one.uid, why)


class Bed:
    def __init__(self, **terms) -> None:
        self.start = trio.current_time()
        self.ledger = Ledger()
        self.attached = Attached(self.ledger, self.wall, keep_ended=9)
        self.attacher = Attacher(self.attached)
        self.used = self.start
        self.renewed: float | None = None
        self.asked = 0
        self.told: list[float] = []
        self.claim_id = "c"
        self.silent = False
        self.may: set[str] = {"", "web-1"}
        self.confirmed: list = []
        self.source: float | None = None
        self.leads = True
        self.detaching = Detaching(
            self.attacher, self, self, self.confirm, self.wall, grace_s=GRACE_S
        )
        self.one = Attachment(
            name="sandman-attached-1", uid="u-attached", tenant="acme", run="r", claim_id="c",
            namespace="shop", pod="web-1", pod_uid="u-1", container="app", boot_id="b",
            identity=Identity("alice", ()), created_at=BEGAN, expires_at=BEGAN + 36000.0,
            terms=Terms(max_s=36000.0, **terms),
        )  # fmt: skip
        self.pod_seen()
        self.attached.seen(self.one)

    def pod_seen(self) -> None:
        app = Workload(
            namespace="shop", pod="web-1", uid="u-1", container="app", port=21763, nonce="n",
            key_id="k", address="10.0.0.1", running=True,
        )  # fmt: skip
        self.attached.pod_seen("u-1", [app])

    def wall(self) -> float:
        return BEGAN + trio.current_time() - self.start

    async def may_exec(self, _who, _namespace, pod="") -> bool:
        return pod in self.may

    async def info(self, target) -> wire.Info:
        assert target.place.port == 21763
        self.asked += 1
        if self.silent:
            raise NotListeningError("no answer")
        now = trio.current_time()
        return wire.Info(
            boot_id="b", version="1", claim_id=self.claim_id, used_s=now - self.used,
            renewed_s=None if self.renewed is None else now - self.renewed,
            idle_s=now - self.used,
        )  # fmt: skip

    async def renew(self, _target, ttl_s: float, *, asked: bool) -> None:
        assert not asked
        if self.silent:
            raise NotListeningError("no answer")
        self.told.append(ttl_s)

    async def confirm(self, key) -> None:
        self.confirmed.append(key)
        if self.source is not None:
            self.ledger.beat(key.tenant, key.run, self.source)

    @property
    def lives(self) -> bool:
        return bool(self.attached.attachments())


@contextlib.asynccontextmanager
async def running(**terms):
    bed = Bed(**terms)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.detaching.run, lambda: bed.leads)
        yield bed
        nursery.cancel_scope.cancel()


async def test_one_without_spans_lives_for_its_longest_life(autojump_clock):
    async with running() as bed:
        await trio.sleep(35990.0)
        assert bed.lives
        assert (bed.asked, bed.told) == (0, [])
        await trio.sleep(10.0 + EVERY_S)
        [(_, reason, detail)] = bed.attacher.ends
        assert (reason, detail) == ("expired", "its longest life was over")


async def test_nobody_calls_and_its_daemon_says_so(autojump_clock):
    async with running(ttl_s=100.0) as bed:
        await trio.sleep(100.0 + 2 * EVERY_S)
        [(at, reason, detail)] = bed.attacher.ends
        assert (reason, detail) == ("expired", "nobody renewed its lease for 100 s")
        assert 100.0 <= at - bed.start <= 100.0 + 2 * EVERY_S
        assert bed.asked >= 1


@pytest.mark.parametrize("word", ["used", "renewed"])
async def test_calls_through_another_replica_keep_it(autojump_clock, word):
    """Nothing of them is known here: the daemon tells."""
    async with running(ttl_s=100.0) as bed:
        for _ in range(100):
            await trio.sleep(50.0)
            setattr(bed, word, trio.current_time())
        assert bed.lives
        assert 40 <= bed.asked <= 100
        await trio.sleep(100.0 + 2 * EVERY_S)
        assert not bed.lives


async def test_heartbeats_of_its_run_keep_it_and_the_source_has_the_last_word(autojump_clock):
    async with running(ttl_s=100.0, of_run=True) as bed:
        for _ in range(50):
            await trio.sleep(50.0)
            bed.ledger.beat("acme", "r", trio.current_time())
        assert bed.lives
        assert bed.asked == 0
        await trio.sleep(90.0)
        # The watch is behind: the Lease itself is newer.
        bed.source = trio.current_time()
        await trio.sleep(90.0)
        assert bed.lives
        assert bed.confirmed
        await trio.sleep(10.0 + 2 * EVERY_S)
        assert [reason for _, reason, _ in bed.attacher.ends] == ["expired"]


async def test_it_has_nothing_to_do(autojump_clock):
    async with running(idle_s=100.0) as bed:
        await trio.sleep(90.0)
        bed.used = trio.current_time()
        await trio.sleep(90.0)
        assert bed.lives
        await trio.sleep(10.0 + 2 * EVERY_S)
        [(_, reason, detail)] = bed.attacher.ends
        assert (reason, detail) == ("idle", "it had nothing to do for 100 s")


@pytest.mark.parametrize("trouble", ["silent", "another claim"])
async def test_where_its_daemon_does_not_tell_it_stays_until_its_longest_life_is_over(
    autojump_clock, trouble
):
    async with running(ttl_s=100.0, idle_s=100.0) as bed:
        bed.silent = trouble == "silent"
        bed.claim_id = "c" if bed.silent else "d"
        await trio.sleep(35000.0)
        assert bed.lives
        await trio.sleep(1000.0 + EVERY_S)
        assert [reason for _, reason, _ in bed.attacher.ends] == ["expired"]


async def test_daemons_are_told_that_a_gateway_is_there(autojump_clock):
    """Three times in the span after which they would let their guest go."""
    async with running(ttl_s=300.0, of_run=True) as bed:
        for _ in range(180):
            bed.ledger.beat("acme", "r", trio.current_time())
            await trio.sleep(20.0)
        assert 3600.0 / (300.0 + EVERY_S) <= len(bed.told) <= 3600.0 / 300.0
        assert set(bed.told) == {300.0}
        # The next leader does not know when it was told last.
        bed.leads = False
        await trio.sleep(2 * EVERY_S)
        assert "since=None" in repr(bed.detaching)


async def test_a_daemon_that_could_not_be_told_is_told_at_the_next_look(autojump_clock):
    async with running(ttl_s=300.0) as bed:
        bed.silent = True
        with structlog.testing.capture_logs() as lines:
            await trio.sleep(3 * EVERY_S + 1.0)
        assert [one["event"] for one in lines] == ["a workload's daemon could not be told"] * 3
        bed.silent = False
        await trio.sleep(EVERY_S)
        assert bed.told == [300.0]


async def test_without_the_right_it_ends_and_a_right_for_the_pod_is_enough(autojump_clock):
    async with running() as bed:
        bed.may = {"web-1"}
        await trio.sleep(3 * EVERY_S)
        assert bed.lives
        bed.may = set()
        bed.attacher.trouble = [UnreachableError("the API server is away")]
        with structlog.testing.capture_logs() as lines:
            await trio.sleep(3 * EVERY_S)
        [(_, reason, detail)] = bed.attacher.ends
        assert (reason, detail) == ("released", "alice may not create pods/exec there any more")
        assert lines[0]["event"] == "an attachment could not be ended"


async def test_a_replica_that_does_not_lead_ends_nothing(autojump_clock):
    async with running(ttl_s=10.0) as bed:
        bed.leads = False
        await trio.sleep(36100.0)
        assert bed.lives
        bed.leads = True
        await trio.sleep(2 * EVERY_S)
        assert not bed.lives


async def test_an_attachment_that_is_gone_is_forgotten(autojump_clock):
    async with running(ttl_s=10.0) as bed:
        await trio.sleep(EVERY_S * 4)
        assert not bed.lives
        assert "sandboxes=0" in repr(bed.ledger)
        assert instance(bed.one, None).terms.ttl_s == 10.0
