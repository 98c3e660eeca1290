"""A request and all that the gateway adds to it, before it waits for its turn. Pure but for the clock."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import trio

from gateway.fulfilment import Want
from gateway.steps import prepared_hash

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import PoolSpec, SandboxRequest, Share


def make(
    spec: PoolSpec,
    tenant: str,
    request: SandboxRequest,
    share: Share,
    record: Mapping[str, object],
    *,
    key: str | None = None,
    reservation: str | None = None,
) -> Want:
    """What is wanted of this pool; a request without image or steps gets the pool's own.

    Args:
        spec: the pool.
        tenant: for whom.
        request: what was asked for.
        share: what the tenant may have.
        record: what is kept of the request on the pod.
        key: the idempotency key's label.
        reservation: the reservation that it is for, None for a caller.
    """
    request = dataclasses.replace(request, pool=spec.name, prepare=request.prepare or spec.prepare)
    image = request.image or spec.image
    return Want(
        request=request,
        image=image,
        tenant=tenant,
        key=key,
        record=record,
        arrived=trio.current_time(),
        share=share,
        prepared=prepared_hash(tenant, image, request.prepare),
        reservation=reservation,
    )
