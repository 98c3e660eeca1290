"""Taking leave of a workload's daemon: what a claim has started there ends, and the next one may come."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

import trio

from gateway.daemons import LostError, NotListeningError
from sandman import names
from sandman.errors import ConflictError

if TYPE_CHECKING:
    from gateway.model import Instance
    from gateway.upstream import Upstream

RELEASE_S = 10.0
"""Seconds for a workload's daemon to end all that a guest has started; it gives up after five."""


async def release(upstream: Upstream, instance: Instance, claim_id: str) -> None:
    """End what this claim has started; where it is not any more that is done already.

    Raises:
        NotListeningError: nobody answers there, or not in a way that makes sense.
        ConflictError: another claim is there.
    """
    headers = [(b"content-type", names.MEDIA_JSON.encode())]
    body = _Once(json.dumps({"claim_id": claim_id}).encode())
    try:
        with trio.fail_after(RELEASE_S):
            async with upstream.open(instance, "POST", "/v1/release", headers, body) as response:
                status = response.status_code
    except (LostError, trio.TooSlowError) as error:
        raise NotListeningError(str(error) or "no answer in time") from error
    if status == HTTPStatus.CONFLICT:
        raise ConflictError("another claim is there", sandbox=instance.id)
    if status != HTTPStatus.OK:
        raise NotListeningError(f"it answers {status}")


class _Once:
    """A body of one piece."""

    def __init__(self, data: bytes) -> None:
        self._data: bytes | None = data

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        await trio.lowlevel.checkpoint()
        data, self._data = self._data, None
        if data is None:
            raise StopAsyncIteration
        return data
