"""Measures on the scale bed: `python -m tests.scale.measure burst --count 300`. Each prints one line of JSON."""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from sandman import names
from tests.cluster.bed.kube import kubectl
from tests.scale import control, faults, floor, model, nodes, watcher
from tests.scale.caller import Callers, Tally
from tests.scale.tenants import free

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.cluster.bed.model import Bed

REPORT = model.TARGET.parent / "report.jsonl"
RUN = "scale"
LEVELS = (100, 1000, 5000)
"""Sandboxes at once at which commands are measured."""
EXECS = 1000
"""For a median that a few slow ones do not move."""
SETTLED_CORES = 0.5
"""Of all programs of the bed: heartbeats of nodes and sandboxes alone take less."""
SETTLED_LOOK_S = 3.0
SETTLED_MOST_S = 120.0


async def burst(
    target: model.Target, count: int, callers: int, bare_count: int | None = None
) -> dict[str, Any]:
    """So many claims in one moment, and as control as many bare patches, or `bare_count`."""
    bed = model.bed()
    await _refilled(target, count)
    bare = await floor.claims(bed.state / "sandman-gateway.kubeconfig", bare_count or count)
    await _refilled(target, count)
    async with Callers(target, callers) as way:
        await way.connect()
        meter = watcher.Meter(bed, watcher.pids(bed))
        got = await way.many(range(count), lambda _: way.create())
        costs = {"writes": meter.writes(), "cpu_s": meter.cpu(), "memory_mb": meter.memory()}
        gone = await way.many(got.ids, way.release)
    left = await _left(bed)
    return {
        "claims": got.told(),
        "again": dict(way.again),
        "bare": bare.told(),
        "p99_of_bare": round(got.ms(0.99) / bare.ms(0.99), 2),
        "wall_of_bare": round(got.wall_s / bare.wall_s, 2),
        "released": gone.told(),
        "left": left,
        "load": os.getloadavg()[0],
        **costs,
    }


async def sustained(target: model.Target, seconds: float, rate: float) -> dict[str, Any]:
    """So many claims a second, each released at once, while the pool is refilled."""
    bed = model.bed()
    meter = watcher.Meter(bed, watcher.pids(bed))
    async with Callers(target, 256) as way:
        await way.connect()

        async def one() -> str:
            began = trio.current_time()
            made = await way.create()
            latencies.append(trio.current_time() - began)
            await way.release(made)
            return made

        latencies: list[float] = []
        tally = await way.paced(seconds, rate, one)
    whole = tally.told()
    tally.seconds = latencies
    return {
        "claims": tally.told(),
        "with_release": whole,
        "left": await _left(bed),
        "writes": meter.writes(),
        "cpu_s": meter.cpu(),
        "load": os.getloadavg()[0],
    }


async def execs(way: Callers, ids: Sequence[str], count: int, at_once: int) -> dict[str, Any]:
    """Commands, each in one of all sandboxes, drawn uniformly."""
    luck = random.Random(1)
    chosen = [luck.choice(ids) for _ in range(count)]
    way.at_once = at_once
    return (await way.many(chosen, way.exec)).told()


async def hold(
    target: model.Target, count: int, callers: int, seconds: float, rate: float
) -> dict[str, Any]:
    """So many sandboxes at once: allocated, with a look at every level; held with one run's heartbeats and so many
    commands a second; a gateway killed and started anew; released."""
    bed = model.bed()
    told: dict[str, Any] = {"load": os.getloadavg()[0], "levels": {}}
    meter = watcher.Meter(bed, watcher.pids(bed))
    async with Callers(target, callers) as way, Callers(target, 8) as beside:
        await way.connect()
        got = Tally()
        for level in [*(one for one in LEVELS if one < count), count]:
            way.at_once = callers
            more = await way.many(range(level - len(got.ids)), lambda _: way.create(run=RUN))
            got = got.with_(more)
            told["levels"][level] = await _level(way, got, more, meter)
            say(f"{len(got.ids)} are held", told["levels"][level])
        told |= {
            "again": dict(way.again),
            "allocated": got.told(),
            "writes_allocating": meter.writes(),
        }
        told["exec_ratio"] = _ratio(told["levels"])
        told |= await _steady(way, beside, got.ids, seconds, rate)
        told["held"] = watcher.held(bed)
        told["writes_holding"] = meter.writes()
        told["memory_mb_after"] = meter.memory()
        say("held", told)
        told["restart"] = await restarted(bed, target)
        told["exec_after_restart"] = await execs(way, got.ids, EXECS, 4)
        way.at_once = callers
        told["released"] = (await way.many(got.ids, way.release)).told()
    told["left"] = await _left(bed, 300)
    told["writes_releasing"] = meter.writes()
    return told


