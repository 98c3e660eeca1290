"""Heartbeats of runs, by the real client, over an API server that keeps state."""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import trio

from gateway import runs
from gateway.ground import RunKey
from gateway.leases import Ledger
from gateway.runs import Runs
from sandman import names
from sandman.errors import InternalError, SandmanError
from tests.fakes.api_server import ApiServer
from tests.unit.service.fake_api import status

KEY = RunKey("acme", "Run.1")
AS_KEY = ("acme", "Run.1")
NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@contextlib.asynccontextmanager
async def two_replicas():
    """One that gets heartbeats, and one that only looks on."""
    server = ApiServer()
    async with server.links(1), server.client() as api, trio.open_nursery() as nursery:
        made = []
        for _ in range(2):
            one = Runs(api, names.SANDBOX_NAMESPACE, Ledger(), lambda: NOON)
            nursery.start_soon(one.run)
            made.append(one)
        yield SimpleNamespace(server=server, api=api, here=made[0], there=made[1])
        nursery.cancel_scope.cancel()


async def until(condition) -> None:
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.01)


async def test_a_heartbeat_is_one_small_write_and_all_replicas_see_it():
    async with two_replicas() as bed:
        await bed.here.beat(KEY, 300.0)
        await until(lambda: AS_KEY in bed.there._ledger.runs())
        [lease] = bed.server.all("leases")
        assert lease["metadata"]["name"] == KEY.lease_name
        assert lease["metadata"]["labels"][names.LABEL_TENANT] == "acme"
        assert lease["metadata"]["labels"][names.LABEL_RUN] == "Run.1"
        assert lease["spec"] == {
            "renewTime": "2026-11-30T12:00:00.000000Z", "leaseDurationSeconds": 300,
            "acquireTime": "2026-11-30T12:00:00.000000Z", "holderIdentity": "Run.1",
        }  # fmt: skip
        first = bed.there._ledger.runs()[AS_KEY]
        bed.server.writes.clear()
        for _ in range(3):
            await bed.here.beat(KEY, 0.2)
        assert bed.server.writes == [("PATCH", "leases", KEY.lease_name)] * 3
        await until(lambda: bed.there._ledger.runs()[AS_KEY] > first)
        assert repr(bed.there) == "<Runs 1>"


async def test_two_first_heartbeats_at_once_are_one_lease():
    async with two_replicas() as bed:
        bed.server.write_s = 0.05
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(bed.here.beat, KEY, 300.0)
        assert len(bed.server.all("leases")) == 1


def test_names_of_tenants_and_runs_do_not_run_into_each_other():
    texts = [RunKey("a", "b-c"), RunKey("a-b", "c"), RunKey("A", "b-c"), RunKey("a", "B-C")]
    assert len({one.lease_name for one in texts}) == 4
    assert all(len(one.lease_name) < 63 for one in texts)


async def test_a_heartbeat_that_was_not_written_is_told():
    async with two_replicas() as bed:
        bed.server.faults = [lambda seen: status(403, "Forbidden", "no") if seen.method == "PATCH" else None]  # fmt: skip
        with pytest.raises(InternalError):
            await bed.here.beat(KEY, 1.0)
        assert AS_KEY not in bed.here._ledger.runs()


async def test_at_its_source_a_heartbeat_is_found_that_the_watch_did_not_tell():
    async with two_replicas() as bed:
        deaf = Runs(bed.api, names.SANDBOX_NAMESPACE, Ledger(), lambda: NOON)
        await deaf.confirm(KEY)
        assert deaf._ledger.runs() == {}
        await bed.here.beat(KEY, 300.0)
        await deaf.confirm(KEY)
        first = deaf._ledger.runs()[AS_KEY]
        # The same one again is none.
        await deaf.confirm(KEY)
        assert deaf._ledger.runs()[AS_KEY] == first
        await bed.here.beat(KEY, 300.0)
        await deaf.confirm(KEY)
        assert deaf._ledger.runs()[AS_KEY] > first
        bed.server.faults = [lambda _seen: status(403, "Forbidden", "no")]
        with pytest.raises(SandmanError):
            await deaf.confirm(KEY)


async def test_the_lease_of_a_run_that_is_over_is_deleted():
    async with two_replicas() as bed:
        await bed.here.beat(KEY, 300.0)
        await bed.here.beat(RunKey("acme", "other"), 300.0)
        await until(lambda: len(bed.here._known) == 2)
        late = trio.current_time() + runs.KEEP_S + 1
        await bed.here.tidy({AS_KEY, ("acme", "other")}, late)
        await bed.here.tidy((), late - 10)
        assert len(bed.server.all("leases")) == 2
        await bed.here.tidy({("acme", "other")}, late)
        assert [one["spec"]["holderIdentity"] for one in bed.server.all("leases")] == ["other"]
        await until(lambda: AS_KEY not in bed.there._ledger.runs())


async def test_the_lease_of_a_run_that_was_ended_is_gone_at_once():
    async with two_replicas() as bed:
        await bed.here.beat(KEY, 300.0)
        await bed.here.beat(RunKey("acme", "other"), 300.0)
        await until(lambda: len(bed.there._known) == 2)
        for _ in range(2):
            await bed.there.end(KEY)
            assert [one["spec"]["holderIdentity"] for one in bed.server.all("leases")] == ["other"]
        await until(lambda: AS_KEY not in bed.here._ledger.runs())
        bed.server.faults = [lambda _seen: status(403, "Forbidden", "no")]
        with pytest.raises(SandmanError):
            await bed.there.end(RunKey("acme", "other"))


async def test_a_heartbeat_at_the_last_moment_keeps_the_lease():
    async with two_replicas() as bed:
        await bed.here.beat(KEY, 300.0)
        await until(lambda: bed.here._known)
        old = dict(bed.here._known)
        await bed.here.beat(KEY, 300.0)
        bed.here._known = dict(old)
        await bed.here.tidy((), math.inf)
        assert len(bed.server.all("leases")) == 1
        bed.server.faults = [lambda seen: status(403, "Forbidden") if seen.method == "DELETE" else None]  # fmt: skip
        await until(lambda: bed.there._known != old)
        await bed.there.tidy((), math.inf)
        assert len(bed.server.all("leases")) == 1


async def test_the_lease_of_an_attachment_of_a_run_is_no_heartbeat_and_stays():
    async with two_replicas() as bed:
        labels = {
            names.LABEL_ATTACHED: "true", names.LABEL_TENANT: "acme", names.LABEL_RUN: "attached.run",
        }  # fmt: skip
        name = f"{names.ATTACHMENT_PREFIX}1"
        meta = {"name": name, "namespace": names.SYSTEM_NAMESPACE, "labels": labels}
        bed.server.put("leases", {"metadata": meta})
        await bed.here.beat(KEY, 300.0)
        await until(lambda: AS_KEY in bed.here._known)
        assert list(bed.here._ledger.runs()) == [AS_KEY]
        await bed.here.tidy((), trio.current_time() + runs.KEEP_S + 1)
        assert [one["metadata"]["name"] for one in bed.server.all("leases")] == [name]
