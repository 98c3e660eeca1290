"""The whole load: callers and faults beside each other, then quiet, then the look at what is left."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import ssl
from typing import TYPE_CHECKING, Any

import trio

import sandman as sdk
from sandman import names
from sandman.errors import SandmanError
from tests.cluster import faults
from tests.cluster import pools as cluster_pools
from tests.cluster.bed import BedError
from tests.mixed import plan
from tests.mixed.callers import Caller, Site
from tests.mixed.harm import Harm
from tests.mixed.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.deployed import Deployed

CALLERS = 6
QUIET_S = 240.0
"""Seconds after the load until nothing is left that nobody holds: a new leader ends no lapsed lease for a minute,
what nobody came for is kept for half of one, and a lease of a cut connection for CUT_TTL_S; beside pods that stop."""
LOOK_EVERY_S = 2.0
NEW_POOL = "mixed-new"
"""A pool without placeholders: each of its sandboxes is a new pod."""
WARM_POOL = "mixed-warm"
"""A pool whose placeholders have what commands need, and are taken as they are."""
WARM = 3


class Load:
    """One load.

    Args:
        deployed: against what.
        seed: of everything that is drawn.
        seconds: how long.
        gap_s: between two faults, in the mean.
    """

    def __init__(self, deployed: Deployed, seed: int, seconds: float, gap_s: float) -> None:
        self.ledger = Ledger(_say)
        self.harm = Harm(deployed)
        self._deployed = deployed
        self._seed = seed
        self._seconds = seconds
        self._gap_s = gap_s
        self._began = 0.0
        site = site_of(deployed)
        self.callers = [Caller(n, seed, site, self.ledger, self.now) for n in range(CALLERS)]

    def __repr__(self) -> str:
        return f"<Load seed={self._seed}>"

    def now(self) -> float:
        """Seconds since the beginning."""
        return trio.current_time() - self._began

    async def run(self) -> None:
        """All of it; what is wrong stands in the ledger."""
        self._began = trio.current_time()
        async with contextlib.AsyncExitStack() as opened:
            for caller in self.callers:
                await opened.enter_async_context(caller.open())
            async with trio.open_nursery() as nursery:
                for caller in self.callers:
                    nursery.start_soon(caller.load, self._seconds)
                nursery.start_soon(self._go_wrong)
            await trio.to_thread.run_sync(self.harm.restore)
            held = len(self.ledger.held)
            _say(f"{self.now():.0f} s: the load is over, {held} are held")
            await self._settle()
            took = await self._until_equal()
            _say(f"{self.now():.0f} s: equal {took:.1f} s after the load")
            await self._look()
            await self._let_all_go()

    # --- faults ---

    async def _go_wrong(self) -> None:
        async with trio.open_nursery() as nursery:
            for mishap in plan.mishaps(self._seed, self._seconds, self._gap_s):
                await trio.sleep(max(0.0, mishap.at - self.now()))
                await self._hit(mishap, nursery)

    async def _hit(self, mishap: plan.Mishap, nursery: trio.Nursery) -> None:
        # Without the API server nothing but itself can be hit.
        await trio.to_thread.run_sync(self.harm.wait_for_api)
        try:
            held = sorted(one.pod for one in self.ledger.held.values())
            target = await trio.to_thread.run_sync(self.harm.target, mishap, held)
            felt = self.ledger.began(mishap.fault, self.now(), target)
            _say(f"{self.now():.1f} s: {mishap.fault.value} {target or ''}")
            await trio.to_thread.run_sync(self.harm.do, mishap, target)
        except (BedError, AssertionError, OSError) as error:
            # As when the pod that was chosen went in the same moment.
            self.ledger.counts[f"missed: {mishap.fault.value}"] += 1
            _say(f"{self.now():.1f} s: missed: {mishap.fault.value}: {error}")
            return

        async def watch() -> None:
            await trio.to_thread.run_sync(self.harm.wait_over, mishap)
            self.ledger.over(felt, self.now())

        nursery.start_soon(watch)

    # --- the end ---

    async def _settle(self) -> None:
        for caller in self.callers:
            with trio.fail_after(60):
                while True:
                    with contextlib.suppress(SandmanError):
                        await caller.settle()
                        break
                    await trio.sleep(1)

    async def _until_equal(self) -> float:
        """Wait until the pods are what callers hold; how long that took."""
        began, different = self.now(), ["not looked at"]
        while different and self.now() < began + QUIET_S:
            await trio.sleep(LOOK_EVERY_S)
            different = self.ledger.compare(await trio.to_thread.run_sync(self._leased))
        self.ledger.blame(different)
        for tenant, lists in (await self._lists()).items():
            own = {one.id for one in self.ledger.held.values() if one.tenant == tenant}
            hit = {one.id for one in self.ledger.held.values() if self.ledger.wrecks(one.pod)}
            for address, ids in lists.items():
                if ids - hit != own - hit:
                    self.ledger.blame([f"{address} lists for {tenant}: {sorted(ids ^ own)}"])
        return self.now() - began

    def _leased(self) -> dict[str, str]:
        """Tenants of all pods that are sandboxes and live, by id."""
        selector = f"{names.LABEL_STATE}={names.STATE_LEASED}"
        text = self._deployed.kubectl("get", "pods", "-l", selector, "-o", "json")
        return {
            f"{one['metadata']['name']}-{one['metadata']['uid'][:8]}": one["metadata"]["labels"][
                names.LABEL_TENANT
            ]
            for one in json.loads(text)["items"]
            if "deletionTimestamp" not in one["metadata"]
            and one["status"].get("phase") in ("Pending", "Running")
        }

    async def _lists(self) -> dict[str, dict[str, set[str]]]:
        """What each replica says that each tenant has; what has ended is told for a while."""
        made = self._deployed.installation
        addresses = await trio.to_thread.run_sync(faults.gateway_addresses, self._deployed)
        found: dict[str, dict[str, set[str]]] = {}
        for caller in self.callers[:2]:
            token = caller.client.settings.token
            lists = found[caller.tenant] = {}
            for address in addresses:
                url = f"https://{address}:{names.GATEWAY_PORT}"
                async with sdk.Client(
                    url, token, ca=made.ca, server_name=made.server_name
                ) as client:
                    boxes = await client.list()
                    lists[address] = {box.id for box in boxes if box.info.state != "ended"}
        return found

    async def _look(self) -> None:
        """Each that is held, asked by its caller."""

        async def look(caller: Caller) -> None:
            for one in caller.held:
                if self.ledger.wrecks(one.pod):
                    continue
                self.ledger.counts["looked at in the end"] += 1
                try:
                    self.ledger.blame(await caller.look(one))
                except SandmanError as error:
                    self.ledger.blame([f"{one.id}: it does not answer in the end: {error}"])

        async with trio.open_nursery() as nursery:
            for caller in self.callers:
                nursery.start_soon(look, caller)

    async def _let_all_go(self) -> None:
        for caller in self.callers:
            for one in caller.held:
                await caller.client.release(one.id)
                self.ledger.let_go(one)

    def report(self) -> str:
        """What was done and seen, for people."""
        counts = sorted(self.ledger.counts.items())
        lines = [
            f"seed {self._seed}, {self._seconds:.0f} s of load, {len(self.ledger.faults)} faults, load average"
            f" {os.getloadavg()[0]:.1f}; {self.harm.gone} watches were told that they are too old",
            ", ".join(f"{name}: {count}" for name, count in counts),
            f"{len(self.ledger.failures)} failures told, {len(self.ledger.wrong)} things wrong",
            *(f"WRONG: {one}" for one in self.ledger.wrong),
        ]
        return "\n".join(lines)


def _say(text: str) -> None:
    print(text, flush=True)


def site_of(deployed: Deployed) -> Site:
    """Where the load goes on the test cluster."""
    made = deployed.installation
    root = {"pool": "root"}
    return Site(
        url=made.url,
        ca=ssl.create_default_context(cafile=str(made.ca)),
        server_name=made.server_name,
        tokens={"demo": made.token, "other": made.other_token},
        asks={
            plan.Way.WARM: {"pool": WARM_POOL},
            plan.Way.SWAP: {**root, "image": deployed.image("busybox")},
            plan.Way.COLD: {"pool": NEW_POOL, "image": deployed.image("debian")},
        },
        reserved={**root, "image": deployed.image("busybox")},
    )


@contextlib.contextmanager
def pools(deployed: Deployed) -> Iterator[None]:
    """The load's own pools, for the length of the block."""
    text = deployed.kubectl("get", "deployment", "sandman-pool-root", "-o", "json")
    root = json.loads(text)["spec"]
    made = (
        _pool(root, NEW_POOL, deployed.image("debian"), 0),
        _pool(root, WARM_POOL, deployed.image("busybox"), WARM),
    )
    for one in made:
        cluster_pools.apply(deployed, one)
    try:
        deployed.kubectl("rollout", "status", f"deployment/{WARM_POOL}", "--timeout=120s")
        yield
    finally:
        deployed.kubectl("delete", "deployment", NEW_POOL, WARM_POOL, "--ignore-not-found")


def _pool(root: dict[str, Any], name: str, image: str, replicas: int) -> dict[str, Any]:
    spec = copy.deepcopy(root)
    labels = {names.LABEL_POOL: name}
    spec["replicas"] = replicas
    spec["selector"]["matchLabels"] |= labels
    spec["template"]["metadata"]["labels"] |= labels
    spec["template"]["spec"]["containers"][0]["image"] = image
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {names.ANNOTATION_POOL_SWAP: "true"},
        },
        "spec": spec,
    }
