"""Measures on the scale bed: `python -m tests.scale.measure burst --count 300`. Each prints one line of JSON."""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from tests.cluster.bed.kube import kubectl
from tests.scale import control, faults, floor, model, watcher
from tests.scale.caller import Callers
from tests.scale.tenants import free

if TYPE_CHECKING:
    from collections.abc import Sequence

REPORT = model.TARGET.parent / "report.jsonl"
RUN = "scale"
EXECS = 2000
"""For a median that a few slow ones do not move."""


async def burst(target: model.Target, count: int, callers: int) -> dict[str, Any]:
    """So many claims in one moment, and the bare patch as control."""
    bed = model.bed()
    bare = await floor.claims(bed.state / "sandman-gateway.kubeconfig", count)
    await _refilled(target, count)
    meter = watcher.Meter(bed, watcher.pids(bed))
    async with Callers(target, callers) as way:
        await way.connect()
        got = await way.many(range(count), lambda _: way.create())
        costs = {"writes": meter.writes(), "cpu_s": meter.cpu(), "memory_mb": meter.memory()}
        gone = await way.many(got.ids, way.release)
    left = await _left(bed)
    return {
        "claims": got.told(),
        "bare": bare.told(),
        "p99_of_bare": round(got.ms(0.99) / bare.ms(0.99), 2),
        "wall_of_bare": round(got.wall_s / bare.wall_s, 2),
        "released": gone.told(),
        "left": left,
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
    """So many sandboxes at once: allocated, held with one run's heartbeats and so many commands a second, released."""
    bed = model.bed()
    told: dict[str, Any] = {"load": os.getloadavg()[0]}
    meter = watcher.Meter(bed, watcher.pids(bed))
    async with Callers(target, callers) as way, Callers(target, 8) as beside:
        await way.connect()
        few = await way.many(range(min(100, count)), lambda _: way.create(run=RUN))
        told["exec_at_100"] = await execs(way, few.ids, EXECS, 4)
        way.at_once = callers
        got = await way.many(range(count - len(few.ids)), lambda _: way.create(run=RUN))
        ids = [*few.ids, *got.ids]
        got.ids = ids
        told |= {"allocated": got.told(), "writes_allocating": meter.writes()}
        told["memory_mb"] = meter.memory()
        say(f"{len(ids)} are held", told)
        told["exec_at_all"] = await execs(way, ids, EXECS, 4)
        before = meter.cpu()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_beat, beside)
            luck = random.Random(2)
            steady = await way.paced(seconds, rate, lambda: way.exec(luck.choice(ids)))
            nursery.cancel_scope.cancel()
        after = meter.cpu()
        told["held"] = steady.told() | {"pods": watcher.held(bed)}
        told["cpu_s_holding"] = {name: round(after[name] - before[name], 2) for name in after}
        told["writes_holding"] = meter.writes()
        told["memory_mb_after"] = meter.memory()
        way.at_once = callers
        told["released"] = (await way.many(ids, way.release)).told()
    told["left"] = await _left(bed)
    told["writes_releasing"] = meter.writes()
    return told


async def _beat(way: Callers) -> None:
    while True:
        await way.call("POST", f"/v1/runs/{RUN}/heartbeat", {})
        await trio.sleep(15)


async def restart(target: model.Target, count: int, callers: int) -> dict[str, Any]:
    """A gateway is killed and started again with so many sandboxes held."""
    bed = model.bed()
    told: dict[str, Any] = {}
    async with Callers(target, callers) as way:
        await way.connect()
        got = await way.many(range(count), lambda _: way.create(lease={"ttl_s": 600}))
        number = _allocator(target)
        control.stop(bed, f"gateway-{number}", 0.0)
        began = time.monotonic()
        control.start_gateway(bed, number)
        port = model.GATEWAY_PORT + number
        with trio.fail_after(120):
            while not await trio.to_thread.run_sync(control.is_ready, port):
                await trio.sleep(0.1)
        told["ready_s"] = round(time.monotonic() - began, 2)
        told["held"] = watcher.held(bed)
        told["memory_mb"] = watcher.memory_mb(control.pid(bed, f"gateway-{number}"))
    fresh = model.Target(**{**vars_of(target), "base_urls": [target.base_urls[number]]})
    async with Callers(fresh, 64) as way:
        told["exec"] = await execs(way, got.ids, 500, 4)
        told["released"] = (await way.many(got.ids, way.release)).told()
    told["left"] = await _left(bed)
    return told


def _allocator(target: model.Target) -> int:
    """Which gateway decides just now."""
    text = kubectl(
        model.bed(), "-n", "sandman-system", "get", "lease", "sandman-allocator",
        "-o", "jsonpath={.spec.holderIdentity}",
    )  # fmt: skip
    return int(text.rpartition("-")[2].partition("@")[0].partition("_")[0])


def vars_of(target: model.Target) -> dict[str, Any]:
    """Its fields."""
    return {name: getattr(target, name) for name in target.__slots__}


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
        nodes = list(range(4))
        told["nodes_lost"] = await _under(way, one, functools.partial(faults.lose, bed, nodes), 120)
        faults.find(bed, nodes)
        told["held"] = watcher.held(bed)
        told["released"] = (await way.many(got.ids, way.release)).told()
    told["left"] = await _left(bed, 240)
    return told


async def _under(way: Callers, one: Any, fault: Any, seconds: float) -> dict[str, Any]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, fault)
        tally = await way.paced(seconds, 50, one)
    return tally.told()


def _kill_gateway(bed: Any) -> None:
    control.stop(bed, "gateway-1", 0.0)
    control.start_gateway(bed, 1)


async def _refilled(target: model.Target, count: int) -> None:
    with trio.fail_after(120):
        while (
            min([await trio.to_thread.run_sync(free, target, url) for url in target.base_urls])
            < count
        ):
            await trio.sleep(0.2)


async def _left(bed: Any, seconds: float = 120) -> int:
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
    parser.add_argument(
        "what", choices=["burst", "sustained", "hold", "restart", "abandon", "broken"]
    )
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
        "restart": (restart, (options.count, options.callers)),
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
