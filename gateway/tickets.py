"""Tickets for WebSockets of callers that cannot set a header: a browser's page. Pure; clock and chance come in.

A ticket is good for one terminal of one sandbox, once, within LIFE_S. Every replica can tell that it is true, for it is
signed as a sandbox's token is. That it was not used before only one can tell: the allocator makes all of them, keeps
the ids of those that were not used (`Ledger`), and is asked when one is shown elsewhere. With its memory they are gone,
never good twice.
"""

from __future__ import annotations

import hmac
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from gateway import scopes, tokens
from gateway.model import Principal
from gateway.proofs import Proof
from sandman.errors import ForbiddenError, QuotaError, UnauthenticatedError

if TYPE_CHECKING:
    from collections.abc import Mapping

LIFE_S = 30.0
"""Seconds that a ticket may be used in: a page uses it at once."""
OPEN_PER_TENANT_MAX = 64
"""Tickets of one tenant that are not used: as many terminals in half a minute as a sandbox may have at once."""
OPEN_MAX = 8192
"""Of all tenants together; some 300 bytes each."""
RETRY_S = 5.0
"""Seconds until it makes sense to ask again when there are too many."""
SEAL = tokens.Seal("wst", b"sandman websocket ticket v1\0")


class Ticket(NamedTuple):
    """What a ticket says. Times in seconds since the epoch."""

    id: str
    tenant: str
    sandbox: str
    exec_id: str
    """Whose terminal it leads to."""
    boot_id: str | None
    """The daemon's start that its maker's own token was bound to; None: it was bound to none."""
    maker: str
    """Id of the API key or rule of who had it made: the WebSocket ends with that."""
    expires_at: float
    """Of the ticket."""
    ends_at: float
    """Of the WebSocket at the latest: its maker's own token is over then, or the sandbox."""

    def principal(self, signer: str) -> Principal:
        """Who comes with it, as one with a token of that sandbox for its commands. `signer`: the signing key's id."""
        proof = Proof("sandbox", self.maker, signer=signer, expires_at=self.ends_at)
        return Principal(
            self.tenant, "sandbox", self.sandbox, self.boot_id, may=(scopes.EXEC,), proof=proof
        )


def make(ticket: Ticket, keys: Mapping[str, bytes], current: str) -> str:
    """The ticket's text, signed with the current key."""
    return tokens.seal(SEAL, list(ticket), keys, current)


def check(text: str, keys: Mapping[str, bytes], now: float) -> tuple[Ticket, str]:
    """What a ticket says, and the id of the key that signed it.

    Raises:
        UnauthenticatedError: forged, malformed, or too old.
    """
    is_short = len(text) <= tokens.OWN_MAX
    try:
        ticket = Ticket(*tokens.unseal(SEAL, text if is_short else "", keys))
    except (ValueError, TypeError):
        raise UnauthenticatedError("the ticket is not valid: ask for another") from None
    if now >= ticket.expires_at:
        raise UnauthenticatedError("the ticket has expired: ask for another")
    return ticket, text.split("_", 2)[1]


def leads_to(ticket: Ticket, sandbox: str, exec_id: str) -> bool:
    """Whether it is for this terminal."""
    asked, good = f"{sandbox}\0{exec_id}", f"{ticket.sandbox}\0{ticket.exec_id}"
    return hmac.compare_digest(asked.encode(), good.encode())


def check_origin(origin: str | None, host: str | None) -> None:
    """A browser tells which page opens a WebSocket: only the gateway's own may.

    Args:
        origin: the header, None when absent.
        host: the header Host, as the browser sent it.

    Raises:
        ForbiddenError: it is another's, or nobody says whose.
    """
    try:
        page = urlsplit(origin or "")
        is_own = page.scheme == "https" and bool(host) and _place(page.netloc) == _place(host or "")
    except ValueError:
        is_own = False
    if not is_own:
        raise ForbiddenError("tickets are for the gateway's own page: the Origin is another's")


def _place(netloc: str) -> str:
    return netloc.lower().removesuffix(":443")


class Ledger:
    """Tickets that were made here and not used."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, float]] = {}
        """Tenant and end by id, in the order of their making, which is that of their ends."""
        self._of: Counter[str] = Counter()
        """How many there are of each tenant; none are not in it."""

    def __len__(self) -> int:
        return len(self._open)

    def add(self, ident: str, tenant: str, now: float) -> None:
        """One was made. `now` on any one clock, seconds.

        Raises:
            QuotaError: too many wait to be used.
        """
        while self._open and next(iter(self._open.values()))[1] <= now:
            self._drop(next(iter(self._open)))
        if self._of[tenant] >= OPEN_PER_TENANT_MAX or len(self._open) >= OPEN_MAX:
            raise QuotaError("too many tickets wait to be used", retry_after=RETRY_S)
        self._open[ident] = tenant, now + LIFE_S
        self._of[tenant] += 1

    def take(self, ident: str, now: float) -> bool:
        """Whether this one was made here, is not over, and is used for the first time; it is used now."""
        end = self._drop(ident)
        return end is not None and now < end

    def _drop(self, ident: str) -> float | None:
        tenant, end = self._open.pop(ident, ("", None))
        if end is not None:
            self._of[tenant] -= 1
            if not self._of[tenant]:
                del self._of[tenant]
        return end
