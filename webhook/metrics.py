"""What the webhook counts, in a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

INJECTED = "injected"
PASSED = "passed"
REFUSED = "refused"
LEFT = "left"
"""A workload that runs without the daemon, because it cannot have one."""
MALFORMED = "malformed"
FAILED = "failed"

_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0)


class Metrics:
    """Counters of admissions and the end of the certificate."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._reviews = Counter(
            "sandman_webhook_reviews",
            "Admission reviews by outcome.",
            ("outcome",),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "sandman_webhook_review_seconds",
            "Time to decide one admission, TLS and HTTP not counted.",
            registry=self._registry,
            buckets=_BUCKETS,
        )
        self._expires = Gauge(
            "sandman_webhook_certificate_not_after_seconds",
            "When the serving certificate ends, as Unix time; 0 when there is none.",
            registry=self._registry,
        )

    def reviewed(self, outcome: str, seconds: float) -> None:
        """Count one admission."""
        self._reviews.labels(outcome).inc()
        self._seconds.observe(seconds)

    def render(self, certificate_not_after: float) -> bytes:
        """All of it in the text format."""
        self._expires.set(certificate_not_after)
        return generate_latest(self._registry)
