"""A fake of the Lease API: real versions, real conflicts, and a network in front."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import trio

from sandman.service import kube

T0 = datetime(2026, 11, 29, tzinfo=UTC)


class Server:
    """One Lease, with what the API server does to it."""

    def __init__(self) -> None:
        self.lease: kube.Lease | None = None
        self._versions = itertools.count(1)

    def get(self) -> kube.Lease:
        if self.lease is None:
            raise kube.NotFoundError("no lease", status=404)
        return self.lease

    def create(self, body: dict) -> kube.Lease:
        if self.lease is not None:
            raise kube.AlreadyExistsError("taken", status=409)
        return self._store(body["spec"])

    def patch(self, patch: dict) -> kube.Lease:
        wanted = patch["metadata"].get("resourceVersion")
        if wanted not in {None, self.get().metadata.resource_version}:
            raise kube.ConflictError("another version", status=409)
        old = self.lease.spec
        merged = {
            "holderIdentity": old.holder_identity,
            "leaseDurationSeconds": old.lease_duration_seconds,
            "renewTime": old.renew_time,
            "acquireTime": old.acquire_time,
            "leaseTransitions": old.lease_transitions,
        } | patch["spec"]
        return self._store(merged)

    def _store(self, spec: dict) -> kube.Lease:
        meta = kube.ObjectMeta(name="l", uid="u", resource_version=str(next(self._versions)))
        self.lease = kube.Lease(
            metadata=meta,
            spec=kube.LeaseSpec(
                holder_identity=spec.get("holderIdentity"),
                lease_duration_seconds=spec.get("leaseDurationSeconds"),
                acquire_time=spec.get("acquireTime"),
                renew_time=spec.get("renewTime"),
                lease_transitions=spec.get("leaseTransitions"),
            ),
        )
        return self.lease


class Network:
    """One candidate's way to the server. `up`, and seconds each way."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.up = True
        self.delay_there_s = 0.0
        self.delay_back_s = 0.0
        self.calls = 0

    async def get(self, resource, name, *, namespace=None):
        return await self._call(self.server.get)

    async def create(self, resource, body, *, namespace=None):
        return await self._call(lambda: self.server.create(body))

    async def patch_merge(self, resource, name, patch, *, namespace=None):
        return await self._call(lambda: self.server.patch(patch))

    async def _call(self, act):
        self.calls += 1
        await trio.sleep(self.delay_there_s)
        if not self.up:
            await trio.sleep(1.0)
            raise kube.UnavailableError("no connection")
        answer = act()
        await trio.sleep(self.delay_back_s)
        if not self.up:
            raise kube.UnavailableError("the answer was lost")
        return answer
