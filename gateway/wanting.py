"""A request and all that the gateway adds to it, before it waits for its turn. Pure but for the clock."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING

import trio

from gateway import sizing
from gateway.fulfilment import Want
from gateway.model import NO_AMOUNTS
from gateway.steps import prepared_hash

if TYPE_CHECKING:
    from gateway.model import PoolSpec, SandboxRequest, Share


def make(
    spec: PoolSpec,
    tenant: str,
    request: SandboxRequest,
    image: str,
    share: Share,
    *,
    key: str | None = None,
    reservation: str | None = None,
) -> Want:
    """What is wanted of this pool; a request without steps gets the pool's own.

    Args:
        spec: the pool.
        tenant: for whom.
        request: what was asked for.
        image: the name by which its image is pulled.
        share: what the tenant may have.
        key: the caller's idempotency key.
        reservation: the reservation that it is for, None for a caller.
    """
    kept = record(request)
    request = dataclasses.replace(request, pool=spec.name, prepare=request.prepare or spec.prepare)
    return Want(
        request=request,
        image=image,
        tenant=tenant,
        key=None if key is None else key_label(tenant, key),
        record=kept,
        arrived=trio.current_time(),
        share=share,
        prepared=prepared_hash(tenant, image, request.prepare),
        reservation=reservation,
    )


def key_label(tenant: str, key: str) -> str:
    """The label's value for a tenant's idempotency key: nobody can read or guess the key from it."""
    return hashlib.sha256(f"{tenant}\0{key}".encode()).hexdigest()[:40]


def record(request: SandboxRequest) -> dict[str, object]:
    """What is kept of a request on its pod. The environment is not: it may hold secrets; of it
    only the fingerprint of the whole request tells."""
    kept: dict[str, object] = {
        "image": request.image,
        "pool": request.pool,
        "workdir": request.workdir,
        "user": request.user,
        "labels": dict(request.labels),
        "max_s": request.max_s,
        "purpose": request.purpose.value,
    }
    if request.prepare:
        kept["prepare_sha256"] = request.prepare.digest
    if request.resources != NO_AMOUNTS:
        kept["resources"] = sizing.texts(request.resources)
    if request.node_class is not None:
        kept["node_class"] = request.node_class
    whole = json.dumps([kept, request.run, sorted(request.env)], sort_keys=True)
    kept["fingerprint"] = hashlib.sha256(whole.encode()).hexdigest()
    return kept
