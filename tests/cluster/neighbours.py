"""Sandboxes of rollouts that burn cpu, memory bandwidth and disk beside others, and what each has burnt: by its cgroup, and by its own count."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from tests.cluster import burning

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from sandman import Client, Sandbox

SET_ASIDE = {"processor": "300m", "memory": "100m", "disk": "50m"}
"""Cpu of each kind, by which the kernel shares what there is: while `processor` rests, others beside it have a processor."""
KINDS = tuple(SET_ASIDE)
COUNT = "/tmp/burnt"
LEAST_CORES = 0.3
"""Of all together. In the arm with control one of two cores is all that they and the whole machine beside have."""
LEAST_MB_S = {"memory": 200.0, "disk": 2.0}
"""A fraction of what they move in the few percent of a core that they have at worst."""
_READ = f"""
import glob, json
def seconds():
    for v1 in glob.glob("/sys/fs/cgroup/*/cpuacct.usage"):
        return int(open(v1).read()) / 1e9
    return int(open("/sys/fs/cgroup/cpu.stat").read().split()[1]) / 1e6
print(json.dumps([seconds(), int(open({COUNT!r}).read())]))
"""


def pool_of(kind: str) -> str:
    """Of one sandbox."""
    return f"busy-{kind}"


def resources(kind: str) -> dict[str, dict[str, str]]:
    """Of its pods."""
    limits = {"cpu": "2", "memory": "512Mi"}
    return {"requests": {"cpu": SET_ASIDE[kind], "memory": "64Mi"}, "limits": limits}


@dataclass(frozen=True, slots=True)
class Sample:
    """One neighbour at one moment: seconds by the clock, seconds of cpu, bytes moved."""

    at: float
    cpu_s: float
    moved: int


@dataclass(frozen=True, slots=True)
class Burnt:
    """What one did between two moments."""

    kind: str
    seconds: float
    cpu_s: float
    moved: int

    @classmethod
    def between(cls, kind: str, begin: Sample, end: Sample) -> Burnt:
        """From one sample to a later one."""
        return cls(kind, end.at - begin.at, end.cpu_s - begin.cpu_s, end.moved - begin.moved)

    @property
    def cores(self) -> float:
        """On average."""
        return self.cpu_s / self.seconds

    @property
    def mb_s(self) -> float:
        """Megabytes in a second."""
        return self.moved / self.seconds / 1e6


def together(burnt: Sequence[Burnt]) -> dict[str, Burnt]:
    """Of several spans, by kind."""
    found: dict[str, Burnt] = {}
    for one in burnt:
        so_far = found.get(one.kind, Burnt(one.kind, 0, 0, 0))
        found[one.kind] = Burnt(
            one.kind,
            so_far.seconds + one.seconds,
            so_far.cpu_s + one.cpu_s,
            so_far.moved + one.moved,
        )
    return found


def told(burnt: Mapping[str, Burnt]) -> str:
    """For people."""
    parts = [
        f"{one.kind} {one.cores:.2f} cores" + (f" {one.mb_s:.0f} MB/s" if one.moved else "")
        for one in burnt.values()
    ]
    cores = sum(one.cores for one in burnt.values())
    return f"{', '.join(parts)}: {cores:.2f} cores in all"


def lacking(burnt: Mapping[str, Burnt]) -> list[str]:
    """Who did not burn; empty when all did."""
    cores = sum(one.cores for one in burnt.values())
    idle = [f"{kind} is not there" for kind in KINDS if kind not in burnt]
    if cores < LEAST_CORES:
        idle.append(f"all together took {cores:.2f} cores, less than {LEAST_CORES}")
    for kind, least in LEAST_MB_S.items():
        if kind in burnt and burnt[kind].mb_s < least:
            idle.append(f"{kind} moved {burnt[kind].mb_s:.1f} MB/s, less than {least:g}")
    return idle


async def sample(box: Sandbox) -> Sample:
    """What one has done so far."""
    at = trio.current_time()
    result = await box.exec(["python3", "-c", _READ], check=True, timeout_s=120)
    cpu_s, moved = json.loads(result.stdout_text)
    return Sample((at + trio.current_time()) / 2, cpu_s, moved)


@contextlib.asynccontextmanager
async def burn(client: Client, image: str) -> AsyncIterator[dict[str, Sandbox]]:
    """All of them, each in a sandbox of its own, while the block lasts."""
    text = Path(burning.__file__).read_text(encoding="utf-8")
    boxes: dict[str, Sandbox] = {}
    async with contextlib.AsyncExitStack() as stack:
        for kind in KINDS:
            box = await stack.enter_async_context(
                client.sandbox(image=image, pool=pool_of(kind), run="neighbours", wait_s=300)
            )
            await box.start(["python3", "-c", text, kind, COUNT], exec_id=kind, detached=True)
            boxes[kind] = box
        await trio.sleep(2)  # Until each has its buffers.
        yield boxes


async def samples(boxes: Mapping[str, Sandbox]) -> dict[str, Sample]:
    """Of all, one after the other."""
    return {kind: await sample(box) for kind, box in boxes.items()}
