"""What one candidate of an election knows, and what it does next. Pure.

`now` is always the candidate's own monotonic clock: a holder lives while its Lease keeps changing, and
no time that stands in a Lease is ever compared. In seconds, from the moment a renewal is *sent*:

    0       2        4                       6 and later, counted from when others saw it
    sent    renewed  not renewed: stands     another may take it
                     down by itself

So a holder that cannot reach the API server has stopped before anybody else begins, unless one clock
runs half as fast again as the other.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sandman.service.kube import objects

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True)
class Timing:
    """The seconds of an election.

    Args:
        lease_s: a Lease that did not change for so long may be taken. What a crash costs.
        fence_s: a holder stands down so long after it sent its last renewal that was granted.
        renew_s: between renewals. Two may fail before the fence.
        poll_s: between looks at the Lease of another: how soon a release is seen.
        call_s: for one call. A later answer could not make anybody leader: the fence has passed.
        release_s: for the release at a clean stop.
    """

    lease_s: int = 6
    fence_s: float = 4.0
    renew_s: float = 2.0
    poll_s: float = 0.5
    call_s: float = 4.0
    release_s: float = 2.0

    def __post_init__(self) -> None:
        if not self.renew_s < self.fence_s < self.lease_s:
            raise ValueError(f"renew_s < fence_s < lease_s does not hold: {self}")


@dataclass(frozen=True)
class Leader:
    """The holder of the Lease.

    Args:
        identity: as in the Lease.
        address: `host:port` where it serves.
        is_me: whether it is this process.
    """

    identity: str
    address: str
    is_me: bool


class Action(enum.Enum):
    """What a candidate does next."""

    CREATE = enum.auto()
    TAKE = enum.auto()
    RENEW = enum.auto()
    WAIT = enum.auto()


def make_identity(name: str, address: str, nonce: str) -> str:
    """The identity of one start of one replica. The nonce: a pod's name comes again after a restart."""
    return f"{name}_{nonce}@{address}"


def address_of(identity: str) -> str:
    """The address in an identity, "" where there is none."""
    return identity.rpartition("@")[2] if "@" in identity else ""


def decide(
    now: float, lease: objects.Lease | None, observed_at: float, me: str, lease_s: float
) -> Action:
    """What to do about a Lease.

    Args:
        now: the candidate's monotonic clock.
        lease: as last seen; None where there is none.
        observed_at: when, by that clock, it was first seen in this version.
        me: the candidate's identity.
        lease_s: seconds for which a Lease holds that does not say so itself.
    """
    if lease is None:
        return Action.CREATE
    holder = lease.spec.holder_identity
    if not holder:
        return Action.TAKE
    if holder == me:
        return Action.RENEW
    return Action.TAKE if now >= observed_at + _duration(lease, lease_s) else Action.WAIT


def _duration(lease: objects.Lease, lease_s: float) -> float:
    """The longer one, should the replicas of two releases differ."""
    return max(lease_s, lease.spec.lease_duration_seconds or 0)


class Candidacy:
    """What one candidate knows and is. Pure; `now` is always its own monotonic clock."""

    def __init__(self, me: str, timing: Timing) -> None:
        self.me = me
        self._timing = timing
        self._lease: objects.Lease | None = None
        self._observed_at = float("-inf")
        self.leads_until = float("-inf")
        """When it stops being the leader, unless a renewal is granted before."""
        self.terms = 0
        """How many times it became the leader."""

    def __repr__(self) -> str:
        return f"<Candidacy {self.me} holder={self.holder!r} leads_until={self.leads_until:.1f}>"

    @property
    def holder(self) -> str:
        """The Lease's holder as last seen; "" for none."""
        return (self._lease and self._lease.spec.holder_identity) or ""

    def observe(self, now: float, lease: objects.Lease | None) -> None:
        """The Lease was read. A version that is new is a sign of life from now on."""
        if lease is None and self.holder not in {"", self.me} and not self._is_over(now):
            # Somebody deleted it. Its holder does not know yet, and may go on until its fence.
            return
        if lease is None or not self._same_version(lease):
            self._observed_at = now
        self._lease = lease
        if self.holder not in {"", self.me}:
            self.stand_down()

    def action(self, now: float) -> Action:
        """What to do now."""
        return decide(now, self._lease, self._observed_at, self.me, self._timing.lease_s)

    def granted(self, sent_at: float, now: float, lease: objects.Lease) -> None:
        """A write that makes this candidate the holder was granted; it was sent at `sent_at`."""
        self.terms += not self.is_leader(now)
        self.observe(now, lease)
        self.leads_until = sent_at + self._timing.fence_s

    def stand_down(self) -> None:
        """Not the leader any more, by its own decision."""
        self.leads_until = float("-inf")

    def is_leader(self, now: float) -> bool:
        """Whether it is the leader at this moment."""
        return now < self.leads_until

    def leader(self, now: float) -> Leader | None:
        """The leader, as far as this candidate can know."""
        if self.is_leader(now):
            return Leader(self.me, address_of(self.me), is_me=True)
        holder = self.holder
        if holder in {"", self.me} or self._is_over(now):
            return None
        return Leader(holder, address_of(holder), is_me=False)

    def claim(self, wall: datetime) -> dict[str, Any]:
        """The merge patch, or body, that makes or keeps this candidate the holder."""
        stamp = objects.micro_time(wall)
        spec: dict[str, Any] = {
            "holderIdentity": self.me,
            "leaseDurationSeconds": self._timing.lease_s,
            "renewTime": stamp,
        }
        if self.holder != self.me:
            old = self._lease.spec.lease_transitions if self._lease else None
            spec |= {"acquireTime": stamp, "leaseTransitions": 0 if old is None else old + 1}
        return self._conditional(spec)

    def release(self, wall: datetime) -> dict[str, Any]:
        """The merge patch that leaves the Lease without a holder."""
        return self._conditional({"holderIdentity": None, "renewTime": objects.micro_time(wall)})

    def _conditional(self, spec: dict[str, Any]) -> dict[str, Any]:
        version = self._lease.metadata.resource_version if self._lease else None
        return {"metadata": {"resourceVersion": version} if version else {}, "spec": spec}

    def _is_over(self, now: float) -> bool:
        if self._lease is None:
            return True
        return now >= self._observed_at + _duration(self._lease, self._timing.lease_s)

    def _same_version(self, lease: objects.Lease) -> bool:
        # Not renewTime: it is another's clock, which may stand still or step back.
        known = self._lease.metadata if self._lease else None
        return known is not None and (known.uid, known.resource_version) == (
            lease.metadata.uid,
            lease.metadata.resource_version,
        )