async def _level(way: Callers, got: Tally, more: Tally, meter: watcher.Meter) -> dict[str, Any]:
    settled = await _settled(meter)
    before = meter.cpu()
    found = await execs(way, got.ids, EXECS, 4)
    after = meter.cpu()
    spent = sum(after[name] - before[name] for name in after if name.startswith("gateway"))
    memory = {name: mb for name, mb in meter.memory().items() if name.startswith("gateway")}
    told = {"allocation": more.told(), "exec": found, "memory_mb": memory}
    told["settled"] = settled
    return {**told, "gateway_cpu_ms_per_exec": round(1000 * spent / EXECS, 2)}


async def _settled(meter: watcher.Meter) -> dict[str, float]:
    """Wait until what came before is done with (garbage, status, events): a level is measured at its own cost."""
    began, before = trio.current_time(), sum(meter.cpu().values())
    cores = math.inf
    with trio.move_on_after(SETTLED_MOST_S):
        while cores > SETTLED_CORES:
            await trio.sleep(SETTLED_LOOK_S)
            now = sum(meter.cpu().values())
            cores, before = (now - before) / SETTLED_LOOK_S, now
    return {"after_s": round(trio.current_time() - began, 1), "cores": round(cores, 2)}


def _ratio(levels: dict[int, dict[str, Any]]) -> float:
    """The median of a command at the most sandboxes, by that at the fewest."""
    first, last = levels[min(levels)], levels[max(levels)]
    return round(float(last["exec"]["p50_ms"]) / float(first["exec"]["p50_ms"]), 2)


async def _steady(
    way: Callers, beside: Callers, ids: Sequence[str], seconds: float, rate: float
) -> dict[str, Any]:
    luck = random.Random(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_beat, beside)
        tally = await way.paced(seconds, rate, lambda: way.exec(luck.choice(ids)))
        nursery.cancel_scope.cancel()
    return {"steady": tally.told()}


async def _beat(way: Callers) -> None:
    while True:
        await way.call("POST", f"/v1/runs/{RUN}/heartbeat", {})
        await trio.sleep(15)


async def restarted(bed: Bed, target: model.Target) -> dict[str, Any]:
    """The gateway that decides is killed and started anew: how long until it serves again, and what it knows."""
    number = _allocator()
    control.stop(bed, f"gateway-{number}", 0.0)
    began = time.monotonic()
    control.start_gateway(bed, number)
    with trio.fail_after(120):
        while not await trio.to_thread.run_sync(control.is_ready, model.GATEWAY_PORT + number):
            await trio.sleep(0.1)
    took = round(time.monotonic() - began, 2)
    memory = watcher.memory_mb(control.pid(bed, f"gateway-{number}"))
    fresh = replace(target, base_urls=[target.base_urls[number]])
    async with Callers(fresh, 1) as way:
        listed = await way.call("GET", f"/v1/sandboxes?run={RUN}")
    return {
        "ready_s": took,
        "memory_mb": memory,
        "held": watcher.held(bed),
        "listed": len(listed["sandboxes"]),
    }


def _allocator() -> int:
    """Which gateway decides just now."""
    query = ["get", "lease", names.ALLOCATOR_LEASE, "-o", "jsonpath={.spec.holderIdentity}"]
    held = kubectl(model.bed(), "-n", names.SYSTEM_NAMESPACE, *query)
    return int(held.removeprefix("gateway-")[:1])


