"""The daemon of one simulated pod: the daemon's own parts over hollow ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daemon.documents import dump
from daemon.drain import Drain
from daemon.exchange import Response
from daemon.execution import Executions
from daemon.handshake import Handshake
from daemon.routes import Later, Route, Routes
from daemon.state import Sandbox
from sandman import names, probes
from sandman.fields import load_object
from tests.scale.hollow.execution import HollowProcesses, HollowRunner
from tests.scale.hollow.files import Files
from tests.scale.hollow.leases import SharedWatch

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from tests.scale.hollow.leases import Leases

ENVIRONMENT = {b"HOME": b"/root", b"PATH": b"/usr/bin:/bin"}
_PATH = ("path", "user")
_NO_DRAIN = Drain()
"""No command leaves a pipe to be read."""
_PROBE_BYTES = 8192


class Hollow:
    """One start of the daemon of one pod.

    Args:
        token_sha256: what the webhook wrote into the pod.
        leases: watches its lease.
    """

    def __init__(self, token_sha256: str, leases: Leases) -> None:
        self.is_over = False
        """Its lease ended it: nothing is answered any more."""
        self._leases = leases
        self._sandbox = Sandbox(ENVIRONMENT)
        self._watch = SharedWatch(leases, self._expire)
        self._files = Files(self._sandbox)
        self._processes = Later(lambda: HollowProcesses(self._sandbox, self._files.read))
        handshake = Handshake(
            self._sandbox, self._running, self._rested_at, self._watch, lambda: None
        )
        executions = Later(self._executions)
        self.routes = Routes(
            {
                "/healthz": {"GET": Route(_well)},
                "/v1/claim": {"POST": Route(handshake.claim)},
                "/v1/renew": {"POST": Route(handshake.renew)},
                "/v1/info": {"GET": Route(handshake.info)},
                "/v1/probe": {"POST": Route(_probe)},
                "/v1/exec": {"POST": executions.to("run")},
                "/v1/files": {
                    "GET": Route(self._files.get, (*_PATH, "max_bytes")),
                    "HEAD": Route(self._files.get, (*_PATH, "max_bytes")),
                    "PUT": Route(self._files.put, (*_PATH, "mode", "sha256")),
                    "DELETE": Route(self._files.delete, (*_PATH, "recursive")),
                },
            },
            token_sha256,
            self._sandbox.boot_id,
            self._watch,
        )

    def close(self) -> None:
        """Its pod is gone, or another start has come."""
        self._leases.drop(self._watch)

    def _executions(self) -> Executions:
        processes = self._processes.made()
        return Executions(processes, HollowRunner(processes, _NO_DRAIN))

    def _running(self) -> int:
        return self._processes.made().running if self._processes.is_made else 0

    def _rested_at(self) -> float | None:
        return self._processes.made().rested_at if self._processes.is_made else 0.0

    def _expire(self) -> None:
        self.is_over = True


def _well(exchange: Exchange) -> None:
    exchange.respond(Response(200, b"ok\n", "text/plain"))


def _probe(exchange: Exchange) -> None:
    """As in a network that lets nothing out: this process's own lets everything."""
    asked = probes.Probe.from_json(load_object(exchange.read_body(_PROBE_BYTES)))
    results = dict.fromkeys(asked.targets, probes.TIMEOUT)
    exchange.respond(Response(200, dump(probes.results_to_json(results)), names.MEDIA_JSON))
