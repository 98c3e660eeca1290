"""The floor: what the API server itself takes for a claim. The gateway's patch, with its rights, and no gateway."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import trio

from gateway.model import Assignment, Tier
from gateway.provider import patches, pods
from sandman import names
from sandman.service import kube
from tests.scale.caller import Tally

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.model import Instance

AT_ONCE = 16
"""Plain connections, as in the measurement of a bare claim that the design rests on."""
RUN = "floor"


async def claims(kubeconfig: Path, count: int) -> Tally:
    """Patch so many free placeholders, one call each, and delete them afterwards."""
    tally = Tally()
    async with kube.Kube(kube.load(kubeconfig=str(kubeconfig)), max_requests=AT_ONCE) as api:
        free = await _free(api)
        if len(free) < count:
            raise ValueError(f"there are {len(free)} free placeholders, not {count}")
        source = iter(free[:count])
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(_claim, api, source, tally)
        tally.wall_s = trio.current_time() - began
        async with trio.open_nursery() as nursery:
            for one in free[:count]:
                nursery.start_soon(_delete, api, one)
    return tally


async def _free(api: kube.Kube) -> list[Instance]:
    listing = await api.list(
        kube.PODS,
        namespace=names.SANDBOX_NAMESPACE,
        label_selector=f"{names.LABEL_STATE}={names.STATE_FREE}",
    )
    found = [pods.instance(one) for one in listing.items]
    return [one for one in found if one.running]


async def _claim(api: kube.Kube, source: Any, tally: Tally) -> None:
    for one in source:
        began = trio.current_time()
        operations = patches.claim(one, _assignment(one), time.time())
        try:
            await api.patch_json(kube.PODS, one.name, operations, namespace=one.namespace)
        except kube.KubeError as error:
            tally.fail(error)
            continue
        tally.seconds.append(trio.current_time() - began)
        tally.ids.append(one.uid)


async def _delete(api: kube.Kube, one: Instance) -> None:
    deletion = kube.Deletion(uid=one.uid)
    await api.delete(kube.PODS, one.name, deletion, namespace=one.namespace)


def _assignment(one: Instance) -> Assignment:
    """Of a sandbox that nobody asked for."""
    return Assignment(
        claim_id=f"floor-{one.uid}",
        previous_boot_id=None,
        tier=Tier.WARM,
        tenant=RUN,
        image=one.image,
        expires_at=time.time() + 600.0,
        max_s=600.0,
        request={"pool": one.pool},
    )
