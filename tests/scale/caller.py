"""Callers of the scale bed: plain calls over kept TLS connections, at a fifth of the processor that the client's own
transport takes, for they share two cores with all that they call."""

from __future__ import annotations

import json
import ssl
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import trio

from sandman import names
from sandman.service.kube.config import Target as Address
from sandman.service.kube.config import TokenCache
from sandman.service.kube.connection import Request
from sandman.service.kube.errors import KubeError, ThrottledError, UnavailableError
from sandman.service.kube.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from types import TracebackType

    from tests.scale.model import Target

WAIT_S = 600.0
"""As long as an allocation may wait."""
PATIENCE_S = 30.0
"""After the end of a stretch of calls at a rate; what has no answer then is counted as such."""
PAUSE_S = 0.5
"""Before a call is made again, where the answer does not say."""


@dataclass(frozen=True)
class Keyed(Request):
    """A call that may be made again: the same key is the same sandbox."""

    key: str = ""

    def headers(self, host: str, token: str) -> list[tuple[str, str]]:
        """With the key."""
        return [*super().headers(host, token), (names.HEADER_IDEMPOTENCY_KEY, self.key)]


def reason(error: KubeError) -> str:
    """What a gateway gave as reason, and the beginning of its words."""
    text = str(error)
    try:
        problem = json.loads(text[text.index("{") :])
    except ValueError:
        return f"{type(error).__name__} {text[:80]}"
    return f"{problem.get('reason')}: {str(problem.get('detail'))[:60]}"


@dataclass
class Tally:
    """What became of many calls."""

    seconds: list[float] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0

    def fail(self, error: KubeError) -> None:
        """One failed."""
        found = reason(error)
        self.errors[found] = self.errors.get(found, 0) + 1

    def with_(self, other: Tally) -> Tally:
        """Both together."""
        errors = dict(self.errors)
        for reason, count in other.errors.items():
            errors[reason] = errors.get(reason, 0) + count
        both = [*self.seconds, *other.seconds], [*self.ids, *other.ids]
        return Tally(*both, errors, self.wall_s + other.wall_s)

    @property
    def doubles(self) -> int:
        """Sandboxes that two callers were given."""
        return len(self.ids) - len(set(self.ids))

    def ms(self, share: float) -> float:
        """The latency that so much of all calls kept within, milliseconds; 0 where there was none."""
        ordered = sorted(self.seconds)
        if not ordered:
            return 0.0
        return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)

    def told(self) -> dict[str, Any]:
        """As it goes into a report."""
        return {
            "calls": len(self.seconds),
            "errors": self.errors,
            "doubles": self.doubles,
            "p50_ms": self.ms(0.5),
            "p90_ms": self.ms(0.9),
            "p99_ms": self.ms(0.99),
            "max_ms": self.ms(1.0),
            "wall_s": round(self.wall_s, 2),
            "per_s": round(len(self.seconds) / self.wall_s, 1) if self.wall_s else None,
        }


class Callers:
    """Calls of one tenant, spread over all gateways.

    Args:
        target: the bed.
        tenant: whose key.
        at_once: connections in all.
    """

    def __init__(self, target: Target, at_once: int, tenant: str = "north") -> None:
        trust = ssl.create_default_context(cafile=target.ca)
        key = target.tenants[tenant]["key"]
        each = max(1, at_once // len(target.base_urls))
        self._pool = target.pool
        self._ways = [
            Transport(
                Address(url, trust, lambda: key),
                TokenCache(lambda: key, trio.current_time),
                max_requests=each,
            )
            for url in target.base_urls
        ]
        self.at_once = each * len(self._ways)
        self._turn = 0
        self.again: Counter[str] = Counter()
        """Calls that were made again, by why."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for way in self._ways:
            await way.aclose()

    async def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """One call; its answer.

        Raises:
            KubeError: refused, or there was no answer.
        """
        content = None if body is None else json.dumps(body).encode()
        data = await self._send(Request(method, path, body=content))
        return dict(json.loads(data)) if data else {}

    async def _send(self, request: Request) -> bytes:
        self._turn += 1
        return await self._ways[self._turn % len(self._ways)].send(request)

    async def connect(self) -> None:
        """Open every connection: what follows measures calls, and not handshakes."""
        await self.many(range(self.at_once), lambda _: self.call("GET", "/v1/pools"))

    async def create(self, **more: object) -> str:
        """A sandbox of the pool; its id. As the client does: the same key again while a gateway says so."""
        body = json.dumps({"pool": self._pool, "wait_s": WAIT_S, **more}).encode()
        request = Keyed("POST", "/v1/sandboxes", body=body, key=uuid.uuid4().hex)
        until = trio.current_time() + WAIT_S
        while True:
            try:
                return str(json.loads(await self._send(request))["id"])
            except (UnavailableError, ThrottledError) as error:
                if trio.current_time() > until:
                    raise
                self.again[reason(error)] += 1
                await trio.sleep(error.retry_after or PAUSE_S)

    async def exec(self, sandbox: str, argv: Sequence[str] = ("true",)) -> dict[str, Any]:
        """A command's result."""
        return await self.call("POST", f"/v1/sandboxes/{sandbox}/exec", {"argv": list(argv)})

    async def release(self, sandbox: str) -> None:
        """Give it back."""
        await self.call("DELETE", f"/v1/sandboxes/{sandbox}")

    async def many(self, items: Iterable[Any], job: Callable[[Any], Awaitable[object]]) -> Tally:
        """Do this for each, as many at once as there are connections; a string that it gives is an id."""
        tally = Tally()
        source = iter(items)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(self.at_once):
                nursery.start_soon(self._work, source, job, tally)
        tally.wall_s = trio.current_time() - began
        return tally

    async def paced(
        self, seconds: float, rate: float, job: Callable[[], Awaitable[object]]
    ) -> Tally:
        """So many a second, whether or not those before are answered; latency counts from when each was due."""
        tally = Tally()
        began = trio.current_time()
        count = int(seconds * rate)
        with trio.move_on_at(began + seconds + PATIENCE_S):
            async with trio.open_nursery() as nursery:
                for number in range(count):
                    due = began + number / rate
                    await trio.sleep_until(due)
                    nursery.start_soon(_timed, job, tally, due)
        tally.wall_s = trio.current_time() - began
        if missed := count - len(tally.seconds) - sum(tally.errors.values()):
            tally.errors[f"no answer {PATIENCE_S:.0f} s after the end"] = missed
        return tally

    async def _work(
        self, source: Iterable[Any], job: Callable[[Any], Awaitable[object]], tally: Tally
    ) -> None:
        for item in source:
            await _timed(lambda item=item: job(item), tally, trio.current_time())  # type: ignore[misc]


async def _timed(job: Callable[[], Awaitable[object]], tally: Tally, since: float) -> None:
    try:
        found = await job()
    except KubeError as error:
        tally.fail(error)
        return
    tally.seconds.append(trio.current_time() - since)
    if isinstance(found, str):
        tally.ids.append(found)
