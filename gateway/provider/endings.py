"""Why a pod ended, in the words of `sandman.errors`. Pure.

What Kubernetes says is scattered over phase, reason, conditions, the container's state and events;
this is the one place that knows where.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gateway.model import Ending
from gateway.references import canonical
from sandman import names
from sandman.errors import INFRASTRUCTURE, SANDBOX
from sandman.problems import by_reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sandman.service.kube.objects import Event, Pod, StateTerminated

MAX_TIME = 1e11
"""Seconds since the epoch (the year 5138): a later one is not a time."""

_POD_REASONS = {
    "Evicted": ("evicted", "the node put the pod out"),
    "DeadlineExceeded": ("expired", "its longest life was over"),
    "Preempting": ("preempted", "a pod of higher priority took its place"),
    "Preempted": ("preempted", "a pod of higher priority took its place"),
    "NodeLost": ("node_lost", "the node went away"),
    "NodeShutdown": ("node_lost", "the node was shut down"),
    "Terminated": ("node_lost", "the node was shut down"),
    "NodeAffinity": ("node_lost", "the node no longer takes this pod"),
}
_DISRUPTIONS = {
    "PreemptionByScheduler": ("preempted", "a pod of higher priority took its place"),
    "DeletionByTaintManager": ("node_lost", "the node was tainted or lost"),
    "DeletionByPodGC": ("node_lost", "the node does not exist any more"),
    "EvictionByEvictionAPI": ("evicted", "somebody drained the node"),
    "TerminationByKubelet": ("evicted", "the node was short of something or shut down"),
}


_OWN_DISK = re.compile(
    r"exceeded its local ephemeral storage limit|ephemeral local storage usage exceeds the total limit"
    r"|EmptyDir volume .* exceeds the limit"
)
"""What a kubelet says of a pod that wrote more than its own limits allow."""


def of_record(record: Mapping[str, object]) -> Ending | None:
    """What a gateway wrote on the pod before it deleted it; None when it wrote nothing."""
    reason, at = record.get("reason"), record.get("at")
    if not isinstance(reason, str) or reason not in by_reason():
        return None
    is_time = isinstance(at, (int, float)) and not isinstance(at, bool) and 0 <= at < MAX_TIME
    return Ending(reason, str(record.get("detail") or reason), at=float(at) if is_time else None)  # type: ignore[arg-type]


def of_pod(pod: Pod, expires_at: float | None = None) -> Ending | None:
    """Why the pod has ended; None while it has not. `expires_at`: see `of_deletion`."""
    if pod.status.phase not in {"Failed", "Succeeded"}:
        return None
    last = _last_state(pod)
    if _was_stopped(pod, last):
        return of_deletion(pod, expires_at)
    at = last.finished_at.timestamp() if last is not None and last.finished_at else None
    known = _POD_REASONS.get(pod.status.reason) or _disruption(pod)
    if known is not None:
        reason, text = known
        detail = f"{text}: {pod.status.message}" if pod.status.message else text
        return Ending(reason, detail, cause=_whose(reason, pod.status.message), at=at)
    if last is not None and last.reason == "OOMKilled":
        return Ending("oom", "the sandbox was killed for want of memory", at=at)
    if last is not None and last.exit_code == names.EXIT_EXPIRED:
        return _ended_itself(at, expires_at)
    return _died(last, at)


def of_deletion(pod: Pod, expires_at: float | None = None) -> Ending:
    """Why a pod that somebody deleted is no more. `expires_at`: when its lease ran out, in seconds since
    the epoch: after that it was the allocator, which may be another replica."""
    known = _disruption(pod)
    if known is not None:
        return Ending(*known)
    deleted = pod.metadata.deletion_timestamp
    if expires_at is not None and deleted is not None and deleted.timestamp() >= expires_at:
        return Ending("expired", "its lease ran out", at=expires_at)
    return Ending("deleted", "somebody deleted its pod")


def of_doomed(pod: Pod) -> Ending | None:
    """Why a pod that still runs is about to go, where Kubernetes says so when it deletes it: a preemption, a
    drained or a lost node. On the latter nobody is left to say that it is gone."""
    known = _disruption(pod) if pod.metadata.deletion_timestamp is not None else None
    return None if known is None else Ending(*known)


def _whose(reason: str, message: str) -> str | None:
    """A sandbox that filled its own disk has itself to blame, a node that is short of it does not."""
    return SANDBOX if reason == "evicted" and _OWN_DISK.search(message) else None


def _was_stopped(pod: Pod, last: StateTerminated | None) -> bool:
    """Whether its first process ended because the pod was deleted: by itself on TERM, as the daemon
    does for nobody but the kubelet, or by KILL when the grace was over."""
    deleted = pod.metadata.deletion_timestamp
    if deleted is None or last is None:
        return False
    return last.exit_code == 0 or (last.finished_at is not None and last.finished_at >= deleted)


def _died(last: StateTerminated | None, at: float | None) -> Ending:
    if last is None:
        # A pod that fails without a container never ran: the node refused it.
        return Ending("died", "the pod failed before it ran", cause=INFRASTRUCTURE, at=at)
    facts = {"exit_code": last.exit_code, "kubelet_reason": last.reason}
    detail = f"its first process ended with exit code {last.exit_code}"
    return Ending("died", detail, at=at, facts=facts)


def is_unexplained(ending: Ending | None) -> bool:
    """Whether the pod itself may not tell the whole: its daemon ended on TERM, which the kubelet alone can
    send. An evicted pod whose first process ended with 0 has, by the turn of events, no reason (1.36)."""
    return ending is not None and ending.reason == "died" and ending.facts.get("exit_code") == 0


def of_eviction(events: Iterable[Event], ending: Ending) -> Ending:
    """The ending of a pod that was put out, by its events; the same ending when it was not."""
    for event in events:
        if event.reason == "Evicted":
            reason, text = _POD_REASONS[event.reason]
            cause = _whose(reason, event.message)
            return Ending(reason, f"{text}: {event.message}", cause=cause, at=ending.at)
    return ending


def _ended_itself(at: float | None, expires_at: float | None) -> Ending:
    """Its daemon was not reached for as long as its lease allows: because the lease ran out, or before,
    because no gateway was there to renew it."""
    if expires_at is not None and at is not None and at < expires_at:
        text = "no gateway reached it for longer than its lease and an outage may last"
        return Ending("expired", text, cause=INFRASTRUCTURE, at=at)
    return Ending("expired", "its lease ran out", at=at if expires_at is None else expires_at)


def _disruption(pod: Pod) -> tuple[str, str] | None:
    for condition in pod.status.conditions or ():
        if condition.type == "DisruptionTarget" and condition.status == "True":
            return _DISRUPTIONS.get(condition.reason)
    return None


def _last_state(pod: Pod) -> StateTerminated | None:
    name = pod.spec.containers[0].name if pod.spec.containers else ""
    for status in pod.status.container_statuses or ():
        if status.name == name and status.state is not None:
            return status.state.terminated
    return None


# --- images --------------------------------------------------------------------------------------

_KINDS = (
    ("platform", r"no match for platform"),
    ("invalid", r"InvalidImageName|invalid reference|couldn't parse image|no longer supported since"
     r"|not a valid digest|rejecting \d+ byte manifest"),
    ("never", r"not present with pull policy of Never"),
    ("throttled", r"429 Too Many|too ?many ?requests|pull QPS exceeded|rate limit"),
    ("disk", r"no space left on device|disk quota exceeded"),
    ("timeout", r"i/o timeout|handshake timeout|deadline exceeded|DeadlineExceeded|context canceled"
     r"|timed out|request timeout|awaiting headers"),
    ("tls", r"x509:|tls:|certificate|HTTP response to HTTPS client"),
    ("host", r"no such host"),
    ("network", r"connection refused|connection reset|no route to host|network is unreachable"
     r"|server misbehaving|broken pipe|unexpected EOF|\bEOF\b|RegistryUnavailable"
     r"|registry is unavailable"),
    ("server", r"\b5\d\d [A-Z]"),
    ("missing", r"not found|manifest[ _]unknown|name[ _]unknown|no such image"),
    ("denied", r"unauthori[sz]ed|denied|forbidden|authori[sz]ation failed|authentication required"
     r"|insufficient_scope|no basic auth credentials|signature validation failed"),
)  # fmt: skip
"""What kubelet 1.36 and containerd 2.2 say, told apart in this order: a registry's 429 speaks of who is not
logged in, one that hides what is private says that it is denied and not there in one text."""
_PULLS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _KINDS)
_REASON_OF = {
    "platform": ("image_not_found", "there is none for the platform of its node"),
    "invalid": ("image_not_found", "it is none"),
    "never": ("image_not_found", "the node has none, and its pool forbids to pull"),
    "host": ("image_not_found", "there is no such registry"),
    "missing": ("image_not_found", "there is none"),
    "denied": ("image_denied", "the registry refuses it"),
    "throttled": ("image_pull", "the registry has had too many pulls"),
    "disk": ("image_pull", "the node's disk is full"),
    "timeout": ("image_pull", "the registry did not answer in time"),
    "tls": ("image_pull", "the node and the registry do not trust each other"),
}
_PULL_EVENTS = {"Failed", "ErrImageNeverPull", "InspectFailed", "BackOff", "FailedMount"}
_NAMED = re.compile(r'[Ii]mage (?:tag )?"([^"]+)"')
_NAMES = re.compile(r'"[^"]*"|https?://\S+')
"""Names and addresses in a text: they are the caller's, and may spell anything."""


