"""The daemons in the pods of a cluster in memory. A part of `tests.fakes.cluster`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import httpx
import trio

from gateway.daemons import LostError, NotListeningError
from sandman import probes, wire
from sandman.errors import BadRequestError

if TYPE_CHECKING:
    from gateway.model import Instance
    from sandman.probes import Probe, Target


class Daemons:
    """What they answer; one boots for each pod that is made, and for each swap."""

    async def info(self, instance: Instance) -> wire.Info:
        await trio.lowlevel.checkpoint()
        self._answers(instance)
        claim_id = self.claims.get(instance.uid)
        info = wire.Info(self.boots[instance.uid], self.version, claim_id)
        activity = self.activity.get(instance.uid)
        return info if activity is None else info._replace(**activity._asdict())

    late_probes = 0
    """Of the next so many all answers come too late: the node is busy."""

    async def probe(self, instance: Instance, probe: Probe) -> dict[Target, str]:
        """The network plugin opens what `opened` says for the pod's profile."""
        await trio.sleep(self.probe_s)
        self._answers(instance)
        self.probed.append((instance.name, probe.targets))
        if self.fail_probes:
            raise self.fail_probes.pop(0)
        if self.late_probes:
            self.late_probes -= 1
            return dict.fromkeys(probe.targets, probes.TIMEOUT)
        opened = self.opened.get(self.pods[instance.uid].network, set()) | self.leaks
        return {one: probes.REACHABLE if one in opened else probes.TIMEOUT for one in probe.targets}

    async def renew_daemon(self, instance: Instance, ttl_s: float, *, asked: bool) -> None:
        await trio.lowlevel.checkpoint()
        self._answers(instance)
        if self.knows_no_leases and asked:
            raise BadRequestError("unknown field asked", field="asked")
        self.told.append((instance.name, ttl_s, asked))

    async def claim_daemon(self, instance: Instance, claim: wire.Claim) -> wire.Info:
        await trio.lowlevel.checkpoint()
        self._answers(instance)
        boot = self.boots[instance.uid]
        if boot == claim.previous_boot_id:
            raise NotListeningError(boot)
        if self.knows_no_leases and claim.lease is not None:
            raise BadRequestError("unknown field lease", field="lease")
        assert self.claims.setdefault(instance.uid, claim.claim_id) == claim.claim_id
        self.leases.setdefault(instance.uid, []).append(claim.lease)
        self.told_env[instance.uid] = claim.env
        return wire.Info(boot, self.version, claim.claim_id)

    @contextlib.asynccontextmanager
    async def open(self, instance: Instance, method: str, path: str, headers, content):
        body = content
        await trio.sleep(self.call_s)
        with contextlib.suppress(NotListeningError):
            self._answers(instance)
            assert self.claims.get(instance.uid) is None, "prepared after the claim"
            assert dict(headers)[b"Sandman-Boot-Id"].decode() == self.boots[instance.uid]
            self.calls.append((instance.name, method, path, body))
            status, data = self.answer(instance, path, body)
            yield httpx.Response(status, stream=Whole(data))
            return
        raise LostError("no connection", sent=False)

    def _answers(self, instance: Instance) -> None:
        if (
            instance.uid in self.silent
            or instance.uid not in self.pods
            or trio.current_time() < self.up_at[instance.uid]
        ):
            raise NotListeningError(instance.name)

    def _boot(self, uid: str, up_in: float) -> None:
        self.boots[uid] = f"boot-{next(self._count)}"
        self.up_at[uid] = trio.current_time() + up_in


class Whole(httpx.AsyncByteStream):
    """An answer's body in one piece. No generator: there is nothing to close."""

    def __init__(self, data: bytes) -> None:
        self._pieces = [data]

    def __aiter__(self):
        return self

    async def __anext__(self) -> bytes:
        if not self._pieces:
            raise StopAsyncIteration
        return self._pieces.pop()
