"""When a sandbox's time is over. Pure.

Three spans, each counted from ready: `max_s`, its longest life; `ttl_s`, for which it lives on without word of
its caller; `idle_s`, for which it lives on without anything to do. All is reckoned on the one monotonic clock
of this replica, from when it *saw* something (a pod become ready, a lease renewed, a heartbeat): so no clock of
another machine ends a sandbox early. Times that others wrote count where this replica only starts, and then
with a minute's allowance.

What this replica cannot know is who called through another one. The daemon knows all of them, so it is asked
before anything ends for want of them:

    verdict KEEP ──time──▶ ASK ──the daemon tells of a call, a command──▶ KEEP
                            └── it tells of none since ──▶ LAPSED, IDLE
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING, NamedTuple

from gateway.model import Ending

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import Instance

SKEW_S = 60.0
"""Seconds by which the clocks of two machines may differ. With a time service they do by milliseconds."""
CALLS_S = 60.0
"""Seconds from the end of its longest life to the deletion of a sandbox: calls in flight may end, new ones
are refused. The kubelet gives as many (`provider.patches.CLOCK_SLACK_S`)."""
RECOVERY_S = 60.0
"""Seconds that callers get to be heard again by a replica that has just become the leader: while it could
not lead, perhaps nobody could be heard. Twice the pause between two heartbeats of our client."""

RUN_KEEP_S = 600.0
"""Seconds after its last heartbeat that a run without sandboxes may come back: its Lease stays so long, and what
was reserved for it."""


class Verdict(enum.Enum):
    """What is to be done about a sandbox."""

    KEEP = enum.auto()
    ASK = enum.auto()
    """Its daemon has the last word."""
    LAPSED = enum.auto()
    """Nobody has renewed its lease."""
    IDLE = enum.auto()
    OVER = enum.auto()
    """Its longest life is over."""


class Activity(NamedTuple):
    """What a daemon knows of its callers, seconds ago; None: it does not tell (an older one)."""

    used_s: float | None
    """Since the last call on the sandbox, status reads apart; 0 while one is open."""
    renewed_s: float | None
    """Since a caller last renewed; None also when nobody did."""
    idle_s: float | None
    """Since it last had something to do: a call, or a command that ran."""


@dataclasses.dataclass(slots=True)
class Entry:
    """What is known of one sandbox; moments on this replica's clock."""

    instance: Instance
    ready_at: float | None = None
    """When it was first seen ready."""
    life_until: float = math.inf
    renewed_at: float = -math.inf
    """The last word of its caller that this replica knows of."""
    written_at: float = -math.inf
    """The last word of its caller that stands on its pod."""
    active_at: float = -math.inf
    """When it last had something to do, as far as this replica knows."""
    asked_at: float = -math.inf
    """When the daemon was last asked and answered."""
    tried_at: float = -math.inf
    """When it was last asked in vain."""


