"""What control is worth: the reference patches of three real tasks, and one test with a limit of time, evaluated again and again
while neighbours on the node burn cpu, memory bandwidth and disk; in the pool for evaluations and in one like any other.

    python -m tests.cluster.controlled --times 100

The cluster is up (`make cluster-up`). Prints a table of flips, and writes every record below `build/controlled`; certificates are verified,
and one of them again with a byte changed.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from sandman import certificates
from tests.cluster import bed as beds
from tests.cluster import deployed, pools
from tests.tasks import catalog, fetch, small
from tests.tasks.rows import RealRow
from tests.tasks.small import END, SMALL, START

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import sandman
    from sandman import EvaluationReport

OUT = Path("build/controlled")
LIMIT_S, WORK = 2.5, "sum(i * i for i in range(9_000_000))"
"""The test with a limit."""
EVAL = "deployment/sandman-pool-eval"
SHARED = "shared"
"""The pool without control: little is set aside for its sandboxes, as is usual for rollouts."""
NEIGHBOURS: Mapping[str, str] = {
    "cpu-1": "while :; do :; done",
    "cpu-2": "while :; do :; done",
    "memory": "python3 -c 'a = bytearray(96 << 20)\nwhile True: b = bytes(a)'",
    "disk": "while :; do dd if=/dev/zero of=/tmp/x bs=1M count=64 conv=fsync 2>/dev/null; done",
}
BUSY = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "512Mi"}}


def rows(image: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each task, and how it is evaluated."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for task in (catalog.H11, catalog.SQLPARSE, catalog.TOMLKIT):
        real = RealRow(fetch.materials(task), image)
        found.append((real.row(), {"workdir": real.workdir, "setup": real.setup}))
    timed = f"timeout {LIMIT_S} python3 -c '{WORK}' && cat result || echo FAILED t"
    found.append((small.row(image, START, timed, END, name="limit__of-time"), SMALL))
    return found


@contextlib.asynccontextmanager
async def neighbours(client: sandman.Client, image: str) -> AsyncIterator[None]:
    """They burn what there is, in sandboxes of rollouts."""
    async with contextlib.AsyncExitStack() as stack:
        for name, script in NEIGHBOURS.items():
            box = await stack.enter_async_context(
                client.sandbox(image=image, pool="busy", run="neighbours", wait_s=300)
            )
            await box.start(["sh", "-c", script], exec_id=name, detached=True)
        yield


async def arm(client: sandman.Client, image: str, pool: str, times: int) -> list[EvaluationReport]:
    """All tasks so many times in a pool."""
    reports = []
    for row, how in rows(image):
        sandbox = {**how.get("sandbox", {}), "pool": pool, "wait_s": 300.0}
        options = {**how, "sandbox": sandbox, "times": times, "concurrency": 1}
        out = OUT / pool / row["instance_id"]
        began = time.monotonic()
        reports.append(await client.evaluate([row], "gold", out, **options))
        say(
            f"{pool} {row['instance_id']}: {reports[-1].counts} in {time.monotonic() - began:.0f} s"
        )
    return reports


def verified(reports: Sequence[EvaluationReport], keys: Mapping[str, bytes]) -> Counter[str]:
    """What the certificates say, once each is proven.

    Raises:
        CertificateError: one is not.
    """
    found: Counter[str] = Counter()
    for report in reports:
        for record in report.records:
            if record.certificate is None:
                found["none"] += 1
                continue
            one = certificates.verify(record.certificate, keys)
            found[one.verdict] += 1
            found.update(f"because of {reason.code}" for reason in one.reasons)
    return found


def tampered_is_refused(envelope: Mapping[str, Any], keys: Mapping[str, bytes]) -> bool:
    """Whether one that says something else is not believed."""
    text = base64.b64decode(envelope["payload"]).replace(b'"uncontrolled"', b'"controlled"')
    changed = text.replace(b'"exit_code":0', b'"exit_code":1')
    try:
        certificates.verify({**envelope, "payload": base64.b64encode(changed).decode()}, keys)
    except certificates.CertificateTamperedError:
        return True
    return False


async def main(times: int) -> int:
    """Both arms; 1 where control let one flip."""
    made = deployed.deploy(beds.Bed.from_env())
    image = made.image("python")
    pools.make(made, "busy", BUSY, 2)
    little = {
        "requests": {"cpu": "10m", "memory": "64Mi"},
        "limits": {"cpu": "1", "memory": "256Mi"},
    }
    pools.make(made, SHARED, little)
    # Each in a new pod: the node has one processor to give away, and a placeholder would keep it from them.
    made.kubectl("scale", EVAL, "--replicas=0")
    try:
        async with made.client() as client, neighbours(client, image):
            controlled = await arm(client, image, "eval", times)
            usual = await arm(client, image, SHARED, times)
            keys = await client.certificate_keys()
    finally:
        for pool in ("busy", SHARED):
            pools.remove(made, pool)
    say("| task | controlled: resolved, flips | not: resolved, flips |\n|---|---|---|")
    for one, other in zip(controlled, usual, strict=True):
        say(f"| {one.instances[0]} | {_told(one)} | {_told(other)} |")
    say(f"certificates with control: {dict(verified(controlled, keys))}")
    say(f"certificates without: {dict(verified(usual, keys))}")
    envelope = next(one.certificate for one in controlled[0].records if one.certificate)
    say(f"a changed certificate is refused: {tampered_is_refused(envelope, keys)}")
    (OUT / "keys.json").write_text(json.dumps(certificates.keys_to_json(keys.values())))
    return int(any(one.flips or not one.is_whole for one in controlled))


def _told(report: EvaluationReport) -> str:
    return f"{report.counts['resolved']} of {len(report.records)}, {report.flips}"


def say(text: str) -> None:
    """For who watches."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.controlled", description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    sys.exit(trio.run(main, parser.parse_args().times))
