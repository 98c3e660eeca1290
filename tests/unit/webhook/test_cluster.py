"""What the webhook reads and writes at the API server, and in what form the Secret is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sandman import names
from sandman.service.kube import errors
from tests.unit.webhook.fakekube import NAMESPACE, FakeKube
from webhook import cluster, rotation

EPOCH = datetime(2026, 11, 29, tzinfo=UTC)
NAMES = rotation.Names(("sandman-webhook.sandman-system.svc",), ("127.0.0.1",))


class TestCluster:
    async def test_a_write_that_lost_says_so(self, autojump_clock):
        kube = FakeKube()
        objects = cluster.Cluster(kube, NAMESPACE, names.WEBHOOK_CONFIGURATION)
        secret = await objects.read_secret(names.KEYS_SECRET)
        live = await objects.read_configuration()
        assert await objects.write_secret(secret, {"a": b"1"})
        assert not await objects.write_secret(secret, {"a": b"2"})
        assert await objects.publish(live, b"x")
        assert not await objects.publish(live, b"y")
        assert kube.secret(names.KEYS_SECRET) == {"a": b"1"}
        assert kube.bundle() == b"x"

    async def test_entries_that_are_not_base64_are_empty(self, autojump_clock):
        kube = FakeKube()
        kube.objects["secrets", names.KEYS_SECRET]["data"] = {"a": "%"}
        objects = cluster.Cluster(kube, NAMESPACE, names.WEBHOOK_CONFIGURATION)
        assert (await objects.read_secret(names.KEYS_SECRET)).data == {"a": b""}

    @pytest.mark.parametrize(
        ("failure", "is_raised"),
        [
            (errors.ConflictError("x", status=409), False),
            (errors.InvalidError("the patch", status=422), False),
            (
                errors.InvalidError(
                    "validation",
                    status=422,
                    details=errors.objects.StatusDetails(causes=[errors.objects.StatusCause()]),
                ),
                True,
            ),
            (errors.ForbiddenError("x", status=403), True),
        ],
    )
    async def test_publishing_tells_a_lost_race_from_a_fault(
        self, failure, is_raised, autojump_clock
    ):
        class Failing(FakeKube):
            async def patch_json(self, *_arguments):
                raise failure

        objects = cluster.Cluster(Failing(), NAMESPACE, names.WEBHOOK_CONFIGURATION)
        live = await objects.read_configuration()
        if is_raised:
            with pytest.raises(errors.KubeError):
                await objects.publish(live, b"x")
        else:
            assert not await objects.publish(live, b"x")


class TestSecretsForm:
    """The Secret's entries: what is written is what is read, whatever stands beside it."""

    def test_every_phase_survives_the_round_trip(self):
        moment = EPOCH
        one, two = rotation.make(NAMES, moment), rotation.make(NAMES, moment)
        for state in (
            rotation.State(),
            rotation.State(current=one),
            rotation.State(current=one, next=two),
            rotation.State(current=two, previous=one.authority, until=moment),
        ):
            assert rotation.parse(rotation.render(state), NAMES, moment) == state

    @pytest.mark.parametrize("until", [b"", b"soon", b"\xff", b"2026-11-29T00:00:00"])
    def test_an_old_authority_without_a_date_is_dropped(self, until):
        one, two = rotation.make(NAMES, EPOCH), rotation.make(NAMES, EPOCH)
        state = rotation.State(current=two, previous=one.authority, until=EPOCH)
        entries = rotation.render(state) | {"previous-until": until}
        read = rotation.parse(entries, NAMES, EPOCH)
        assert read.until is None
        after = rotation.advance(read, b"", NAMES, EPOCH, next_is_settled=False)
        assert after == rotation.State(current=two)

    def test_a_certificate_for_other_names_is_none_of_ours(self):
        made = rotation.make(rotation.Names(("other.svc",)), EPOCH)
        entries = rotation.render(rotation.State(current=made))
        assert rotation.parse(entries, NAMES, EPOCH).current is None
