"""The provider over an API server in memory: other resources than the placeholder's."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from gateway import sizing
from gateway.model import Amounts, Bounds, Instance, Tier
from gateway.provider import RefusedError, pods
from sandman.errors import (
    UnreachableError,
)
from sandman.service import kube
from tests.fakes.objects import (
    NAMESPACE,
    TASK,
    placeholder,
    template,
)
from tests.unit.gateway.test_provider import SPEC, assignment, provided
from tests.unit.service.fake_api import status

if TYPE_CHECKING:
    from tests.fakes.api_server import ApiServer

RESOURCES = {
    "requests": {"cpu": "250m", "memory": "512Mi", "ephemeral-storage": "1Gi"},
    "limits": {"cpu": "2", "memory": "4Gi"},
}
GI = 1024**3
GROWN = Bounds(Amounts(500, GI), Amounts(4000, 8 * GI))


async def sized_one(server: ApiServer, api: kube.Kube, resources: dict = RESOURCES) -> Instance:
    document = placeholder("p1")
    document["spec"]["containers"][0]["resources"] = resources
    server.put("pods", document)
    return pods.instance(await api.get(kube.PODS, "p1", namespace=NAMESPACE))


async def test_a_resize_is_a_write_of_its_own_and_touches_nothing_else():
    async with provided() as (server, provider, api):
        taken = await provider.claim(await sized_one(server, api), assignment())
        assert taken.bounds == Bounds(Amounts(250, GI // 2), Amounts(2000, 4 * GI))
        await provider.resize(taken, GROWN)
        assert server.writes == [("PATCH", "pods", "p1"), ("PATCH", "pods/resize", "p1")]
        assert provider.claim_writes == {"swap": 2}
        [container] = server.named("pods", "p1")["spec"]["containers"]
        assert container["resources"] == {
            "requests": {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi"},
            "limits": {"cpu": "4", "memory": "8Gi"},
        }
        assert container["image"] == TASK


async def test_a_resize_of_another_pod_of_that_name_is_refused():
    async with provided() as (server, provider, api):
        taken = await sized_one(server, api)
        for changes in ({"uid": "another"}, {"name": "gone"}):
            with pytest.raises(RefusedError):
                await provider.resize(dataclasses.replace(taken, **changes), GROWN)
        server.faults = [lambda _seen: status(503, "ServiceUnavailable")] * 10
        with pytest.raises(UnreachableError):
            await provider.resize(taken, GROWN)


async def test_a_new_pod_has_the_resources_that_were_asked_for():
    template_ = template()
    template_["spec"]["containers"][0]["resources"] = RESOURCES
    spec = dataclasses.replace(SPEC, template=template_, bounds=sizing.of_template(template_))
    async with provided() as (server, provider, _):
        wanted = assignment(tier=Tier.COLD, resources=Amounts(4000, 8 * GI))
        made = await provider.create(spec, "cold", wanted)
        assert made.bounds == GROWN
        [container] = server.named("pods", "cold")["spec"]["containers"]
        assert container["resources"]["requests"]["ephemeral-storage"] == "1Gi"
        assert RESOURCES["limits"] == {"cpu": "2", "memory": "4Gi"}, (
            "the pool's own template changed"
        )
        nothing = template()
        nothing["spec"]["containers"][0]["resources"] = None
        unsized = dataclasses.replace(SPEC, template=nothing)
        bare = await provider.create(unsized, "bare", assignment(resources=Amounts(500)))
        assert bare.bounds == Bounds(Amounts(500), Amounts(500))
