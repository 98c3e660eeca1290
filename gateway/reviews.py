"""Asks the API server whose a ServiceAccount's token is: TokenReview, with the audience."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
import trio

from gateway.provider.kubernetes import translate
from sandman.errors import UnreachableError
from sandman.service import kube

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.get_logger()

AT_ONCE = 4
"""Reviews in flight: an eighth of the connections to the API server. Claims need the others."""
WAITING_MAX = 64
"""Reviews that wait for one of these places; more are told to come again."""
REVIEW_S = 8.0
"""Seconds for one, its place in the queue included: a caller waits for it before anything else."""


class Reviews:
    """Asks.

    Args:
        api: the API server.
        audience: what a token must be for.
    """

    def __init__(self, api: kube.Kube, audience: str) -> None:
        self._api = api
        self._audience = audience
        self._places = trio.CapacityLimiter(AT_ONCE)

    async def ask(self, token: str) -> Mapping[str, Any]:
        """The status of a TokenReview.

        Raises:
            SandmanError: the API server gives no verdict.
        """
        if self._places.statistics().tasks_waiting >= WAITING_MAX:
            raise UnreachableError("many tokens wait to be looked at", retry_after=1.0)
        with trio.move_on_after(REVIEW_S):
            async with self._places:
                return await self._ask(token)
        raise UnreachableError("the API server gives no verdict on the token", retry_after=1.0)

    async def _ask(self, token: str) -> Mapping[str, Any]:
        spec = {"token": token, "audiences": [self._audience]}
        try:
            answer = await self._api.create(kube.TOKEN_REVIEWS, {"spec": spec})
        except kube.ForbiddenError as error:
            # Of the gateway, not of the caller: without that right nobody comes in this way.
            log.warning("tokenreviews_not_allowed", error=str(error))
            raise UnreachableError("the gateway may not look at ServiceAccount tokens") from error
        except kube.KubeError as error:
            raise translate(error) from error
        status = answer.get("status")
        return status if isinstance(status, dict) else {}
