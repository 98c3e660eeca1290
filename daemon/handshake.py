"""`POST /v1/claim`, `POST /v1/renew`, `GET /v1/info`: who this daemon is, whom it serves, and how long."""

from __future__ import annotations

from daemon.documents import dump
from daemon.exchange import Response
from sandman import names
from sandman.claims import Claim
from sandman.fields import Fields, load_object
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon.exchange import Exchange
    from daemon.lease import Watch
    from daemon.state import Sandbox

_MAX_CLAIM_BYTES = 4 * 1024 * 1024
"""A claim is an environment and some names; the kernel itself takes 2 MiB of environment."""
_MAX_RENEWAL_BYTES = 4096


class Handshake:
    """The handlers of `claim`, `renew` and `info`."""

    def __init__(
        self,
        sandbox: Sandbox,
        running: Callable[[], int],
        rested_at: Callable[[], float | None],
        lease: Watch,
        prepare: Callable[[], object],
    ) -> None:
        self._sandbox = sandbox
        self._running = running
        self._rested_at = rested_at
        self._lease = lease
        self._prepare = prepare

    def claim(self, exchange: Exchange) -> None:
        """Take a claim, once. The same one again sets its lease anew."""
        claim = Claim.from_json(load_object(exchange.read_body(_MAX_CLAIM_BYTES)))
        self._sandbox.accept(claim)
        if claim.lease is not None:
            self._lease.agree(claim.lease)
        self.info(exchange)

    def renew(self, exchange: Exchange) -> None:
        """Set how long the lease is from now on."""
        body = Fields(load_object(exchange.read_body(_MAX_RENEWAL_BYTES)))
        ttl_s = body.seconds("ttl_s")
        if ttl_s is None:
            raise body.fail("ttl_s", "a number of seconds greater than 0")
        asked = body.flag("asked")
        body.finish()
        terms = self._lease.renew(ttl_s, asked=asked)
        exchange.respond(Response(200, dump(terms.to_json()), names.MEDIA_JSON))

    def info(self, exchange: Exchange) -> None:
        """Tell boot, claim and defaults, and how long ago there was use for this sandbox."""
        used_s, renewed_s, idle_s = self._lease.activity(self._rested_at())
        info = self._sandbox.info(self._running())
        info = info._replace(used_s=used_s, renewed_s=renewed_s, idle_s=idle_s)
        exchange.respond(Response(200, dump(info.to_json()), names.MEDIA_JSON))
        # The answer is on its way, and a command likely next: what that needs is loaded meanwhile.
        self._prepare()
