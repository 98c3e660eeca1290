"""The serving certificate over months of virtual time, with several replicas and faults."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import trio

from sandman import names
from sandman.service import pki
from tests.unit.webhook.fakekube import NAMESPACE, FakeKube
from webhook import certificates, cluster, rotation

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCH = datetime(2026, 11, 29, tzinfo=UTC)
NAMES = rotation.Names(("sandman-webhook.sandman-system.svc",), ("127.0.0.1",))
LAG_S = 30.0
"""How late an API server may see a change of the configuration in these tests."""


class Calendar:
    """The time of day: trio's clock, and days that are skipped, since looks in them would be many."""

    def __init__(self) -> None:
        self.skipped = timedelta(0)

    def __call__(self) -> datetime:
        return EPOCH + self.skipped + timedelta(seconds=trio.current_time())

    def skip_to(self, moment: datetime) -> None:
        self.skipped += moment - self()


now = Calendar()


class Replica:
    """One webhook: its keeper and the leaf that it serves."""

    def __init__(
        self, kube: FakeKube, now: Callable[[], datetime] = now, *, is_owner: bool = True
    ) -> None:
        self.leaf: pki.Pair | None = None
        self.leaves: list[pki.Pair] = []
        objects = cluster.Cluster(kube, NAMESPACE, names.WEBHOOK_CONFIGURATION)
        self.keeper = certificates.Certificates(objects, NAMES, now, self._serve, is_owner=is_owner)

    def _serve(self, leaf: pki.Pair) -> None:
        self.leaf = leaf
        self.leaves.append(leaf)

    @property
    def is_ready(self) -> bool:
        return not self.keeper.why_not_ready()


def is_trusted(
    kube: FakeKube, replica: Replica, lag_s: float = 0.0, now: Callable[[], datetime] = now
) -> bool:
    leaf = replica.leaf.certificate
    # To the hour is near enough, and what was found is remembered: the questions are many.
    moment = now().replace(minute=0, second=0, microsecond=0)
    return all(verifies(bundle, leaf, moment) for bundle in kube.bundles_seen(lag_s))


@functools.lru_cache(maxsize=10_000)
def verifies(bundle: bytes, leaf: bytes, moment: datetime) -> bool:
    return pki.verifies(bundle, leaf, NAMES.dns[0], moment)


async def never_untrusted(
    kube: FakeKube, replicas: list[Replica], now: Callable[[], datetime] = now
) -> None:
    """Fails at the first moment at which a ready replica serves what some API server refuses."""
    ready_since: dict[Replica, float] = {}
    while True:
        for replica in replicas:
            if not replica.is_ready:
                ready_since.pop(replica, None)
                continue
            since = ready_since.setdefault(replica, trio.current_time())
            # What an API server cannot have seen before the replica first was ready is no fault.
            lag = min(LAG_S, max(0.0, trio.current_time() - since - LAG_S))
            assert is_trusted(kube, replica, lag, now), f"at {now()}: {replica.keeper!r}"
        await trio.sleep(5)


async def start(
    kube: FakeKube, nursery: trio.Nursery, count: int = 1, now: Callable[[], datetime] = now
) -> list[Replica]:
    replicas = [Replica(kube, now) for _ in range(count)]
    for replica in replicas:
        nursery.start_soon(replica.keeper.run)
    return replicas


def authorities(kube: FakeKube) -> int:
    return kube.bundle().count(b"BEGIN CERTIFICATE")


