"""What the gateway counts. No label of a sandbox, a run or a tenant: ten thousand series help nobody,
and one tenant must not read another's load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import prometheus_client as prometheus
from prometheus_client.core import GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.model import Ready
    from gateway.roster import Roster

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
"""Bounds around the bars: warm 25 ms, swap 350 ms, a burst's p99 1.5 s, a full scale-out 60 s."""


class Metrics:
    """Counters of one gateway; gauges are read from the state when somebody asks."""

    media_type = prometheus.CONTENT_TYPE_LATEST

    def __init__(self, roster: Roster) -> None:
        self._registry = prometheus.CollectorRegistry()
        self._allocations = prometheus.Histogram(
            "sandman_allocation_seconds",
            "Time from request to a sandbox that answers, by tier.",
            ["tier"],
            buckets=SECONDS,
            registry=self._registry,
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
        self._registry.register(_State(roster))

    def watch_sockets(self, count: Callable[[], int]) -> None:
        """Ask this for how many WebSockets there are."""
        self._sockets.set_function(count)

    def allocated(self, made: Ready) -> None:
        """A sandbox was handed over."""
        timings = made.timings
        seconds = (timings.queued_ms + timings.claim_ms + timings.ready_ms) / 1e3
        self._allocations.labels(made.instance.tier or "unknown").observe(seconds)

    def failed(self, reason: str) -> None:
        """A call ended with an error."""
        self._errors.labels(reason).inc()

    def render(self) -> bytes:
        """All of it as text."""
        return prometheus.generate_latest(self._registry)


class _State:
    """Gauges over the roster."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Prometheus asks."""
        now = self._roster.allocation.statistics()
        requests = GaugeMetricFamily(
            "sandman_requests",
            "Allocations that are not done, by what they wait for.",
            labels=["state"],
        )
        requests.add_metric(["waiting"], now.waiting)
        requests.add_metric(["claiming"], now.claiming)
        requests.add_metric(["cold"], now.cold)
        yield requests
        pods = GaugeMetricFamily(
            "sandman_pods", "Pods, by pool and state.", labels=["pool", "state"]
        )
        counts: dict[tuple[str, str], int] = {}
        for one in self._roster.registry.all():
            key = (one.pool, "ended" if one.ending else one.state)
            counts[key] = counts.get(key, 0) + 1
        for (pool, state), count in sorted(counts.items()):
            pods.add_metric([pool, state], count)
        yield pods
        yield GaugeMetricFamily(
            "sandman_free_vetted", "Placeholders that may be claimed.", value=now.free
        )
