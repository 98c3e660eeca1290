"""Simulated nodes, and what becomes of their pods, as KWOK is told. Pure, but for reading KWOK's own stages."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from sandman import names

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PODS_A_NODE = 110
"""What a kubelet takes by default."""
LABEL_LOST = f"{names.DOMAIN}/scale-lost"
"""On a node: its kubelet says nothing any more."""
HEARTBEAT_MS = 10_000
"""Between two signs of life of a node; after 50 s without one Kubernetes takes it for lost. Most of what the idle
bed writes: twelve a second of 120 nodes."""
_LOST = f'.metadata.labels["{LABEL_LOST}"]'


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How pods start, and how many do not.

    `start_ms`, `jitter_ms`: from a pod's binding to its readiness, at least, and at most so much more. `failing`: of
    100 pods, those whose container ends at once. `slow`: numbers of nodes whose pods take `slow_ms` instead.
    """

    start_ms: int = 0
    jitter_ms: int = 0
    failing: int = 0
    slow: tuple[int, ...] = ()
    slow_ms: int = 10_000


PLAIN = Behaviour()
"""All start at once, and none fails."""


def count(pods: int) -> int:
    """Nodes for so many pods, with one to spare for each ten: what ends takes a place until it is gone."""
    whole = -(-pods // PODS_A_NODE)
    return whole + -(-whole // 10)


def name(number: int) -> str:
    """Of a node."""
    return f"scale-{number}"


def addresses(number: int) -> str:
    """Of a node's pods, as a range: all on the loopback."""
    return f"127.{64 + number // 256}.{number % 256}.0/24"


def node(number: int) -> dict[str, Any]:
    """One node, as it is made; the rest of its status is KWOK's."""
    room = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "2Ti", "pods": str(PODS_A_NODE)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name(number),
            "labels": {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "type": "kwok"},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        # KWOK gives a pod an address of its node's range, so that a lost node's can be cut off.
        "spec": {"podCIDR": addresses(number), "podCIDRs": [addresses(number)]},
        "status": {"allocatable": room, "capacity": room},
    }


def stages(own: Path, behaviour: Behaviour) -> str:
    """The stage file; `own`: where KWOK's stages lie."""
    ready = _load(own / "pod" / "fast" / "pod-ready.yaml")
    heartbeat = _load(own / "node" / "heartbeat" / "node-heartbeat.yaml")
    heartbeat["spec"]["delay"] = _delay(HEARTBEAT_MS, HEARTBEAT_MS // 2)
    heartbeat["spec"]["selector"]["matchExpressions"].append(_expression(_LOST, "DoesNotExist"))
    chosen = [
        _load(own / "node" / "fast" / "node-initialize.yaml"),
        heartbeat,
        _load(own / "pod" / "fast" / "pod-delete.yaml"),
        *_starts(ready, behaviour),
    ]
    return yaml.safe_dump_all(chosen)


def _starts(ready: dict[str, Any], behaviour: Behaviour) -> Iterable[dict[str, Any]]:
    slow = [name(number) for number in behaviour.slow]
    others = _start(ready, "pod-ready", behaviour.start_ms, behaviour.jitter_ms)
    others["spec"]["weight"] = 100 - behaviour.failing
    failing = _failing(others, behaviour.failing)
    if slow:
        late = _start(ready, "pod-ready-slow", behaviour.slow_ms, behaviour.jitter_ms)
        _select(late, _expression(".spec.nodeName", "In", *slow))
        for one in (others, failing):
            _select(one, _expression(".spec.nodeName", "NotIn", *slow))
        yield late
    yield others
    if behaviour.failing:
        yield failing


def _start(ready: dict[str, Any], called: str, start_ms: int, jitter_ms: int) -> dict[str, Any]:
    stage = copy.deepcopy(ready)
    stage["metadata"]["name"] = called
    if start_ms or jitter_ms:
        stage["spec"]["delay"] = _delay(start_ms, jitter_ms)
    return stage


def _failing(start: dict[str, Any], weight: int) -> dict[str, Any]:
    stage = copy.deepcopy(start)
    stage["metadata"]["name"] = "pod-fails"
    stage["spec"]["weight"] = weight
    stage["spec"]["next"]["statusTemplate"] = _FAILED
    return stage


_FAILED = """{{ $now := Now }}
containerStatuses:
{{ range .spec.containers }}
- image: {{ .image | Quote }}
  name: {{ .name | Quote }}
  ready: false
  restartCount: 0
  state:
    terminated:
      exitCode: 1
      finishedAt: {{ $now | Quote }}
      reason: Error
      startedAt: {{ $now | Quote }}
{{ end }}
phase: Failed
startTime: {{ $now | Quote }}
"""


def _select(stage: dict[str, Any], expression: dict[str, Any]) -> None:
    stage["spec"]["selector"]["matchExpressions"].append(expression)


def _expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    found: dict[str, Any] = {"key": key, "operator": operator}
    return found | {"values": list(values)} if values else found


def _delay(least_ms: int, jitter_ms: int) -> dict[str, int]:
    """KWOK's jitter is the longest delay, not what is added."""
    return {"durationMilliseconds": least_ms, "jitterDurationMilliseconds": least_ms + jitter_ms}


def _load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded
