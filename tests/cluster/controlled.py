"""What control is worth: the reference patches of three real tasks, and one test with a limit of time, evaluated again and again
while neighbours on the node burn cpu, memory bandwidth and disk; in the pool for evaluations and in one like any other.

    python -m tests.cluster.controlled --arm eval --times 100 --minutes 20 --out DIR
    python -m tests.cluster.controlled --arm shared --times 100 --minutes 20 --out DIR
    python -m tests.cluster.controlled --arm throttled --times 3 --only limit --out DIR
    python -m tests.cluster.controlled table --out DIR

The cluster is up (`make cluster-up`). Each goes on where the last one with this DIR was, on another cluster, too: records, keys, the limit and
what the neighbours burnt are kept there. `table` needs no cluster; it verifies every certificate.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from sandman import certificates, names
from tests.cluster import bed as beds
from tests.cluster import controlled_rows, controlled_table, deployed, neighbours, pools
from tests.cluster.controlled_rows import PROGRAM, TIMED, Setting

if TYPE_CHECKING:
    import sandman
    from sandman import EvaluationProgress
    from tests.cluster.deployed import Deployed

OUT = Path("build/controlled")
EVAL, SHARED, THROTTLED = "eval", "shared", "throttled"
LITTLE = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
"""Without control: little is set aside, as is usual for rollouts."""
HELD = {"cpu": "100m", "memory": "256Mi"}
"""Of class Guaranteed, and its limit of cpu is less than what neighbours leave it, so that it is the limit that holds it."""
PURPOSE = {EVAL: "eval", SHARED: "train", THROTTLED: "eval"}
AT_ONCE = {EVAL: 1, SHARED: 3, THROTTLED: 1}
"""There is one processor to give away. The test with the limit is alone in each arm, so that neighbours are what slows it."""
QUIET_RUNS = 7
SERVICES = {"sandman-gateway": "100m", "sandman-webhook": "50m"}
"""The overlay for tests gives them next to nothing. What is measured is what becomes of evaluations, not how long they wait for a gateway
that the neighbours starve."""


async def quiet(client: sandman.Client, image: str) -> list[float]:
    """What the test takes with control and without neighbours, in seconds."""
    argv = ["python3", "-c", f"{PROGRAM}print(took)"]
    async with client.sandbox(image=image, pool=EVAL, purpose="eval", wait_s=300) as box:
        done = [await box.exec(argv, check=True) for _ in range(QUIET_RUNS)]
    return [float(one.stdout_text) for one in done]


async def settled(client: sandman.Client, made: Deployed, out: Path) -> Setting:
    """The setting of the pieces before, or a new one."""
    file, image = out / "setting.json", controlled_rows.published(made.bed)
    if not file.exists():
        Setting.calibrated(image, await quiet(client, image)).write(file)
    setting = Setting.read(file)
    if setting.image != image:
        raise SystemExit(f"{file} is of another image, {setting.image}: take another --out")
    say(f"on a quiet node {setting.quiet_s} s, so the limit is {setting.limit_s} s")
    return setting


async def keep_keys(client: sandman.Client, out: Path) -> None:
    """Each by its own name: every new cluster has others."""
    (out / "keys").mkdir(exist_ok=True)
    for name, key in (await client.certificate_keys()).items():
        text = json.dumps(certificates.keys_to_json([key]))
        (out / "keys" / f"{name}.json").write_text(text)


async def series(client: sandman.Client, wanted: argparse.Namespace, setting: Setting) -> None:
    """The arm's evaluations that are left, task after task."""
    arm = wanted.arm
    for row, how, left_out in controlled_rows.rows(setting):
        name = row["instance_id"]
        if wanted.only and not any(part in name for part in wanted.only):
            continue
        sandbox = {**how.get("sandbox", {}), "pool": arm, "purpose": PURPOSE[arm], "wait_s": 300.0}
        options: dict[str, Any] = {**how, "sandbox": sandbox, "times": wanted.times}
        if left_out:
            say(f"{name}: {left_out} tests left out, which the log does not tell whole")
        await client.evaluate(
            [row], "gold", wanted.out / arm / name, **options,
            concurrency=1 if name == TIMED else AT_ONCE[arm], on_progress=Told(f"{arm} {name}"),
        )  # fmt: skip


class Told:
    """Says how far a series is, and what it takes."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.began = time.monotonic()

    def __call__(self, progress: EvaluationProgress) -> None:
        one, new = progress.record, progress.done - progress.resumed
        if one is None:
            say(f"{self.what}: {progress.resumed} of {progress.total} are there")
            return
        each = (time.monotonic() - self.began) / new
        why = "" if one.reason is None else f" ({one.reason} {one.detail[-200:]})"
        wall = one.facts.get("wall_s")
        say(
            f"{self.what}: {progress.done}: {one.outcome}{why}, ready {one.facts.get('ready_ms')} ms, script {wall} s; {each:.1f} s each"
        )


async def piece(made: Deployed, wanted: argparse.Namespace) -> list[str]:
    """A part of an arm, and who of the neighbours did not burn meanwhile."""
    async with made.client() as client:
        await keep_keys(client, wanted.out)
        setting = await settled(client, made, wanted.out)
        # Only now: the sandbox in which the limit was found needs the room.
        make_pools(made, wanted.arm)
        async with neighbours.burn(client, made.image("python")) as boxes:
            # Or new placeholders would have the room of a sandbox for evaluations.
            for kind in neighbours.KINDS:
                pools.remove(made, neighbours.pool_of(kind))
            begin = await neighbours.samples(boxes)
            with trio.move_on_after(60 * wanted.minutes):
                await series(client, wanted, setting)
            end = await neighbours.samples(boxes)
        burnt = {
            kind: neighbours.Burnt.between(kind, begin[kind], end[kind])
            for kind in neighbours.KINDS
        }
        controlled_table.keep_burnt(wanted.out, wanted.arm, list(burnt.values()))
        await keep_keys(client, wanted.out)
    say(f"{wanted.arm}: neighbours: {neighbours.told(burnt)}")
    return neighbours.lacking(burnt)


def prepare(made: Deployed) -> None:
    """Services that answer, and room: a piece that was killed leaves what it had until its leases end."""
    made.sweep()
    for name, cpu in SERVICES.items():
        system = ["-n", names.SYSTEM_NAMESPACE]
        beds.kubectl(made.bed, *system, "set", "resources", f"deployment/{name}", f"--requests=cpu={cpu}")  # fmt: skip
        beds.kubectl(made.bed, *system, "rollout", "status", f"deployment/{name}")
    # Each in a new pod: the node has one processor to give away, and a placeholder would keep it from them.
    made.kubectl("scale", "deployment/sandman-pool-eval", "--replicas=0")


def make_pools(made: Deployed, arm: str) -> None:
    """Those of the neighbours, and the arm's own."""
    for kind in neighbours.KINDS:
        pools.make(made, neighbours.pool_of(kind), neighbours.resources(kind))
    if arm == SHARED:
        pools.make(made, SHARED, LITTLE, AT_ONCE[SHARED])
    if arm == THROTTLED:
        pools.make(made, THROTTLED, {"requests": HELD, "limits": HELD}, purpose="eval")


def measure(wanted: argparse.Namespace) -> int:
    """A piece; 1 when the neighbours did not burn."""
    wanted.out.mkdir(parents=True, exist_ok=True)
    made = deployed.deploy(beds.Bed.from_env())
    prepare(made)
    try:
        idle = trio.run(piece, made, wanted)
    finally:
        for pool in (*map(neighbours.pool_of, neighbours.KINDS), SHARED, THROTTLED):
            pools.remove(made, pool)
    for one in idle:
        say(f"no measurement: {one}")
    return int(bool(idle))


def table(wanted: argparse.Namespace) -> int:
    """All that is kept; 1 when it does not show what it should."""
    found = controlled_table.read(wanted.out)
    say("\n".join(found.lines()))
    for one in found.against():
        say(f"against: {one}")
    return int(bool(found.against()))


def say(text: str) -> None:
    """For who watches."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster.controlled", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("command", nargs="?", choices=["run", "table"], default="run")
    parser.add_argument("--arm", choices=list(PURPOSE), default=EVAL)
    parser.add_argument("--only", nargs="+", help="parts of tasks' names")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=OUT)
    wanted = parser.parse_args()
    return table(wanted) if wanted.command == "table" else measure(wanted)


if __name__ == "__main__":
    sys.exit(main())