class TestFirstStart:
    async def test_ready_within_two_seconds_of_an_empty_secret(self, autojump_clock):
        kube = FakeKube(hooks=2)
        async with trio.open_nursery() as nursery:
            (replica,) = await start(kube, nursery)
            assert replica.keeper.why_not_ready() == "there is no certificate yet"
            await trio.sleep(2)
            assert replica.is_ready
            assert is_trusted(kube, replica)
            hooks = kube.objects["mutatingwebhookconfigurations", names.WEBHOOK_CONFIGURATION][
                "webhooks"
            ]
            assert hooks[0]["clientConfig"]["caBundle"] == hooks[1]["clientConfig"]["caBundle"]
            assert hooks[0]["clientConfig"]["service"] == {}, "nothing else is touched"
            assert "ready, until 2027-02-27" in repr(replica.keeper)
            nursery.cancel_scope.cancel()

    async def test_three_replicas_race_and_serve_one_leaf(self, autojump_clock):
        kube = FakeKube()
        async with trio.open_nursery() as nursery:
            replicas = await start(kube, nursery, 3)
            await trio.sleep(5)
            assert len({replica.leaf for replica in replicas}) == 1
            assert all(replica.is_ready for replica in replicas)
            assert authorities(kube) == 1
            nursery.cancel_scope.cancel()

    async def test_the_private_key_of_the_authority_is_kept_nowhere(self, autojump_clock):
        kube = FakeKube()
        async with trio.open_nursery() as nursery:
            await start(kube, nursery)
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        data = kube.secret(names.WEBHOOK_TLS_SECRET)
        assert sorted(data) == ["ca.crt", "tls.crt", "tls.key"]
        assert not pki.belongs(pki.Pair(data["ca.crt"], data["tls.key"]))

    async def test_at_rest_nothing_is_written(self, autojump_clock):
        kube = FakeKube()
        async with trio.open_nursery() as nursery:
            await start(kube, nursery, 2)
            await trio.sleep(5)
            kube.calls.clear()
            await trio.sleep(600)
            assert {verb for verb, _ in kube.calls} == {"get"}
            nursery.cancel_scope.cancel()

    async def test_without_a_configuration_it_serves_and_is_not_ready(self, autojump_clock):
        kube = FakeKube()
        key = ("mutatingwebhookconfigurations", names.WEBHOOK_CONFIGURATION)
        body = kube.objects.pop(key)
        async with trio.open_nursery() as nursery:
            (replica,) = await start(kube, nursery)
            await trio.sleep(5)
            assert replica.leaf
            assert "does not verify" in replica.keeper.why_not_ready()
            kube.store(*key, body)
            await trio.sleep(2 * certificates.INTERVAL_S)
            assert replica.is_ready
            nursery.cancel_scope.cancel()

    async def test_started_only_once_there_is_a_leaf(self, autojump_clock):
        kube = FakeKube()
        kube.is_down = True
        replica = Replica(kube)
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(60) as waiting:
                await nursery.start(replica.keeper.run)
            assert waiting.cancelled_caught
            kube.is_down = False
            await nursery.start(replica.keeper.run)
            assert replica.leaf
            nursery.cancel_scope.cancel()


class TestRotation:
    async def test_a_year_passes_and_no_leaf_is_ever_untrusted(self, autojump_clock):
        kube, calendar = FakeKube(), Calendar()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                replicas = await start(kube, nursery, 2, calendar)
                nursery.start_soon(never_untrusted, kube, replicas, calendar)
                for _ in range(4):
                    await trio.sleep(5)
                    await self._rotate(kube, replicas, calendar)
                scope.cancel()
        assert [len(replica.leaves) for replica in replicas] == [5, 5]
        assert calendar() - EPOCH > timedelta(days=330)

    async def _rotate(self, kube, replicas, calendar):
        before = replicas[0].leaf
        calendar.skip_to(pki.not_after(before.certificate) - rotation.RENEW_BEFORE)
        await trio.sleep(20)
        assert authorities(kube) == 2
        assert replicas[0].leaf == before, "published first, served later"
        await trio.sleep(rotation.SETTLE.total_seconds() + 60)
        assert replicas[0].leaf == replicas[1].leaf != before
        assert authorities(kube) == 2, "the old one is trusted a while longer"
        await trio.sleep(rotation.RETIRE.total_seconds() + 30)
        assert authorities(kube) == 1
        assert all(replica.is_ready for replica in replicas)

    async def test_a_replica_that_joins_in_the_middle_is_ready_at_once(self, autojump_clock):
        kube = FakeKube()
        kube.put_secret(names.WEBHOOK_TLS_SECRET, rotation.render(_ageing()))
        async with trio.open_nursery() as nursery:
            await start(kube, nursery)
            for _ in range(60):
                (late,) = await start(kube, nursery)
                await trio.sleep(2)
                assert late.is_ready
                assert is_trusted(kube, late)
            nursery.cancel_scope.cancel()

    async def test_a_replica_cut_off_for_long_is_not_ready_before_its_leaf_is_retired(
        self, autojump_clock
    ):
        kube, cut_off_kube = FakeKube(), FakeKube()
        cut_off_kube.objects = kube.objects
        cut_off_kube.history = kube.history
        kube.put_secret(names.WEBHOOK_TLS_SECRET, rotation.render(_ageing()))
        async with trio.open_nursery() as nursery:
            (replica,) = await start(kube, nursery)
            (cut_off,) = await start(cut_off_kube, nursery)
            nursery.start_soon(never_untrusted, kube, [replica, cut_off])
            await trio.sleep(30)
            cut_off_kube.is_down = True
            await trio.sleep(certificates.STALE_S + 10)
            assert "could not be asked" in cut_off.keeper.why_not_ready()
            await trio.sleep(rotation.RETIRE.total_seconds() + 120)
            assert authorities(kube) == 1
            assert not is_trusted(kube, cut_off)
            cut_off_kube.is_down = False
            await trio.sleep(2 * certificates.INTERVAL_S)
            assert cut_off.is_ready
            assert cut_off.leaf == replica.leaf
            nursery.cancel_scope.cancel()