async def abandon(target: model.Target, count: int, callers: int, ttl_s: float) -> dict[str, Any]:
    """So many sandboxes whose callers say nothing more."""
    bed = model.bed()
    meter = watcher.Meter(bed, watcher.pids(bed))
    async with Callers(target, callers) as way:
        await way.connect()
        got = await way.many(range(count), lambda _: way.create(lease={"ttl_s": ttl_s}))
    meter.writes()
    last = time.monotonic()
    with trio.fail_after(ttl_s + 300):
        while left := await trio.to_thread.run_sync(watcher.held, bed):
            print(f"{time.monotonic() - last:.0f} s: {left} held", file=sys.stderr)
            await trio.sleep(2)
    took = time.monotonic() - last
    return {
        "allocated": got.told(),
        "ttl_s": ttl_s,
        "gone_after_s": round(took, 1),
        "beyond_ttl_s": round(took - ttl_s, 1),
        "writes": meter.writes(),
        "cpu_s": meter.cpu(),
    }


async def broken(target: model.Target, count: int, callers: int) -> dict[str, Any]:
    """Three faults while so many are held: a gateway killed, the API server started anew, a tenth of nodes lost."""
    bed = model.bed()
    told: dict[str, Any] = {}
    async with Callers(target, callers) as way:
        await way.connect()
        got = await way.many(range(count), lambda _: way.create(lease={"ttl_s": 1800}))
        luck = random.Random(3)
        one = lambda: way.exec(luck.choice(got.ids))  # noqa: E731
        told["before"] = (await way.paced(10, 50, one)).told()
        told["gateway_killed"] = await _under(way, one, functools.partial(_kill_gateway, bed), 30)
        told["api_server_restarted"] = await _under(
            way, one, functools.partial(control.restart_api_server, bed), 30
        )
        lost = range(max(1, nodes.count(target.pods) // 10))
        told["nodes_lost"] = await _under(way, one, functools.partial(faults.lose, bed, lost), 120)
        faults.find(bed, lost)
        told["held"] = watcher.held(bed)
        told["released"] = (await way.many(got.ids, way.release)).told()
    told["left"] = await _left(bed, 240)
    return told


async def _under(
    way: Callers, one: Callable[[], Awaitable[object]], fault: Callable[[], object], seconds: float
) -> dict[str, Any]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, fault)
        tally = await way.paced(seconds, 50, one)
    return tally.told()


def _kill_gateway(bed: Bed) -> None:
    control.stop(bed, "gateway-1", 0.0)
    control.start_gateway(bed, 1)


async def _refilled(target: model.Target, count: int) -> None:
    with trio.fail_after(120):
        while (
            min([await trio.to_thread.run_sync(free, target, url) for url in target.metrics])
            < count
        ):
            await trio.sleep(0.2)


async def _left(bed: Bed, seconds: float = 120) -> int:
    """Pods that are somebody's, at the latest after so many seconds."""
    with trio.move_on_after(seconds):
        while await trio.to_thread.run_sync(watcher.held, bed):
            await trio.sleep(1)
    return watcher.held(bed)


def say(what: str, told: object) -> None:
    """For who watches."""
    print(f"{time.strftime('%X')} {what}: {json.dumps(told)}", file=sys.stderr, flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale.measure", description=__doc__)
    parser.add_argument("what", choices=["burst", "sustained", "hold", "abandon", "broken"])
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--callers", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--ttl", type=float, default=60)
    options = parser.parse_args()
    target = model.Target.read()
    jobs = {
        "burst": (burst, (options.count, options.callers)),
        "sustained": (sustained, (options.seconds, options.rate)),
        "hold": (hold, (options.count, options.callers, options.seconds, options.rate)),
        "abandon": (abandon, (options.count, options.callers, options.ttl)),
        "broken": (broken, (options.count, options.callers)),
    }
    job, arguments = jobs[options.what]
    began = time.strftime("%F %T")
    told: dict[str, Any] = trio.run(job, target, *arguments)  # type: ignore[arg-type]
    line = json.dumps({"what": options.what, "at": began, "command": sys.argv[1:], **told})
    print(line)
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    with Path(REPORT).open("a") as file:
        file.write(f"{line}\n")


if __name__ == "__main__":
    main()