class Ledger:
    """What this replica knows of leases."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._beats: dict[tuple[str, str], float] = {}

    def __repr__(self) -> str:
        return f"<Ledger sandboxes={len(self._entries)} runs={len(self._beats)}>"

    # --- what is seen ---

    def saw(self, instance: Instance, now: float, wall: float) -> None:
        """A sandbox as it is now.

        Args:
            instance: its pod, which is leased.
            now: this replica's monotonic clock.
            wall: seconds since the epoch by this replica's clock.
        """
        entry = self._entries.get(instance.uid)
        if entry is None:
            entry = self._entries[instance.uid] = Entry(instance)
            is_new = True
        else:
            is_new = entry.instance.expires_at != instance.expires_at
            if entry.instance.renewed != instance.renewed:
                entry.written_at = max(entry.written_at, now - age_of(instance.renewed))
                _renew(entry, entry.written_at)
        entry.instance = instance
        becomes_ready = entry.ready_at is None and is_ready(instance)
        if becomes_ready:
            entry.ready_at = entry.active_at = entry.written_at = now
            _renew(entry, now)
        if is_new or becomes_ready:
            entry.life_until = now + _life_left(instance, wall)

    def forget(self, uid: str) -> None:
        """The pod is no more."""
        self._entries.pop(uid, None)

    def used(self, uid: str, now: float) -> None:
        """A call on the sandbox came through this replica, or is still open."""
        if (entry := self._entries.get(uid)) is not None:
            _renew(entry, now)
            entry.active_at = max(entry.active_at, now)

    def renewed(self, uid: str, now: float) -> None:
        """Its caller renewed it here."""
        if (entry := self._entries.get(uid)) is not None:
            _renew(entry, now)

    def beat(self, tenant: str, run: str, now: float) -> None:
        """A heartbeat of a run was seen."""
        self._beats[tenant, run] = now

    def stopped(self, tenant: str, run: str) -> None:
        """The run's Lease is no more."""
        self._beats.pop((tenant, run), None)

    def heard(self, uid: str, asked: float, answered: float, activity: Activity) -> None:
        """What its daemon told.

        Args:
            uid: whose.
            asked: when it was asked: of what came later nothing is known.
            answered: when it had answered: from then on its ages are counted back.
            activity: what it said.
        """
        entry = self._entries.get(uid)
        if entry is None or activity.used_s is None or activity.idle_s is None:
            self.tried(uid, asked)
            return
        word = min(activity.used_s, math.inf if activity.renewed_s is None else activity.renewed_s)
        _renew(entry, answered - word)
        entry.active_at = max(entry.active_at, answered - activity.idle_s)
        entry.asked_at = max(entry.asked_at, asked)

    def tried(self, uid: str, asked: float) -> None:
        """Its daemon was asked and did not answer, or does not tell."""
        if (entry := self._entries.get(uid)) is not None:
            entry.tried_at = max(entry.tried_at, asked)

    # --- what follows from it ---

    def verdict(self, uid: str, now: float, since: float) -> Verdict:
        """What is to be done about a sandbox. `since`: since when this replica leads."""
        entry = self._entries.get(uid)
        if entry is None or entry.ready_at is None:
            return Verdict.KEEP
        if now >= entry.life_until + CALLS_S:
            return Verdict.OVER
        found = self._of_ttl(entry, now, since)
        return self._of_idleness(entry, now) if found is Verdict.KEEP else found

    def _of_ttl(self, entry: Entry, now: float, since: float) -> Verdict:
        ttl_s = entry.instance.terms.ttl_s
        if ttl_s is None:
            return Verdict.KEEP
        lapse = max(self._heard_at(entry) + ttl_s, since + min(ttl_s, RECOVERY_S))
        if now < lapse:
            return Verdict.KEEP
        # A replica writes to the pod what it hears when less than half is left, so that of one that
        # does not answer nothing later than this can be unknown.
        is_known = entry.asked_at >= lapse or entry.tried_at >= lapse + ttl_s / 2
        return Verdict.LAPSED if is_known else Verdict.ASK

    @staticmethod
    def _of_idleness(entry: Entry, now: float) -> Verdict:
        idle_s = entry.instance.terms.idle_s
        if idle_s is None or now < entry.active_at + idle_s:
            return Verdict.KEEP
        return Verdict.IDLE if entry.asked_at >= entry.active_at + idle_s else Verdict.ASK

    def to_write(self, uid: str, now: float) -> float | None:
        """How many seconds old the word of its caller is that must be written on its pod; None when none must.

        That is when less than half is left of what stands there, and more is known. A lease of a run is
        written by the run's heartbeats alone.
        """
        entry = self._entries.get(uid)
        if entry is None or entry.ready_at is None or entry.instance.terms.of_run:
            return None
        ttl_s = entry.instance.terms.ttl_s
        if ttl_s is None or entry.renewed_at <= entry.written_at:
            return None
        is_short = entry.written_at + ttl_s - now < ttl_s / 2
        return now - entry.renewed_at if is_short and now < entry.renewed_at + ttl_s else None

    def is_over(self, uid: str, now: float) -> bool:
        """Whether the longest life of a sandbox is over: new calls are refused."""
        entry = self._entries.get(uid)
        return entry is not None and now >= entry.life_until

    def left(self, uid: str, now: float) -> float:
        """Seconds until it ends, unless it is renewed; infinite where nothing is known of an end."""
        entry = self._entries.get(uid)
        if entry is None:
            return math.inf
        ttl_s = entry.instance.terms.ttl_s
        left = entry.life_until - now
        if ttl_s is not None and entry.ready_at is not None:
            left = min(left, self._heard_at(entry) + ttl_s - now)
        return left

    def heard_at(self, uid: str) -> float | None:
        """The last word of its caller, or of its run, that is known here; None where there is none."""
        entry = self._entries.get(uid)
        at = -math.inf if entry is None else self._heard_at(entry)
        return None if at == -math.inf else at

    def runs(self) -> Mapping[tuple[str, str], float]:
        """Tenant and name of each run that sends heartbeats, and when the last one was seen."""
        return self._beats

    def _heard_at(self, entry: Entry) -> float:
        one = entry.instance
        if not one.terms.of_run or one.tenant is None or one.run is None:
            return entry.renewed_at
        return max(entry.renewed_at, self._beats.get((one.tenant, one.run), -math.inf))


