"""A request with all that the gateway adds to it. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, NamedTuple

from gateway import sizing
from gateway.fairness import Ticket
from gateway.model import DEFAULT_SHARE, NO_AMOUNTS, Purpose, Share
from gateway.quota import ONE
from sandman import names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import SandboxRequest
    from gateway.quota import Amount
    from sandman import errors


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A request with all that the gateway adds to it. `arrived` on the monotonic clock, seconds."""

    request: SandboxRequest
    image: str
    tenant: str
    key: str | None
    record: Mapping[str, object]
    arrived: float
    share: Share = DEFAULT_SHARE
    gang: str = ""
    """Those of one name are had all together, or not at all."""
    cost: Amount = ONE
    """What it counts against its tenant's limits."""
    prepared: str = ""
    """What it is to be prepared for: see `steps.prepared_hash`."""
    reservation: str | None = None
    """It is for this reservation, and not for a caller."""
    network: str = names.NETWORK_NONE
    """Egress profile."""
    waits_for_network: bool = False
    """Whether it is handed over only when that is in force."""

    @property
    def deadline(self) -> float:
        """When the caller stops waiting, on the monotonic clock."""
        return self.arrived + self.request.wait_s

    def ticket(self, number: int) -> Ticket:
        """Its place in the queue."""
        request = self.request
        return Ticket(
            number,
            request.pool,
            self.image,
            tenant=self.tenant,
            run=request.run or "",
            purpose=request.purpose,
            weight=self.share.weight,
            gang=self.gang,
            # A reservation does not live on what it, or another, has prepared.
            prepared=self.prepared if self.reservation is None else "",
            avoid=frozenset(request.avoid_nodes),
        )


class Waiting(NamedTuple):
    """A request that waits for an order, `waited_s` seconds so far."""

    tenant: str
    waited_s: float
    pool: str
    image: str
    run: str


@dataclasses.dataclass(frozen=True, slots=True)
class Queued:
    """A request that is not done: where it stands. `retry_after` in seconds."""

    id: str
    is_waiting: bool
    """In the queue; else its sandbox is starting."""
    place: int | None
    """First is 1; None when it is starting, or too far back to be counted."""
    retry_after: float
    trouble: errors.SandmanError | None = None
    """Why its last try failed, when it is tried again."""


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
        **_agreed(request),
    }
    if request.prepare:
        kept["prepare_sha256"] = request.prepare.digest
    if request.resources != NO_AMOUNTS:
        kept["resources"] = sizing.texts(request.resources)
    if request.node_class is not None:
        kept["node_class"] = request.node_class
    if request.size > 1:
        kept |= {"count": request.size, "gang": request.gang}
    whole = json.dumps([kept, request.run, sorted(request.env)], sort_keys=True)
    kept["fingerprint"] = hashlib.sha256(whole.encode()).hexdigest()
    return kept


def _agreed(request: SandboxRequest) -> dict[str, object]:
    """What else a caller may not change under the same key. What is not asked for is left out: requests from
    before there was such a thing have the same fingerprint."""
    terms, owner = request.terms, request.owner
    asked: dict[str, object] = {
        "ttl_s": terms.ttl_s,
        "idle_s": terms.idle_s,
        "of_run": terms.of_run or None,
    }
    asked["owner"] = None if owner is None else owner.name
    asked |= {"network": request.network, "network_wait": request.network_wait}
    asked["avoid_nodes"] = list(request.avoid_nodes) or None
    if request.purpose is not Purpose.EVAL:
        asked["network_wait"] = request.network_wait or None
    return {name: value for name, value in asked.items() if value is not None}
