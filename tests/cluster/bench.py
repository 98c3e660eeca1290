"""The benchmark of the main job: `python -m tests.cluster.bench`.

Warm, swap, swap with a resize and new pod, interleaved in one run on one cluster, so that their ratios hold on a noisy
machine. Prints a table in Markdown, another of where the time of the allocation call went, with a bare call to the
gateway beside each as yardstick, and, with `--json FILE`, writes the numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import trio
import yaml

import sandman
from sandman import names
from tests.cluster.audit import AuditLog, Write
from tests.cluster.bed import Bed, kubectl
from tests.cluster.deployed import Deployed, deploy

if TYPE_CHECKING:
    from sandman.client import Resources

RESIZE, NEW, BESIDE = "swap with resize", "new pod", "new pod beside a refill"
POOLS = {
    "warm": "bench-warm",
    "swap": "root",
    RESIZE: "root",
    NEW: "bench-new",
    BESIDE: "bench-drained",
}
"""Each claim makes its pool's ReplicaSet start another placeholder, on this one node beside the swap
itself. A new pod is made when the pool is drained, so beside a refill too; both are shown."""
WARM_REPLICAS = 2
RESOURCES: Resources = {"cpu": "800m", "memory": "640Mi"}
"""What the way with a resize asks for: less of one and more of the other than the pool's template gives."""
SETTLE_S = 2.5
"""Between two rounds: refills, kubelet status and deletions of the last one must not be measured."""
HOUSEKEEPING = {"leases", "nodes/status", "endpointslices", "endpoints", "serviceaccounts/token",
                "subjectaccessreviews", "tokenreviews", "configmaps"}  # fmt: skip
"""Writes that the cluster makes with or without a claim."""
STAGES = {
    "queued": "in the queue",
    "claim": "the claim's write",
    "ready": "until the daemon has answered",
    "around": "all around it: client, TLS, the way to the allocator, the answer",
    "bare": "a bare call to the gateway just before",
}
"""Parts of an allocation call, as the gateway tells them; the last is none of them, but their yardstick."""


@dataclass
class Samples:
    """Measurements of one way to get a sandbox, milliseconds."""

    allocation: list[float] = field(default_factory=list)
    first_command: list[float] = field(default_factory=list)
    claim_writes: list[list[str]] = field(default_factory=list)
    all_writes: list[int] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    stages: dict[str, list[float]] = field(default_factory=lambda: {one: [] for one in STAGES})

    def summary(self) -> dict[str, object]:
        """Medians and counts."""
        return {
            "allocation_ms": round(statistics.median(self.allocation), 1),
            "first_command_ms": round(statistics.median(self.first_command), 1),
            "allocation_ms_all": [round(x, 1) for x in sorted(self.allocation)],
            "stages_ms": {k: round(statistics.median(v), 1) for k, v in self.stages.items()},
            "claim_writes": sorted({tuple(x) for x in self.claim_writes}),
            "all_writes": statistics.median(self.all_writes),
            "all_writes_by_kind": {
                k: round(n / len(self.allocation), 2) for k, n in self.kinds.most_common()
            },
        }


def make_pools(deployed: Deployed) -> None:
    """A pool that runs the task image already, and one without placeholders."""
    text = deployed.kubectl("get", "deployment", "sandman-pool-root", "-o", "json")
    root = yaml.safe_load(text)
    for name, image, replicas in (
        ("bench-warm", deployed.image("debian"), WARM_REPLICAS),
        ("bench-new", deployed.image("debian"), 0),
        ("bench-drained", deployed.image("debian"), 1),
    ):
        kubectl(
            deployed.bed,
            "apply",
            "-f",
            "-",
            input=json.dumps(pool_like(root, name, image, replicas)),
        )
    for name in ("bench-warm", "bench-drained"):
        deployed.kubectl("rollout", "status", f"deployment/{name}", "--timeout=60s")


def pool_like(root: dict, name: str, image: str, replicas: int) -> dict:
    """The Deployment of a pool that is as this one, with another name, image and size."""
    spec = json.loads(json.dumps(root["spec"]))
    spec["replicas"] = replicas
    spec["selector"]["matchLabels"][names.LABEL_POOL] = name
    template = spec["template"]
    template["metadata"]["labels"][names.LABEL_POOL] = name
    template["spec"]["containers"][0]["image"] = image
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": names.SANDBOX_NAMESPACE,
            "labels": {names.LABEL_POOL: name},
            "annotations": {names.ANNOTATION_POOL_SWAP: "true"},
        },
        "spec": spec,
    }


def remove_pools(deployed: Deployed) -> None:
    """Take the benchmark's pools away again."""
    made = [pool for pool in POOLS.values() if pool.startswith("bench-")]
    deployed.kubectl("delete", "deployment", *made, "--ignore-not-found")