def pull_kind(text: str, image: str = "") -> str:
    """Which of the ways to fail a text of kubelet or runtime is about; `other` when none is known."""
    bare = _NAMES.sub(" ", text)
    for name in {image, canonical(image)} if image else ():
        bare = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", " ", bare)
    return next((kind for kind, pattern in _PULLS if pattern.search(bare)), "other")


def of_image(image: str, messages: Iterable[str]) -> Ending | None:
    """What went wrong with an image, from what kubelet and runtime said; None when they said nothing
    of an image. Texts about another image of the pod (the daemon's, the one before a swap) are not held
    against this one: with nothing else to go by it is `image_pull`."""
    texts = [text for text in messages if "image" in text.lower() or "pull" in text.lower()]
    own = [text for text in texts if _is_about(image, text)]
    if not texts:
        return None
    if not own:
        told = max(texts, key=len)
        detail = f"image {image}: another one of its pod could not be pulled: {told}"
        return Ending("image_pull", detail, facts={"pull": "pod"})
    found = {text: pull_kind(text, image) for text in own}
    kind = next((one for one, _ in _KINDS if one in found.values()), "other")
    told = max((text for text in own if found[text] == kind), key=len)
    reason, what = _REASON_OF.get(kind, ("image_pull", "it could not be pulled"))
    return Ending(reason, f"image {image}: {what}: {told}", facts={"pull": kind})


def _is_about(image: str, text: str) -> bool:
    """Whether a text names this image, or none."""
    named = {canonical(one.lower()) for one in _NAMED.findall(text)}
    return not named or canonical(image.lower()) in named


def image_messages(events: Iterable[Event]) -> list[str]:
    """The texts of a pod's events that may be about its image."""
    return [event.message for event in events if event.reason in _PULL_EVENTS and event.message]
