"""Heartbeats of runs: one Lease object for each tenant and run in the first sandbox namespace, one small write
each. Not beside the allocator's lock: the right to delete there could not be kept from that.

That a Lease changes is what counts, and when this replica sees it: no time in it is compared with anything.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog
import trio

from gateway import leases
from gateway.provider.kubernetes import translate
from sandman import names
from sandman.service import kube

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable
    from datetime import datetime

    from gateway.ground import RunKey
    from gateway.leases import Ledger
    from gateway.model import Instance

log = structlog.get_logger()

KEEP_S = leases.RUN_KEEP_S
LEASES = f"{names.LABEL_RUN},!{names.LABEL_ATTACHED}"
"""Selects the Leases of runs. An attachment's bears the name of its run, too; it is no heartbeat, and to tidy it
away would give a container free that somebody is attached to."""
BUFFER = 64
"""Changes between the watch and the ledger."""
TIDY_AT_ONCE = 4
"""Deletions in flight: nobody waits for them."""


class Runs:
    """Writes, watches and deletes the Leases of runs.

    Args:
        api: the API server.
        namespace: where the Leases are.
        ledger: is told of heartbeats, on trio's clock.
        wall: the time of day, written for people.
        attached: attachments to workloads, which keep the Leases of their runs, too.
    """

    def __init__(
        self,
        api: kube.Kube,
        namespace: str,
        ledger: Ledger,
        wall: Callable[[], datetime],
        attached: Callable[[], Iterable[Instance]] = tuple,
    ) -> None:
        self._attached = attached
        self._api = api
        self._namespace = namespace
        self._ledger = ledger
        self._wall = wall
        self._known: dict[tuple[str, str], kube.Lease] = {}

    def __repr__(self) -> str:
        return f"<Runs {len(self._known)}>"

    async def beat(self, key: RunKey, ttl_s: float) -> None:
        """Write a heartbeat.

        Args:
            key: whose.
            ttl_s: what its Lease says of how long it holds, for people.

        Raises:
            SandmanError: it was not written, or nobody knows.
        """
        began = trio.current_time()
        stamp = kube.micro_time(self._wall())
        spec = {"renewTime": stamp, "leaseDurationSeconds": max(1, math.ceil(ttl_s))}
        try:
            try:
                await self._patch(key, spec)
            except kube.NotFoundError:
                with suppress(kube.AlreadyExistsError):
                    await self._create(key, {**spec, "acquireTime": stamp})
        except kube.KubeError as error:
            raise translate(error) from error
        self._ledger.beat(key.tenant, key.run, began)

    async def _patch(self, key: RunKey, spec: dict[str, Any]) -> None:
        await self._api.patch_merge(
            kube.LEASES, key.lease_name, {"spec": spec}, namespace=self._namespace, idempotent=True
        )

    async def _create(self, key: RunKey, spec: dict[str, Any]) -> None:
        labels = {
            "app.kubernetes.io/part-of": "sandman",
            names.LABEL_TENANT: key.tenant,
            names.LABEL_RUN: key.run,
        }
        body = {
            "metadata": {"name": key.lease_name, "labels": labels},
            "spec": {**spec, "holderIdentity": key.run},
        }
        await self._api.create(kube.LEASES, body, namespace=self._namespace)

    async def end(self, key: RunKey) -> None:
        """Delete the Lease of a run that will have no more heartbeats, unless one comes meanwhile.

        Raises:
            SandmanError: it is not gone, or nobody knows.
        """
        try:
            lease = await self._api.get(kube.LEASES, key.lease_name, namespace=self._namespace)
            await self._remove(lease)
        except (kube.NotFoundError, kube.ConflictError):
            return
        except kube.KubeError as error:
            raise translate(error) from error

    async def confirm(self, key: RunKey) -> None:
        """Look at the Lease itself: the watch may be behind. A heartbeat that it did not tell of counts as new.

        Raises:
            SandmanError: nobody knows.
        """
        began = trio.current_time()
        try:
            lease = await self._api.get(kube.LEASES, key.lease_name, namespace=self._namespace)
        except kube.NotFoundError:
            return
        except kube.KubeError as error:
            raise translate(error) from error
        known = self._known.get((key.tenant, key.run))
        if known is None or _version(known) != _version(lease):
            self._see(lease, began)

    async def run(self) -> None:
        """Follow all Leases of runs until cancelled."""
        reflector = kube.Reflector(
            self._api, kube.LEASES, namespace=self._namespace, label_selector=LEASES
        )
        into, out = trio.open_memory_channel[kube.Change[kube.Lease]](BUFFER)
        async with out, trio.open_nursery() as nursery:
            nursery.start_soon(reflector.run, into)
            async for change in out:
                if isinstance(change, kube.Deleted):
                    self._gone(change.object)
                elif not isinstance(change, kube.Synced):
                    self._see(change.object, trio.current_time())

    def _see(self, lease: kube.Lease, at: float) -> None:
        key = _key(lease)
        self._known[key] = lease
        self._ledger.beat(*key, at)

    def _gone(self, lease: kube.Lease) -> None:
        key = _key(lease)
        self._known.pop(key, None)
        self._ledger.stopped(*key)

    async def tidy(self, living: Container[tuple[str, str]], now: float) -> None:
        """Delete the Leases of runs that have no sandbox, and had no heartbeat for a while.

        Args:
            living: tenant and name of the runs that have sandboxes.
            now: trio's clock.
        """
        beats = self._ledger.runs()
        attached = {(one.tenant or "", one.run or "") for one in self._attached()}
        limiter = trio.CapacityLimiter(TIDY_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for key, lease in list(self._known.items()):
                is_needed = key in living or key in attached
                if not is_needed and now - beats.get(key, -math.inf) >= KEEP_S:
                    nursery.start_soon(self._delete, lease, limiter)

    async def _delete(self, lease: kube.Lease, limiter: trio.CapacityLimiter) -> None:
        async with limiter:
            try:
                await self._remove(lease)
            except (kube.NotFoundError, kube.ConflictError):
                return
            except kube.KubeError as error:
                name = lease.metadata.name
                log.info("the lease of a run stays for now", lease=name, error=str(error))

    async def _remove(self, lease: kube.Lease) -> None:
        """Exactly this version: a heartbeat in between is more than anybody knew who decided."""
        meta = lease.metadata
        deletion = kube.Deletion(uid=meta.uid, resource_version=meta.resource_version)
        await self._api.delete(
            kube.LEASES, meta.name, deletion, namespace=self._namespace, idempotent=True
        )


def _key(lease: kube.Lease) -> tuple[str, str]:
    meta = lease.metadata
    return meta.label(names.LABEL_TENANT), meta.label(names.LABEL_RUN)


def _version(lease: kube.Lease) -> tuple[str, str]:
    return lease.metadata.uid, lease.metadata.resource_version
