"""The certificate of an evaluation: under which conditions it ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from sandman.errors import OutcomeUnknownError, SandmanError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandman.certificates import Certificate
    from sandman.client import Sandbox

PATIENCE_S = 120.0
"""Seconds for which a certificate is asked for again: a run of hundreds ends in bursts, and its sandbox, which waits for
nothing else, is worth the two minutes when the work in it took hours."""
PAUSE_S = 1.0
"""Seconds between two tries at least; the gateway may say more."""


async def certify(box: Sandbox, exec_ids: Sequence[str]) -> Certificate:
    """The certificate for these commands of a sandbox; asked for again while that may help.

    Raises:
        NotFoundError: this gateway is of a version that gives none.
        SandmanError: the sandbox or the way to it failed.
    """
    last: SandmanError = UnreachableError(f"no certificate within {PATIENCE_S:g} s")
    with anyio.move_on_after(PATIENCE_S):
        while True:
            try:
                return await box.certificate(exec_ids)
            except SandmanError as error:
                # To have made one that nobody got does no harm.
                if not (error.retryable or isinstance(error, OutcomeUnknownError)):
                    raise
                last = error
            await anyio.sleep(max(last.retry_after or 0.0, PAUSE_S))
    raise last