def _ageing() -> rotation.State:
    """A certificate of which six days are left."""
    made = rotation.make(NAMES, now() - timedelta(days=rotation.VALID_DAYS - 6))
    return rotation.State(current=made)


class TestRepair:
    async def test_an_expired_certificate_is_replaced(self, autojump_clock):
        kube = FakeKube()
        old = rotation.make(NAMES, now() - timedelta(days=rotation.VALID_DAYS + 1))
        kube.put_secret(names.WEBHOOK_TLS_SECRET, rotation.render(rotation.State(current=old)))
        kube.put_bundle(old.authority)
        async with trio.open_nursery() as nursery:
            (replica,) = await start(kube, nursery)
            await trio.sleep(2)
            assert replica.is_ready
            assert authorities(kube) == 1
            nursery.cancel_scope.cancel()

    @pytest.mark.parametrize("spoilt", ["tls.crt", "tls.key", "ca.crt", "all"])
    async def test_a_spoilt_secret_is_made_anew_and_no_call_fails_meanwhile(
        self, spoilt, autojump_clock
    ):
        kube = FakeKube()
        async with trio.open_nursery() as nursery:
            replicas = await start(kube, nursery, 2)
            await trio.sleep(40)
            nursery.start_soon(never_untrusted, kube, replicas)
            await trio.sleep(100)
            before = replicas[0].leaf
            data = kube.secret(names.WEBHOOK_TLS_SECRET)
            entries = data | (dict.fromkeys(data, b"") if spoilt == "all" else {spoilt: b"-----"})
            kube.put_secret(names.WEBHOOK_TLS_SECRET, entries)
            await trio.sleep(2 * certificates.INTERVAL_S)
            assert replicas[0].leaf == before, "the leaf in memory is good: it is served until then"
            await trio.sleep(120)
            assert replicas[0].leaf == replicas[1].leaf != before
            await trio.sleep(rotation.RETIRE.total_seconds())
            assert authorities(kube) == 1
            nursery.cancel_scope.cancel()

    @pytest.mark.parametrize("count", [1, 3])
    async def test_a_deleted_secret_is_made_anew_and_no_call_fails_meanwhile(
        self, autojump_clock, count
    ):
        kube = FakeKube()
        async with trio.open_nursery() as nursery:
            replicas = await start(kube, nursery, count)
            await trio.sleep(120)
            nursery.start_soon(never_untrusted, kube, replicas)
            del kube.objects["secrets", names.WEBHOOK_TLS_SECRET]
            await trio.sleep(60)
            assert set(kube.secret(names.WEBHOOK_TLS_SECRET)) >= {"tls.crt", "tls.key", "ca.crt"}
            assert all(replica.is_ready for replica in replicas)
            await trio.sleep(3600)
            assert {replica.leaf for replica in replicas} == {replicas[0].leaf}
            assert authorities(kube) == 1
            nursery.cancel_scope.cancel()

    async def test_a_bundle_that_was_wiped_is_published_again(self, autojump_clock):
        kube = FakeKube()
        async with trio.open_nursery() as nursery:
            (replica,) = await start(kube, nursery)
            await trio.sleep(5)
            kube.put_bundle(b"")
            await trio.sleep(2 * certificates.INTERVAL_S)
            assert is_trusted(kube, replica)
            assert replica.is_ready
            nursery.cancel_scope.cancel()

    async def test_a_leaf_that_nobody_trusts_is_left_at_once_for_one_that_is_trusted(
        self, autojump_clock
    ):
        kube = FakeKube()
        async with trio.open_nursery() as nursery:
            (replica,) = await start(kube, nursery)
            await trio.sleep(5)
            other = rotation.make(NAMES, now())
            kube.put_secret(
                names.WEBHOOK_TLS_SECRET, rotation.render(rotation.State(current=other))
            )
            kube.put_bundle(other.authority)
            await trio.sleep(2 * certificates.INTERVAL_S)
            assert replica.leaf == other.leaf
            nursery.cancel_scope.cancel()

    async def test_an_api_server_that_is_away_is_waited_for(self, autojump_clock):
        kube = FakeKube()
        kube.is_down = True
        async with trio.open_nursery() as nursery:
            (replica,) = await start(kube, nursery)
            await trio.sleep(60)
            assert replica.leaf is None
            kube.is_down = False
            await trio.sleep(3)
            assert replica.is_ready
            nursery.cancel_scope.cancel()
