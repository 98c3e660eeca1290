"""What a tenant may have: sandboxes at once, processor and memory in sum, creations a second. Pure."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from gateway import quantities, sizing
from sandman.errors import QuotaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import Amounts, PoolSpec, Share

RETRY_S = 5.0
"""Seconds after which a caller who has all that it may is told to ask again: nobody knows when a sandbox
will be released."""
EPSILON = 1e-6
"""Tokens by which a caller who comes back at the very moment that it was told may be early, in floats."""
PROMISE_MAX_S = 60.0
"""Longest wait that a caller over its rate is told."""


@dataclasses.dataclass(frozen=True, slots=True)
class Amount:
    """So many sandboxes with so much in sum: processor in cores, memory in bytes."""

    count: int = 0
    cpu: float = 0.0
    memory: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.count + other.count, self.cpu + other.cpu, self.memory + other.memory)

    def __mul__(self, count: int) -> Amount:
        return Amount(self.count * count, self.cpu * count, self.memory * count)


NOTHING, ONE = Amount(), Amount(1)


def of_request(spec: PoolSpec, asked: Amounts) -> Amount:
    """What a sandbox of this pool with these resources counts."""
    return with_requests(
        of_template(spec.template), spec, sizing.scaled(spec.bounds, asked).requests
    )


def with_requests(base: Amount, spec: PoolSpec, actual: Amounts) -> Amount:
    """A pod of the pool counts `base`; one whose container requests something else, by so much more or less."""
    planned = spec.bounds.requests
    cpu = 0 if actual.cpu is None else actual.cpu - (planned.cpu or 0)
    memory = 0 if actual.memory is None else actual.memory - (planned.memory or 0)
    return Amount(base.count, base.cpu + cpu / 1000, base.memory + memory)


def of_template(template: Mapping[str, object]) -> Amount:
    """What the scheduler sets aside for one pod of this template: the requests of its containers (where
    there is none, the limit), or of an init container that wants more, and the overhead."""
    spec = _mapping(template.get("spec"))
    return Amount(1, _needed(spec, "cpu"), _needed(spec, "memory"))


def _needed(spec: Mapping[str, object], resource: str) -> float:
    running = sum(_requests(spec, "containers", resource))
    first = max(_requests(spec, "initContainers", resource), default=0.0)
    return max(running, first) + _read(_mapping(spec.get("overhead")), resource)


def _requests(spec: Mapping[str, object], kind: str, resource: str) -> list[float]:
    containers = spec.get(kind)
    found = []
    for one in containers if isinstance(containers, list) else []:
        resources = _mapping(_mapping(one).get("resources"))
        asked, limits = _mapping(resources.get("requests")), _mapping(resources.get("limits"))
        found.append(_read(asked if resource in asked else limits, resource))
    return found


def _read(amounts: Mapping[str, object], resource: str) -> float:
    value = amounts.get(resource)
    if resource == "cpu":
        return (quantities.millicores(value) or 0) / 1000
    return quantities.bytes_of(value) or 0


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def check(share: Share, used: Amount, asked: Amount) -> None:
    """Whether a tenant may have what it asks for beside what it has or is getting.

    Raises:
        QuotaError: no; not to be tried again where it could not have it alone.
    """
    _check(share.concurrent, used.count, asked.count, "sandboxes")
    _check(share.cpu, used.cpu, asked.cpu, "cores of cpu")
    _check(share.memory, used.memory, asked.memory, "bytes of memory")


def check_rollouts(share: Share, used: int, asked: int) -> None:
    """Whether a tenant may have so many more sandboxes that are for no evaluation: some of its limit is held back for
    those, so that a rollout which waits for its reward never waits for other rollouts.

    Raises:
        QuotaError: no; not to be tried again where it could not have them alone.
    """
    if share.concurrent is None or not share.eval_reserved:
        return
    left = share.concurrent - share.eval_reserved
    _check(left, used, asked, f"sandboxes beside the {share.eval_reserved} held for evaluations")


def _check(limit: float | None, used: float, asked: float, what: str) -> None:
    if limit is None or used + asked <= limit:
        return
    facts = {"limit": limit, "used": used, "asked": asked, "resource": what.rsplit(maxsplit=1)[-1]}
    if asked > limit:
        raise never(
            f"the tenant may have {limit:g} {what} at once, and this asks for {asked:g}", facts
        )
    raise QuotaError(
        f"the tenant may have {limit:g} {what} at once, has or is getting {used:g} and asks for "
        f"{asked:g} more: release some",
        retry_after=RETRY_S,
        facts=facts,
    )


def never(detail: str, facts: Mapping[str, object]) -> QuotaError:
    """The refusal of what no waiting can make possible."""
    error = QuotaError(detail, facts=facts)
    error.retryable = False
    return error


class Bucket:
    """Creations of one tenant: one token each, `rate` more a second, up to one second's worth.

    What asks for more at once than the bucket can hold is served when it is full, and leaves a debt:
    the rate holds on average. Who is refused is promised a moment of its own: of many that are refused
    together each comes back when there is a token for it.
    """

    def __init__(self) -> None:
        self._paid_at = -math.inf
        """When there was, or will be, neither token nor debt."""
        self._promised = -math.inf

    def take(self, count: int, rate: float, now: float) -> None:
        """Take so many tokens.

        Args:
            count: how many sandboxes are to be made.
            rate: tokens a second.
            now: seconds, on any clock that goes forward.

        Raises:
            QuotaError: there are not enough just now.
        """
        size = max(1.0, rate)
        level = min(size, (now - self._paid_at) * rate)
        need = min(float(count), size)
        if level + EPSILON >= need:
            self._paid_at = now - (level - count) / rate
            return
        wait = (need - level) / rate
        self._promised = max(self._promised + count / rate, now + wait)
        raise QuotaError(
            f"the tenant may make {rate:g} sandboxes a second",
            retry_after=min(self._promised - now, PROMISE_MAX_S),
            facts={"limit": rate, "asked": count, "resource": "creations"},
        )
