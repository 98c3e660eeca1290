"""`POST /v1/claim` and `GET /v1/info`: who this daemon is and whom it serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daemon.exchange import Response
from daemon.replies import dump
from sandman import names, wire

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from daemon.processes import Processes
    from daemon.state import Sandbox

_MAX_CLAIM_BYTES = 4 * 1024 * 1024
"""A claim is an environment and some names; the kernel itself takes 2 MiB of environment."""


class Handshake:
    """The handlers of `claim` and `info`."""

    def __init__(self, sandbox: Sandbox, processes: Processes) -> None:
        self._sandbox = sandbox
        self._processes = processes

    def claim(self, exchange: Exchange) -> None:
        """Take a claim, once."""
        body = wire.load_object(exchange.read_body(_MAX_CLAIM_BYTES))
        self._sandbox.accept(wire.Claim.from_json(body))
        self.info(exchange)

    def info(self, exchange: Exchange) -> None:
        """Tell boot, claim and defaults."""
        info = self._sandbox.info(self._processes.running)
        exchange.respond(Response(200, dump(info.to_json()), names.MEDIA_JSON))
