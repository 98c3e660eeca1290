"""Pods that are made, held back and deleted through the provider."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from gateway.model import Instance, Tier
from gateway.provider import RefusedError, pods
from sandman import names
from sandman.errors import InternalError
from sandman.service import kube
from tests.fakes.objects import NAMESPACE, TASK, injected, placeholder, template
from tests.unit.gateway.test_provider import SPEC, assignment, free_one, once, provided

if TYPE_CHECKING:
    from tests.fakes.api_server import ApiServer


async def test_a_cold_pod_is_made_from_the_template_and_carries_the_claim():
    async with provided() as (server, provider, _):
        server.admit = injected
        made = await provider.create(SPEC, "cold-1", assignment(tier=Tier.COLD))
        assert (made.name, made.state, made.tier, made.image, made.nonce, made.address) == (
            "cold-1", names.STATE_LEASED, "cold", TASK, "nonce-1", None,
        )  # fmt: skip
        server.quota = 1
        with pytest.raises(RefusedError, match="quota"):
            await provider.create(SPEC, "cold-2", assignment())


async def held_one(server: ApiServer, api: kube.Kube, *gates: str) -> Instance:
    server.put("pods", placeholder("p1"))
    server.named("pods", "p1")["spec"]["schedulingGates"] = [{"name": one} for one in gates]
    return pods.instance(await api.get(kube.PODS, "p1", namespace=NAMESPACE))


async def test_a_held_placeholder_is_let_go_and_gates_of_others_stay():
    async with provided() as (server, provider, api):
        one = await held_one(server, api, "example.com/theirs", names.GATE_REFILL)
        assert one.hold == 1
        await provider.start(one)
        left = pods.instance(await api.get(kube.PODS, "p1", namespace=NAMESPACE))
        assert server.named("pods", "p1")["spec"]["schedulingGates"] == [
            {"name": "example.com/theirs"}
        ]
        assert left.hold is None
        # Told late that it is held, the write finds nothing of ours to take away.
        await provider.start(one)
        await provider.start(dataclasses.replace(one, hold=0))
        await provider.start(dataclasses.replace(one, uid="another"))
        assert len(server.named("pods", "p1")["spec"]["schedulingGates"]) == 1
        await provider.delete(one)
        await provider.start(one)


async def test_a_pod_that_somebody_waits_for_is_not_held():
    gates = [{"name": names.GATE_REFILL}, {"name": "example.com/theirs"}]
    held = template()
    held["spec"]["schedulingGates"] = gates
    async with provided() as (server, provider, _):
        server.admit = injected
        await provider.create(dataclasses.replace(SPEC, template=held), "cold-1", assignment())
        assert server.named("pods", "cold-1")["spec"]["schedulingGates"] == gates[1:]
    assert held["spec"]["schedulingGates"] == gates


async def test_a_delete_never_hits_another_pod_of_the_name():
    async with provided() as (server, provider, api):
        one = await free_one(server, api)
        await provider.delete(dataclasses.replace(one, uid="another"))
        assert len(server.all("pods")) == 1
        await provider.delete(one)
        await provider.delete(one)
        assert server.writes == [("DELETE", "pods", "p1")]
        body = [seen.json for seen in server.seen if seen.method == "DELETE"][-1]
        assert (body["preconditions"], body["gracePeriodSeconds"]) == ({"uid": one.uid}, 1)


async def test_a_delete_that_the_server_refuses_is_told():
    async with provided() as (server, provider, api):
        one = await free_one(server, api)
        server.faults = [once(403, "Forbidden", "DELETE")]
        with pytest.raises(InternalError):
            await provider.delete(one)


async def test_only_what_carries_the_claim_is_discarded():
    async with provided() as (server, provider, api):
        taken = await provider.claim(await free_one(server, api), assignment())
        assert await provider.discard(NAMESPACE, "p1", "another claim") is None
        assert await provider.discard(NAMESPACE, "p2", "c1") is None
        assert len(server.all("pods")) == 1
        gone = await provider.discard(NAMESPACE, "p1", "c1")
        assert gone is not None
        assert gone.uid == taken.uid
        assert server.all("pods") == []


async def test_a_read_tells_none_from_an_error():
    async with provided() as (server, provider, api):
        one = await free_one(server, api)
        assert await provider.read(NAMESPACE, "p1") == one
        assert await provider.read(NAMESPACE, "p2") is None
        server.faults = [once(403, "Forbidden", "GET")]
        with pytest.raises(InternalError):
            await provider.read(NAMESPACE, "p1")
