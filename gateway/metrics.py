"""What the gateway counts. No label of a sandbox or a run: ten thousand series help nobody. And no label
whose values callers choose, but for tenants, which are kept apart (`render_all`), as are pools that are not everybody's:
one tenant must not read another's load, nor that there is another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import prometheus_client as prometheus

from gateway import gauges, outcomes
from gateway.firsts import FirstCommands
from gateway.recent import Recent

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from gateway.attached import Attached
    from gateway.gauges import Labels
    from gateway.model import Ready
    from gateway.pool import Pool
    from gateway.roster import Roster

SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600,
)  # fmt: skip
"""Bounds around the bars: an in-memory decision 1 ms, a claim's write 5 to 15 ms, warm 25 ms, swap 350 ms,
a burst's p99 1.5 s, a full scale-out 60 s."""


class Metrics:
    """Counters of one gateway; gauges are read from the state when somebody asks."""

    media_type = prometheus.CONTENT_TYPE_LATEST

    def __init__(self, roster: Roster) -> None:
        # A time of making beside each counter: twice the series, and nothing here asks for it.
        prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._roster = roster
        self._registry = prometheus.CollectorRegistry()
        self._callers = prometheus.CollectorRegistry()
        self._platform = prometheus.CollectorRegistry()
        # Memory, processor time and open files of this program, by the names that everybody has for them.
        prometheus.ProcessCollector(registry=self._registry)
        self._claims = self._histogram(
            "sandman_allocation_claim_seconds",
            "Time from request to its pod's being claimed or made, by tier.",
        )
        self._allocations = self._histogram(
            "sandman_allocation_seconds", "Time from request to a sandbox that answers, by tier."
        )
        self._commands = self._histogram(
            "sandman_allocation_first_command_seconds",
            "Time from request to the beginning of the first command's answer, by tier.",
        )
        self._errors = prometheus.Counter(
            "sandman_errors",
            "Calls that ended with an error, by reason.",
            ["reason"],
            registry=self._registry,
        )
        self._sockets = prometheus.Gauge(
            "sandman_websockets", "WebSockets carried just now.", registry=self._registry
        )
        self._by_pool(gauges.State(roster))
        self.firsts = FirstCommands()
        self.recent = Recent()

    def _histogram(self, name: str, text: str) -> prometheus.Histogram:
        return prometheus.Histogram(name, text, ["tier"], buckets=SECONDS, registry=self._registry)

    def _count(
        self, name: str, text: str, labels: list[str], read: Callable[[], Mapping[Labels, int]]
    ) -> None:
        self._registry.register(gauges.Counts(name, text, labels, read))

    def _by_pool(self, collector: gauges.State | gauges.Counts[Labels]) -> None:
        self._callers.register(gauges.Folded(collector, self._is_open))
        self._platform.register(collector)

    def _is_open(self, pool: str) -> bool:
        """Whether it is everybody's. What became of one that is gone is not told to all either."""
        spec = self._roster.pools.get(pool)
        return pool == outcomes.NONE or (spec is not None and spec.tenants is None)

    def watch_sockets(self, count: Callable[[], int]) -> None:
        """Ask this for how many WebSockets there are."""
        self._sockets.set_function(count)

    def watch_pool(self, pool: Pool) -> None:
        """Ask this for what became of allocations and who waits."""
        text = "Allocations that are over, by pool, tier and outcome."
        labels = ["pool", "tier", "outcome"]
        counts = gauges.Counts("sandman_allocations", text, labels, lambda: pool.outcomes.counts)
        self._by_pool(counts)
        waiting = lambda: [one[:2] for one in pool.waiting()]  # noqa: E731
        self._platform.register(gauges.Queue(waiting))

    def watch_networks(self, enforced: Mapping[str, bool]) -> None:
        """Show whether network policies are enforced, by namespace."""
        self._registry.register(gauges.Networks(enforced))

    def watch_writes(
        self, writes: Counter[tuple[str, str, str]], claim_writes: Counter[str]
    ) -> None:
        """Show these counts of writes to the API server: by verb, resource and status; by tier."""
        text = "Writes to the API server, by verb, resource and status."
        self._count("sandman_api_writes", text, ["verb", "resource", "status"], lambda: writes)
        text = "Writes to the API server that callers wait for, by tier."
        by_tier = lambda: {(tier,): count for tier, count in claim_writes.items()}  # noqa: E731
        self._count("sandman_claim_writes", text, ["tier"], by_tier)

    def watch_ends(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Read from this how many sandboxes ended, by reason and cause."""
        text = "Sandboxes that have ended, by reason and cause; told by the allocator alone."
        self._count("sandman_ended", text, ["reason", "cause"], lambda: counts)

    def watch_attachments(self, attached: Attached, ended: Mapping[tuple[str, str], int]) -> None:
        """Show how many there are, and how many ended, by reason and cause."""
        self._registry.register(gauges.Attachments(attached))
        text = "Attachments that have ended, by reason and cause; told by the allocator alone."
        self._count("sandman_attachments_ended", text, ["reason", "cause"], lambda: ended)

    def watch_authentications(self, counts: Mapping[tuple[str, str], int]) -> None:
        """Read from this how many tokens were looked at, by kind and outcome."""
        text = "Calls by the kind of their token, and what it was found to be."
        self._count("sandman_authentications", text, ["kind", "outcome"], lambda: counts)

    def allocated(self, made: Ready) -> None:
        """A sandbox was handed over."""
        timings, tier = made.timings, made.instance.tier or "unknown"
        claimed = timings.queued_ms + timings.claim_ms
        self._claims.labels(tier).observe(claimed / 1e3)
        self._allocations.labels(tier).observe((claimed + timings.ready_ms) / 1e3)

    def commanded(self, sandbox: str, tier: str | None, now: float) -> None:
        """A command's answer begins; `now` on the clock of `firsts`."""
        seconds = self.firsts.answered(sandbox, now)
        if seconds is not None:
            self._commands.labels(tier or "unknown").observe(seconds)

    def failed(self, reason: str) -> None:
        """A call ended with an error."""
        self._errors.labels(reason).inc()

    def render(self) -> bytes:
        """What anybody may read who can reach the gateway, as text."""
        return self._text(self._callers)

    def render_all(self) -> bytes:
        """All of it, also what tells of tenants and their own pools: for those who run the platform."""
        return self._text(self._platform)

    def _text(self, registry: prometheus.CollectorRegistry) -> bytes:
        return prometheus.generate_latest(self._registry) + prometheus.generate_latest(registry)