async def measure(deployed: Deployed, rounds: int) -> dict[str, Samples]:
    """Every way once in each round."""
    samples = {way: Samples() for way in POOLS}
    image = deployed.image("debian")
    log = AuditLog(deployed.bed.audit_log)
    async with deployed.client() as client:
        for number in range(rounds + 1):
            for way, pool in POOLS.items():
                await trio.sleep(SETTLE_S)
                list(log.writes())
                drained = await client.create(pool=pool) if way == BESIDE else None
                taken = await _one(client, image, pool, RESOURCES if way == RESIZE else None)
                await trio.sleep(SETTLE_S)
                # The first round warms caches and connections of everything; it is not counted.
                if number:
                    _note(samples[way], taken, list(log.writes()))
                await client.release(taken.sandbox)
                if drained is not None:
                    await drained.release()
    return samples


@dataclass(frozen=True)
class _Taken:
    sandbox: str
    allocation: float
    first_command: float
    stages: dict[str, float]


async def _one(
    client: sandman.Client, image: str, pool: str, resources: Resources | None
) -> _Taken:
    before = time.perf_counter()
    await client.list("bare")
    begun = time.perf_counter()
    box = await client.create(image=image, pool=pool, resources=resources)
    allocated = time.perf_counter()
    result = await box.exec(["true"])
    done = time.perf_counter()
    assert result.ok, result
    assert resources is None or box.info.resources == resources, box.info
    took = (allocated - begun) * 1e3
    stages = {name: box.info.timings[f"{name}_ms"] for name in ("queued", "claim", "ready")}
    stages |= {"around": took - sum(stages.values()), "bare": (begun - before) * 1e3}
    return _Taken(box.id, took, (done - begun) * 1e3, stages)


def _note(samples: Samples, taken: _Taken, writes: list[Write]) -> None:
    name = taken.sandbox.rpartition("-")[0]
    gateway = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:sandman-gateway"
    samples.allocation.append(taken.allocation)
    samples.first_command.append(taken.first_command)
    for stage, took in taken.stages.items():
        samples.stages[stage].append(took)
    samples.claim_writes.append(
        [f"{w.verb} {w.resource}" for w in writes if w.user == gateway and w.name == name]
    )
    counted = [w for w in writes if w.resource not in HOUSEKEEPING]
    samples.all_writes.append(len(counted))
    samples.kinds.update(str(w) for w in counted)


def table(samples: dict[str, Samples]) -> str:
    """The result for people."""
    lines = [
        "| way | allocation call, ms | call to first command's result, ms | writes of the claim path "
        "| all-in writes (refill, bind, status, events) |",
        "|---|---|---|---|---|",
    ]
    for way, one in samples.items():
        s = one.summary()
        paths = " or ".join(f"{len(x)} ({', '.join(x)})" for x in s["claim_writes"])  # type: ignore[attr-defined]
        lines.append(
            f"| {way} | {s['allocation_ms']} | {s['first_command_ms']} | {paths} | {s['all_writes']:g} |"
        )
    lines.append("")
    lines.append(
        f"swap is {ratio(samples):.1f} times as fast as a new pod (allocation call, medians), "
        f"and {ratio(samples, RESIZE):.1f} times as fast as one with a resize"
    )
    return "\n".join(lines)


def stages(samples: dict[str, Samples]) -> str:
    """Where the time of the allocation call went."""
    lines = [f"| stage, median ms | {' | '.join(samples)} |", "|---" * (len(samples) + 1) + "|"]
    for stage, what in STAGES.items():
        each = [statistics.median(one.stages[stage]) for one in samples.values()]
        lines.append(f"| {what} | " + " | ".join(f"{ms:.1f}" for ms in each) + " |")
    return "\n".join(lines)


def ratio(samples: dict[str, Samples], way: str = NEW) -> float:
    """New pod over swap, medians of the allocation call."""
    new, swap = samples[way].allocation, samples["swap"].allocation
    return statistics.median(new) / statistics.median(swap)


def run(deployed: Deployed, rounds: int) -> dict[str, Samples]:
    """The whole benchmark; its pools are gone afterwards."""
    make_pools(deployed)
    try:
        return trio.run(measure, deployed, rounds)
    finally:
        remove_pools(deployed)


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    samples = run(deploy(Bed.from_env()), arguments.rounds)
    print(table(samples))
    print(f"\n{stages(samples)}")
    print(
        f"\n{arguments.rounds} rounds; load average {os.getloadavg()[0]:.1f}; {platform.platform()}; {time.strftime('%Y-%m-%d')}"
    )
    for way, one in samples.items():
        print(f"{way}: all-in writes each: {one.summary()['all_writes_by_kind']}")
    if arguments.json:
        document = {way: one.summary() for way, one in samples.items()}
        arguments.json.write_text(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
