"""What is known of images: which node holds which, which is tried for the first time, which has failed.

    never seen ──▶ one canary ──┬─ runs ─────────────▶ known: everybody may
                                └─ fails for good ───▶ told to all who wait, and kept for a while

An image that no node is known to hold is tried by one request alone, its *canary*: others of the same
pool and image wait for what becomes of it, so that a burst for a misspelt name burns one placeholder. A
failure that another node may not have (throttled, timeout, disk full) is tried elsewhere. Pure: the
clock's time comes in. Pools are told apart, for one may have credentials that another has not.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from gateway.references import canonical
from sandman import errors, problems

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gateway.fairness import Ticket

RAN_MAX = 500
"""Images remembered for each node beside those that it reports: the kubelet tells of 50 at most, a disk of
a node holds some hundreds."""
FAILURES_MAX = 10_000
"""Failures remembered; the oldest are forgotten first. A kilobyte each."""
PERMANENT_S = 60.0
"""Seconds for which an image that is not there, or denied, is not asked for again: longer than a burst and
its repetitions, shorter than a person needs who pushes what was missing and asks what is wrong."""
TROUBLE_S = 10.0
"""Seconds for which an image is not asked for again whose canary failed on every try: a registry that
throttles is not helped by a queue of others who try at once, and callers are told to come back then."""
TRIES = 3
"""Placeholders tried for one request whose image could not be pulled for a passing reason."""
PAUSES_S = (1.0, 4.0)
"""Pauses before the second and the third try: a throttled registry counts by the second."""
CERTAIN = frozenset({"missing", "denied", "invalid"})
"""Ways to fail (`provider.endings`) which no other node would fail to repeat."""
OF_THE_IMAGE = frozenset(
    {"image_not_found", "image_denied", "image_pull", "died", "oom", "unreachable", "bad_request"}
)
"""Reasons that tell something of the image, when a vetted placeholder ends with them after its swap."""


class Key(NamedTuple):
    """A pool and an image, the latter in its full form; with a tenant, what is that tenant's alone."""

    pool: str
    image: str
    tenant: str = ""

    def concerns(self, ticket: Ticket) -> bool:
        """Whether this is the request's pool and image, and not another tenant's."""
        return key_of(ticket) == (*self[:2], "") and self.tenant in ("", ticket.tenant)


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """Why an image is not asked for, until when (on the caller's clock, seconds)."""

    key: Key
    reason: str
    detail: str
    facts: Mapping[str, object]
    until: float

    def error(self, now: float) -> errors.SandmanError:
        """What a caller hears: nothing in it is of the sandbox that found out."""
        kind = problems.by_reason()[self.reason]
        left = max(0.0, round(self.until - now, 3))
        # Whom a retry cannot help is not told when to come back.
        again = left if kind.retryable else None
        facts = {**self.facts, "asked_again_in_s": left}
        return kind(self.detail, facts=facts, retry_after=again)


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What follows from a failure of one request's placeholder."""

    pause_s: float | None = None
    """Try once more after so long; None: the failure is final for this request."""
    failure: Failure | None = None
    """All who wait for the same are to hear this."""


@dataclasses.dataclass(slots=True)
class _Tries:
    """What one request went through."""

    count: int = 0
    nodes: set[str] = dataclasses.field(default_factory=set)


FINAL = Verdict()


class Images:
    """All that is known of images."""

    def __init__(self) -> None:
        self._reported: dict[str, frozenset[str]] = {}
        self._ran: dict[str, OrderedDict[str, str | None]] = defaultdict(OrderedDict)
        # image → nodes that hold it, or are thought to.
        self._holders: dict[str, set[str]] = defaultdict(set)
        self._begun: dict[Key, str] = {}
        self._canaries: dict[Key, Ticket] = {}
        self._canary_of: dict[int, Key] = {}
        # Canaries that are new pods: they may wait for a node for long.
        self._unplaced: set[Key] = set()
        self._tries: dict[int, _Tries] = {}
        self._failures: OrderedDict[Key, Failure] = OrderedDict()

    def __repr__(self) -> str:
        return (
            f"<Images known={len(self._holders)} canaries={len(self._canaries)} "
            f"failed={len(self._failures)}>"
        )

    # --- what is where ---

    def report(self, node: str, images: Collection[str]) -> None:
        """What a node says that it holds."""
        new = frozenset(canonical(image) for image in images)
        old = self._reported.get(node, frozenset())
        self._reported[node] = new
        for image in new - old:
            self._holders[image].add(node)
        for image in old - new:
            self._let_go(node, image)

    def gone(self, node: str) -> None:
        """A node is no more."""
        held = {*self._reported.pop(node, ()), *self._ran.pop(node, ())}
        for image in held:
            self._let_go(node, image)

    def ran(self, node: str, image: str, digest: str | None = None) -> None:
        """A container of this image was seen running there; `digest` as the kubelet resolved it."""
        full, here = canonical(image), self._ran[node]
        here[full] = digest or here.get(full)
        here.move_to_end(full)
        self._holders[full].add(node)
        if len(here) > RAN_MAX:
            oldest, _ = here.popitem(last=False)
            self._let_go(node, oldest)

    def holders(self, image: str) -> Collection[str]:
        """Nodes that hold the image."""
        return self._holders.get(canonical(image), ())

    def digest(self, node: str, image: str) -> str | None:
        """What the image was resolved to on this node when it last ran there."""
        return self._ran[node].get(canonical(image)) if node in self._ran else None

    def _let_go(self, node: str, image: str) -> None:
        if image in self._reported.get(node, ()) or image in self._ran.get(node, ()):
            return
        self._holders[image].discard(node)
        if not self._holders[image]:
            del self._holders[image]

    # --- canaries ---

    def is_held(self, ticket: Ticket) -> bool:
        """Whether it waits for what becomes of another one's canary."""
        return self._canaries.get(key_of(ticket), ticket).number != ticket.number

    def may_overtake(self, ticket: Ticket) -> bool:
        """Whether a placeholder makes it the canary in another one's place: that is a new pod, which may not
        find a node for long, while placeholders become free."""
        return key_of(ticket) in self._unplaced

    def canaries(self, pool: str) -> list[Ticket]:
        """Those of this pool just now."""
        return [ticket for key, ticket in self._canaries.items() if key.pool == pool]

    def begin(self, ticket: Ticket, node: str) -> None:
        """The request gets a placeholder, or a new pod. It is the canary of an image never seen."""
        key = key_of(ticket)
        canary = self._canaries.get(key)
        if canary is None and key.image in self._holders and key not in self._failures:
            return
        if canary is not None and canary.number != ticket.number:
            if not node or key not in self._unplaced:
                return
            del self._canary_of[canary.number]
        self._canaries[key] = ticket
        self._canary_of[ticket.number] = key
        if node:
            self._begun[key] = node
            self._unplaced.discard(key)
        else:
            self._unplaced.add(key)

    def leave(self, ticket: Ticket) -> None:
        """The request is over, in whatever way; its canary, if it had one, is nobody's."""
        self._tries.pop(ticket.number, None)
        key = self._canary_of.pop(ticket.number, None)
        if key is not None:
            del self._canaries[key]
            self._unplaced.discard(key)
            if key.image in self._holders:
                self._begun.pop(key, None)
        if len(self._begun) > FAILURES_MAX:
            del self._begun[next(iter(self._begun))]

    def avoided(self, ticket: Ticket) -> Collection[str]:
        """Nodes on which it failed already."""
        tries = self._tries.get(ticket.number)
        return tries.nodes if tries is not None else ()

    def likely(self, ticket: Ticket) -> Collection[str]:
        """Nodes where its image is, or else is just being pulled for somebody who gave up waiting."""
        found = self.holders(ticket.image)
        begun = self._begun.get(key_of(ticket)) if not found else None
        return found or ((begun,) if begun else ())

    # --- verdicts ---

    def failure(self, pool: str, image: str, tenant: str, now: float) -> Failure | None:
        """Why this image is not asked for just now."""
        for key in (Key(pool, canonical(image)), Key(pool, canonical(image), tenant)):
            found = self._failures.get(key)
            if found is not None and now < found.until:
                return found
        return None

    def succeeded(self, ticket: Ticket, node: str) -> None:
        """Its sandbox runs: the image is known, and what was held may go on."""
        key = key_of(ticket)
        self._failures.pop(key, None)
        self._failures.pop(key._replace(tenant=ticket.tenant), None)
        self.ran(node, ticket.image)
        canary = self._canaries.pop(key, None)
        if canary is not None:
            del self._canary_of[canary.number]
        self._unplaced.discard(key)
        self._begun.pop(key, None)

    def failed(
        self, ticket: Ticket, node: str, error: errors.SandmanError, now: float, *, left_s: float
    ) -> Verdict:
        """What follows from the failure of its placeholder.

        Args:
            node: where it was; empty when it got to no node.
            error: what the request would end with.
            now: seconds.
            left_s: seconds for which the request will wait yet.
        """
        if error.reason not in OF_THE_IMAGE or _is_of_the_request(error):
            return FINAL
        is_certain = error.facts.get("pull") in CERTAIN or isinstance(error, errors.BadRequestError)
        tries = self._tries.setdefault(ticket.number, _Tries())
        tries.count += 1
        if node:
            tries.nodes.add(node)
        if "pull" in error.facts and not is_certain and tries.count < TRIES:
            pause = PAUSES_S[tries.count - 1]
            if pause < left_s:
                return Verdict(pause_s=pause)
        key = key_of(ticket)
        if not is_certain and self._canary_of.get(ticket.number) != key:
            return FINAL
        return Verdict(failure=self._remember(key, ticket.tenant, error, now))

    def _remember(self, key: Key, tenant: str, error: errors.SandmanError, now: float) -> Failure:
        seconds, detail = PERMANENT_S, error.detail
        if error.retryable:
            seconds = TROUBLE_S
        if not ("pull" in error.facts or isinstance(error, errors.BadRequestError)):
            # It was there and did not start: a fault of the moment, as far as is known. Or of what was asked
            # for with it (too little memory): no tenant may spoil an image for another so.
            seconds, key = TROUBLE_S, key._replace(tenant=tenant)
            detail = f"image {key.image}: the first sandbox tried with it failed: {detail}"
        made = Failure(key, error.reason, detail, error.facts, now + seconds)
        self._failures.pop(key, None)
        self._failures[key] = made
        while len(self._failures) > FAILURES_MAX:
            self._failures.popitem(last=False)
        return made


def _is_of_the_request(error: errors.SandmanError) -> bool:
    """Whether the API server refuses something else than the image."""
    return isinstance(error, errors.BadRequestError) and error.field != "image"


def key_of(ticket: Ticket) -> Key:
    """What the request has in common with others that hang on the same canary."""
    return Key(ticket.pool, canonical(ticket.image))
