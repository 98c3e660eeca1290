"""Many sandboxes in one client process: `python -m benchmarks.many --count 3000`.

Against any gateway that the client finds (`SANDMAN_URL`, `SANDMAN_TOKEN`, `SANDMAN_CA`), or the scale bed's first, whose
pods are simulated (`--target build/scale/target.json`). Makes them, holds them with the client's own heartbeats while commands run in
them, drawn uniformly, and says what that costs this process: memory, cpu, and how late its event loop comes to what is due.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from sandman.client import Client, Sandbox
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from sandman.client import Batch

DUE_S = 0.01
"""Between two moments at which the event loop is looked at."""
RUN = "many"
BATCH_MAX = 1000
"""Sandboxes that one call may ask for."""
WAIT_S = 600.0
LAG_BAR_S = 0.05
"""What the 99th of 100 looks may be late."""


@dataclass
class Seen:
    """What came of it."""

    made_s: list[float] = field(default_factory=list)
    """Seconds from the first call to each sandbox."""
    commands_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


async def look_at_the_loop(seen: Seen) -> None:
    """How late it comes to what is due, again and again."""
    while True:
        due = trio.current_time() + DUE_S
        await trio.sleep_until(due)
        seen.late_s.append(trio.current_time() - due)


async def hold(client: Client, arguments: argparse.Namespace, seen: Seen) -> None:
    """Make all of them, use and keep them for a while, and let them go."""
    left, boxes = arguments.count, list[Sandbox]()
    begun = time.monotonic()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        nursery.start_soon(look_at_the_loop, seen)
        async with trio.open_nursery() as makers:
            while left:
                part = min(left, BATCH_MAX)
                left -= part
                batch = await stack.enter_async_context(
                    client.sandboxes(part, run=RUN, wait_s=WAIT_S, pool=arguments.pool)
                )
                makers.start_soon(take, batch, boxes, seen, begun)
        made_s = seen.made_s[-1]
        print(f"{len(boxes)} made in {made_s:.1f} s; {cost()}", flush=True)
        seen.late_s.clear()
        cpu = cpu_s()
        await use(boxes, arguments, seen)
        spent = (cpu_s() - cpu) / arguments.seconds
        print(f"held for {arguments.seconds:.0f} s: {spent:.2f} of a core; {cost()}", flush=True)
        late = list(seen.late_s)
        nursery.cancel_scope.cancel()
    seen.late_s[:] = late


async def take(batch: Batch, boxes: list[Sandbox], seen: Seen, begun: float) -> None:
    """Those of one call, as they come."""
    async for box in batch:
        seen.made_s.append(time.monotonic() - begun)
        boxes.append(box)


async def use(boxes: list[Sandbox], arguments: argparse.Namespace, seen: Seen) -> None:
    """Commands at the rate, each in a sandbox that is drawn."""
    draw = random.Random(arguments.seed)  # noqa: S311 - no secret
    async with trio.open_nursery() as nursery:
        begun = trio.current_time()
        for number in range(int(arguments.seconds * arguments.rate)):
            await trio.sleep_until(begun + number / arguments.rate)
            nursery.start_soon(command, draw.choice(boxes), seen)


async def command(box: Sandbox, seen: Seen) -> None:
    """One."""
    begun = time.monotonic()
    try:
        result = await box.exec(["echo", "there"])
    except SandmanError as error:
        seen.failures.append(f"{error.reason}: {error}")
        return
    seen.commands_s.append(time.monotonic() - begun)
    if result.stdout != b"there\n":
        seen.failures.append(f"another answer: {result}")


def cpu_s() -> float:
    """Seconds of a processor that this process has had."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cost() -> str:
    """Of this process, so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kib = int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
    return f"RSS {kib / 1024:.0f} MiB, {cpu_s():.1f} s of cpu"


def quantile(spans: list[float], part: float) -> float:
    """The value that this part of them is not above."""
    return sorted(spans)[min(len(spans) - 1, int(len(spans) * part))]


async def main(arguments: argparse.Namespace) -> int:
    """Do it; the exit code says whether all went well."""
    seen = Seen()
    async with connected(arguments) as client:
        await hold(client, arguments, seen)
        left = await client.list(RUN)
    late = quantile(seen.late_s, 0.99)
    print(
        f"commands: {len(seen.commands_s)}, median {1e3 * statistics.median(seen.commands_s):.0f} ms, "
        f"p99 {1e3 * quantile(seen.commands_s, 0.99):.0f}; failed {len(seen.failures)}\n"
        f"event loop late: median {1e3 * statistics.median(seen.late_s):.1f} ms, p99 {1e3 * late:.1f}, "
        f"worst {1e3 * max(seen.late_s):.0f}; left: {len(left)}; load {os.getloadavg()[0]:.1f}"
    )
    print("\n".join(seen.failures[:10]))
    return int(bool(seen.failures or left or late > LAG_BAR_S))


def connected(arguments: argparse.Namespace) -> Client:
    """To what was named; sets the pool that the bed has."""
    if arguments.target is None:
        return Client()
    target = json.loads(arguments.target.read_text())
    arguments.pool = arguments.pool or target["pool"]
    key = next(iter(target["tenants"].values()))["key"]
    return Client(target["base_urls"][0], key, ca=Path(target["ca"]))


def read(argv: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many", description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--pool", default=None)
    parser.add_argument("--target", type=Path, default=None, help="file that tells of a scale bed")
    parser.add_argument("--rate", type=float, default=20.0, help="commands a second, over all")
    parser.add_argument("--seconds", type=float, default=120.0, help="for which they are held")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(trio.run(main, read(sys.argv[1:])))
