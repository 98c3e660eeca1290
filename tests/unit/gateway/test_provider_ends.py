"""The provider over an API server in memory: pools that are stopped, sandboxes that end."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from gateway.model import Broken, Ending, Instance, PoolSpec
from gateway.provider import pods
from sandman import names
from sandman.errors import (
    InternalError,
    UnreachableError,
)
from sandman.service import kube
from tests.fakes.objects import (
    NAMESPACE,
    deployment,
    placeholder,
)
from tests.unit.gateway.test_provider import provided
from tests.unit.service.fake_api import status

if TYPE_CHECKING:
    from tests.fakes.api_server import ApiServer

# --- pools that are stopped ---


def no_write_of(plural: str):
    """The API server forbids the next one."""

    def refuse(seen):
        is_it = seen.method != "GET" and f"/{plural}" in seen.path
        return status(403, "Forbidden", "no") if is_it else None

    return refuse


async def known_pool(server: ApiServer, api: kube.Kube) -> PoolSpec:
    server.put("deployments", deployment())
    found = pods.pool(await api.get(kube.DEPLOYMENTS, "sandman-pool-root", namespace=NAMESPACE))
    assert found is not None
    return found


async def test_a_pool_is_stopped_by_one_write_that_says_why_and_told_as_an_event():
    async with provided() as (server, provider, api):
        spec = await known_pool(server, api)
        why = Broken("they die: " + "x" * 2000, 1000.0, 7, pods.fingerprint(spec.template))
        await provider.stop_pool(spec, why)
        assert server.writes[0] == ("PATCH", "deployments", "sandman-pool-root")
        stopped = pods.pool(
            await api.get(kube.DEPLOYMENTS, "sandman-pool-root", namespace=NAMESPACE)
        )
        assert stopped is not None
        assert (stopped.wanted, stopped.broken, stopped.stopped) == (0, why, True)
        [told] = server.all("events")
        assert told["involvedObject"]["uid"] == spec.uid
        assert told["reason"] == "PoolStopped"
        assert len(told["message"]) <= 1024
        assert told["message"].endswith("--replicas=7")
        assert (
            f"annotate deployment sandman-pool-root {names.ANNOTATION_BROKEN}- " in told["message"]
        )

        await provider.restart_pool(stopped)
        again = pods.pool(await api.get(kube.DEPLOYMENTS, "sandman-pool-root", namespace=NAMESPACE))
        assert again is not None
        assert (again.wanted, again.broken, again.stopped) == (7, None, False)


async def test_one_that_somebody_scaled_keeps_that_and_one_that_is_gone_is_no_error():
    async with provided() as (server, provider, api):
        spec = await known_pool(server, api)
        why = Broken("they die", 1000.0, 7, "another template")
        await provider.restart_pool(dataclasses.replace(spec, broken=why, wanted=2))
        assert server.named("deployments", "sandman-pool-root")["spec"]["replicas"] == 1
        server.remove("deployments", "sandman-pool-root")
        await provider.restart_pool(spec)
        await provider.stop_pool(spec, why)


async def test_a_stop_that_cannot_be_written_is_an_error_and_an_event_that_cannot_is_none():
    async with provided() as (server, provider, api):
        spec = await known_pool(server, api)
        why = Broken("they die", 1000.0, 7, "t")
        server.faults.append(no_write_of("events"))
        await provider.stop_pool(spec, why)
        assert server.named("deployments", "sandman-pool-root")["spec"]["replicas"] == 0
        server.faults.append(no_write_of("deployments"))
        with pytest.raises(InternalError):
            await provider.stop_pool(spec, why)


# --- leases ---


async def leased_one(server: ApiServer, api: kube.Kube) -> Instance:
    document = placeholder("p1")
    document["metadata"]["labels"][names.LABEL_STATE] = names.STATE_LEASED
    server.put("pods", document)
    return pods.instance(await api.get(kube.PODS, "p1", namespace=NAMESPACE))


EXPIRED = Ending("expired", "nobody renewed its lease", at=5.0)


async def test_a_renewal_changes_one_annotation_and_nothing_on_one_that_ends():
    async with provided() as (server, provider, api):
        one = await leased_one(server, api)
        await provider.renew(one, 2.0)
        meta = server.named("pods", "p1")["metadata"]
        assert meta["annotations"][names.ANNOTATION_RENEWED] == "1000.000 2"
        await provider.mark(one, EXPIRED)
        await provider.renew(one, 0.0)
        meta = server.named("pods", "p1")["metadata"]
        assert meta["annotations"][names.ANNOTATION_RENEWED] == "1000.000 2"
        await provider.renew(dataclasses.replace(one, name="gone"), 0.0)
        assert [write[0] for write in server.writes] == ["PATCH", "PATCH"]


async def test_a_sandbox_is_reclaimed_with_its_reason_first():
    async with provided() as (server, provider, api):
        one = await leased_one(server, api)
        server.holds_deleted = True
        assert await provider.reclaim(one, EXPIRED)
        assert [write[0] for write in server.writes] == ["PATCH", "DELETE"]
        left = pods.instance(await api.get(kube.PODS, "p1", namespace=NAMESPACE))
        assert (left.ending.reason, left.deleting) == ("expired", True)
        server.remove("pods", "p1")
        assert await provider.reclaim(one, EXPIRED)


async def test_a_kubelet_that_reports_meanwhile_saves_nobody():
    async with provided() as (server, provider, api):
        one = await leased_one(server, api)
        report = lambda: server.change("pods", "p1", lambda pod: pod["status"].update(phase="Running"))  # noqa: E731  # fmt: skip
        report()  # before the mark

        def between(seen):
            if seen.method == "DELETE":
                report()
                return status(409, "Conflict")
            return None

        server.faults = [between]
        assert await provider.reclaim(one, EXPIRED)
        assert server.all("pods") == []


async def test_a_renewal_at_the_last_moment_saves_it():
    async with provided() as (server, provider, api):
        one = await leased_one(server, api)
        await provider.renew(one, 0.0)
        assert not await provider.reclaim(one, EXPIRED)
        assert [write[0] for write in server.writes] == ["PATCH"]
        # Nor does the same name do for another pod.
        assert await provider.reclaim(dataclasses.replace(one, uid="other"), EXPIRED)
        assert len(server.all("pods")) == 1


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_reclaim_that_fails_is_told(method):
    async with provided() as (server, provider, api):
        one = await leased_one(server, api)
        server.faults = [lambda seen: status(500, "InternalError") if seen.method == method else None] * 9  # fmt: skip
        with pytest.raises((InternalError, UnreachableError)):
            await provider.reclaim(one, EXPIRED)
        server.faults = [lambda seen: status(409, "Conflict") if seen.method == method else None] * 9  # fmt: skip
        assert not await provider.reclaim(
            pods.instance(await api.get(kube.PODS, "p1", namespace=NAMESPACE)), EXPIRED
        )


async def test_a_pod_of_a_lost_node_is_deleted_without_its_kubelet():
    async with provided() as (server, provider, api):
        one = await leased_one(server, api)
        await provider.bury(dataclasses.replace(one, uid="other"))
        assert len(server.all("pods")) == 1
        await provider.bury(one)
        deletion = [seen.json for seen in server.seen if seen.method == "DELETE"][-1]
        assert (deletion["gracePeriodSeconds"], deletion["preconditions"]["uid"]) == (0, one.uid)
        assert server.all("pods") == []


async def test_an_owner_is_a_job_that_is_there_and_stays():
    async with provided() as (server, provider, _):
        job = server.put("jobs", {"metadata": {"name": "trainer", "namespace": NAMESPACE}})
        assert await provider.owner(NAMESPACE, "trainer") == job["metadata"]["uid"]
        assert await provider.owner("elsewhere", "trainer") is None
        going = {"deletionTimestamp": "2026-11-29T12:00:00Z"}
        server.change("jobs", "trainer", lambda one: one["metadata"].update(going))
        assert await provider.owner(NAMESPACE, "trainer") is None
        server.faults = [lambda _seen: status(403, "Forbidden", "no")]
        with pytest.raises(InternalError):
            await provider.owner(NAMESPACE, "trainer")
