"""What the gateway's parts need of the daemons, and the two ways in which one can fail to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sandman import wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    import httpx

    from gateway.model import Assignment, Instance, SandboxRequest
    from sandman.probes import Probe, Target


LEAST_TTL_S = 1.0
"""Shortest lease that a daemon is told: of one that is over just now the janitor knows."""


def claim_of(
    taken: Assignment | Instance,
    request: SandboxRequest,
    *,
    left_s: float | None,
    grace_s: float,
) -> wire.Claim:
    """What a daemon is told of its sandbox; `left_s`: seconds of its lease, None for none."""
    lease = None if left_s is None else wire.LeaseTerms(max(LEAST_TTL_S, left_s), grace_s)
    return wire.Claim(
        claim_id=taken.claim_id or "",
        previous_boot_id=taken.previous_boot_id,
        env=request.env,
        workdir=request.workdir,
        user=request.user,
        lease=lease,
    )


class NotListeningError(Exception):
    """The daemon does not answer yet, or it is still the one from before the swap."""


class LostError(Exception):
    """The connection to the daemon failed or broke.

    `sent`: the daemon may have begun the work. `since`: where nothing comes from the sandbox, when something
    last came or might have, on trio's clock; None: something there refused, or ended it.
    """

    def __init__(self, detail: str, *, sent: bool, since: float | None = None) -> None:
        super().__init__(detail)
        self.sent = sent
        self.since = since


class Daemons(Protocol):
    """Handshakes, and the gateway's own calls."""

    def open(
        self,
        instance: Instance,
        method: str,
        path: str,
        headers: Sequence[tuple[bytes, bytes]],
        content: bytes | AsyncIterator[bytes] | None,
    ) -> AbstractAsyncContextManager[httpx.Response]:
        """One call, its answer for the length of the block.

        Raises:
            LostError: no connection, or it broke.
        """

    async def claim(self, instance: Instance, claim: wire.Claim) -> wire.Info:
        """Tell a daemon who has its pod; the same claim again is answered alike.

        Raises:
            NotListeningError: nobody answers there yet.
            SandmanError: the daemon refuses.
        """

    async def info(self, instance: Instance) -> wire.Info:
        """What the daemon says of itself.

        Raises:
            NotListeningError: nobody answers there.
        """

    async def probe(self, instance: Instance, probe: Probe) -> dict[Target, str]:
        """Have a daemon try addresses; how each answered.

        Raises:
            NotListeningError: nobody answers there.
            SandmanError: the daemon refuses, or is older and knows no probes.
        """

    async def renew(self, instance: Instance, ttl_s: float, *, asked: bool) -> None:
        """Have a daemon wait for so many seconds again.

        Args:
            instance: whose.
            ttl_s: seconds.
            asked: the sandbox's caller renews it; else it is only told that a gateway is there.

        Raises:
            NotListeningError: nobody answers there.
            SandmanError: the daemon refuses, or is older and does not know what `asked` is.
        """