def ending(instance: Instance, verdict: Verdict) -> Ending | None:
    """Why a sandbox ends of which this is the verdict; None: it stays."""
    terms = instance.terms
    match verdict:
        case Verdict.OVER:
            return Ending("expired", "its longest life was over")
        case Verdict.LAPSED:
            return Ending("expired", f"nobody renewed its lease for {terms.ttl_s:g} s")
        case Verdict.IDLE:
            return Ending("idle", f"it had nothing to do for {terms.idle_s:g} s")
        case _:
            return None


def renewal(wall: float, age: float) -> str:
    """What a renewal leaves on the pod: when it was written, for people, and how many seconds ago there was
    word of the caller, rounded so that none is lost."""
    return f"{wall:.3f} {math.floor(max(0.0, age) * 1e3) / 1e3:g}"


def age_of(renewed: str) -> float:
    """The seconds in it; 0 where somebody has written anything else."""
    try:
        age = float(renewed.partition(" ")[2] or 0)
    except ValueError:
        return 0.0
    return age if 0.0 <= age <= LAST_MOMENT else 0.0


def is_ready(instance: Instance) -> bool:
    """Whether its pod shows that it runs, after a swap in the new image."""
    is_swapping = instance.previous_boot_id is not None and instance.image_digest is None
    return instance.running and not is_swapping


def ends_at(lease: Mapping[str, object], started_at: float | None) -> float | None:
    """When the longest life of a sandbox is over, in seconds since the epoch; None: it has none.

    The claim says when it would be, were the sandbox ready at once; until it runs, the time that a start may
    take is added, and then the time that it took.

    Args:
        lease: what the claim wrote.
        started_at: when its container was started, by the node's clock; None while it does not run.
    """
    claimed = number(lease.get("expires_at"))
    if claimed is None:
        return None
    max_s, start_s = number(lease.get("max_s")), number(lease.get("start_s"))
    if max_s is None or start_s is None:
        return claimed
    if started_at is None:
        return claimed + start_s
    return min(max(claimed, started_at + max_s), claimed + start_s)


LAST_MOMENT = 253402300799.0
"""The end of the year 9999: later ones cannot be told as a date."""


def number(value: object) -> float | None:
    """A number of seconds, or of seconds since the epoch, that can be told as a date; None for anything else
    that somebody may have written there."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # Compared before it is converted: an int may be too large for a float.
    return float(value) if 0 <= value <= LAST_MOMENT and math.isfinite(value) else None


def _renew(entry: Entry, at: float) -> None:
    entry.renewed_at = max(entry.renewed_at, at)


def _life_left(instance: Instance, wall: float) -> float:
    """Seconds of its longest life that are left, and up to twice SKEW_S more where its beginning was not
    seen."""
    if instance.expires_at is None:
        return math.inf
    told = instance.expires_at - wall + SKEW_S
    max_s = instance.terms.max_s
    return told if max_s is None or not is_ready(instance) else min(max_s, told)
