"""How a sandbox of local mode changes, as a value. Pure."""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING

from gateway.model import Ending, Instance
from sandman import names
from sandman.errors import INFRASTRUCTURE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import Assignment, Bounds, PoolSpec

EXIT_CANNOT = 70
"""Of a keeper that could not build the sandbox (`daemon.local.confine`)."""
HELD = 0
"""Place of the gate that `refill` takes off."""


def placeholder(spec: PoolSpec, made: Made, now: float, *, is_held: bool) -> Instance:
    """A new placeholder of a pool. `now`: seconds since the epoch."""
    return Instance(
        namespace=spec.namespace,
        name=made.name,
        uid=made.uid,
        version="1",
        pool=spec.name,
        state=names.STATE_FREE,
        image=spec.image,
        node=made.node,
        nonce=made.nonce,
        key_id=made.key_id,
        network=spec.network,
        bounds=spec.bounds,
        created_at=now,
        hold=HELD if is_held else None,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """What the provider gives each that it makes."""

    name: str
    uid: str
    nonce: str
    key_id: str
    node: str


def taken(instance: Instance, assignment: Assignment, now: float) -> Instance:
    """The instance as a claim leaves it; its process is another where `is_swap` says so."""
    return dataclasses.replace(
        instance,
        version=bumped(instance),
        state=assignment.state,
        tenant=assignment.tenant,
        run=assignment.run,
        key=assignment.key,
        tier=instance.tier if assignment.reservation else assignment.tier.value,
        image=assignment.image if instance.state == names.STATE_FREE else instance.image,
        claim_id=assignment.claim_id,
        previous_boot_id=assignment.previous_boot_id,
        swapped=assignment.swapped,
        network=assignment.network,
        reservation=assignment.reservation or instance.reservation,
        request=assignment.request,
        expires_at=None if assignment.reservation else now + assignment.max_s,
        terms=assignment.terms,
        hold=None,
        # Of the process before the swap nothing is true any more.
        image_digest=None if is_swap(instance, assignment) else instance.image_digest,
    )


def is_swap(instance: Instance, assignment: Assignment) -> bool:
    """Whether a claim needs another process: another image, or another way to the network."""
    if instance.state != names.STATE_FREE:
        return False
    return instance.image != assignment.image or instance.network != assignment.network


def bumped(instance: Instance) -> str:
    """The next version."""
    return str(int(instance.version) + 1)


def apart(instance: Instance, told: Mapping[str, str]) -> Instance:
    """It will be kept apart so."""
    return dataclasses.replace(instance, version=bumped(instance), isolation=told)


def resized(instance: Instance, bounds: Bounds, told: Mapping[str, str]) -> Instance:
    """It has these limits now."""
    return dataclasses.replace(
        instance, version=bumped(instance), bounds=bounds, actual=bounds, isolation=told
    )


def running(instance: Instance, address: str, digest: str, now: float) -> Instance:
    """Its process runs."""
    return dataclasses.replace(
        instance,
        version=bumped(instance),
        running=True,
        address=address,
        image_digest=digest,
        actual=instance.bounds,
        started_at=now,
    )


def ended(instance: Instance, ending: Ending) -> Instance:
    """It has ended, unless it is told already why."""
    return dataclasses.replace(
        instance, version=bumped(instance), running=False, ending=instance.ending or ending
    )


def why(code: int, said: str, now: float, *, oom: bool = False) -> Ending:
    """Why a sandbox ended whose keeper has ended with this code, and said this last.

    Args:
        code: the keeper's exit code: its process 1's, 128 + n for signal n; below 0: a signal ended the keeper.
        said: its last line.
        now: seconds since the epoch.
        oom: whether its cgroup was short of memory.
    """
    facts = {"exit_code": code}
    if code == names.EXIT_EXPIRED:
        return Ending("expired", "its lease ran out", at=now)
    if code == EXIT_CANNOT:
        text = f"it could not be built: {said}"
        return Ending("died", text, cause=INFRASTRUCTURE, at=now, facts=facts)
    if oom and code == 128 + signal.SIGKILL:
        return Ending("oom", "the sandbox was killed for want of memory", at=now)
    if code < 0:
        text = f"signal {-code} ended what keeps it"
        return Ending("died", text, cause=INFRASTRUCTURE, at=now, facts=facts)
    return Ending("died", f"its first process ended with exit code {code}", at=now, facts=facts)
