"""Metrics of programs under load, as far as a report tells of them: pure readings of Prometheus' text."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.samples import Sample

WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE", "DELETECOLLECTION", "APPLY"})
PROCESS = ("process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds")
GATEWAY = (
    *PROCESS,
    "sandman_requests",
    "sandman_free_vetted",
    "sandman_api_writes_total",
    "sandman_claim_writes_total",
    "sandman_allocations_total",
    "sandman_ended_total",
)
API_SERVER = (*PROCESS, "apiserver_request_total", "apiserver_current_inflight_requests")


class Reading(NamedTuple):
    """At a time of the wall clock: what `who` told. A program that does not answer tells nothing."""

    at: float
    who: str
    values: dict[str, float]


def samples(text: str, names: Iterable[str]) -> Iterator[Sample]:
    """Samples of these names alone: an API server tells tens of thousands, of which a parser has its fill."""
    wanted = tuple(names)
    for line in text.splitlines():
        if line.startswith(wanted) and line[len(_name(line)) :].lstrip()[:1]:
            for family in text_string_to_metric_families(line + "\n"):
                yield from (one for one in family.samples if one.name in wanted)


def _name(line: str) -> str:
    return line.partition("{")[0].partition(" ")[0]


def of_gateway(text: str) -> dict[str, float]:
    """What one replica tells: memory, processor time, who waits, writes, allocations, ends."""
    found: dict[str, float] = defaultdict(float)
    for sample in samples(text, GATEWAY):
        match sample.name:
            case "sandman_requests":
                found[f"requests {sample.labels['state']}"] += sample.value
            case "sandman_api_writes_total":
                found["writes"] += sample.value
                key = f"writes {sample.labels['verb']} {sample.labels['resource']}"
                found[key] += sample.value
            case "sandman_claim_writes_total":
                found["claim writes"] += sample.value
            case "sandman_allocations_total":
                found[f"allocations {sample.labels['outcome']}"] += sample.value
            case "sandman_ended_total":
                found[f"ended {sample.labels['reason']}"] += sample.value
            case "sandman_free_vetted":
                found["free"] += sample.value
            case name:
                found[_PLAIN[name]] += sample.value
    return dict(found)


def of_api_server(text: str) -> dict[str, float]:
    """What an API server tells: memory, processor time, requests and writes so far, requests in flight."""
    found: dict[str, float] = defaultdict(float)
    for sample in samples(text, API_SERVER):
        match sample.name:
            case "apiserver_request_total":
                verb = sample.labels.get("verb", "")
                # A watch that ends counts as one request, whenever that is.
                found["requests"] += sample.value if verb not in ("WATCH", "CONNECT") else 0
                found["writes"] += sample.value if verb in WRITES else 0
                found["refused"] += sample.value if sample.labels.get("code") == "429" else 0
            case "apiserver_current_inflight_requests":
                found["inflight"] += sample.value
            case name:
                found[_PLAIN[name]] += sample.value
    return dict(found)


_PLAIN = dict(zip(PROCESS, ("memory", "cpu", "files"), strict=True))
