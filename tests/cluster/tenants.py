"""Tenants with limits of their own, for the length of a block."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import TYPE_CHECKING

import trio

import sandman as sdk
from gateway import tokens
from sandman import names
from sandman.errors import UnauthenticatedError
from tests.cluster.bed import kubectl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.model import Share
    from tests.cluster.deployed import Deployed

DOORS = 8
"""Calls at once, which leave neither of two replicas out but once in a hundred times."""


@contextlib.contextmanager
def tenant(deployed: Deployed, name: str, share: Share) -> Iterator[str]:
    """A tenant with these limits, for the length of the block; its token."""
    token = tokens.make_api_key(name)
    entry = base64.b64encode(tokens.api_key_entry(token, name, share)).decode()
    _patch_keys(deployed, {name: entry})
    try:
        yield token
    finally:
        _patch_keys(deployed, {name: None})


def _patch_keys(deployed: Deployed, data: dict[str, str | None]) -> None:
    secret = ["-n", names.SYSTEM_NAMESPACE, "patch", "secret", names.API_KEYS_SECRET]
    kubectl(deployed.bed, *secret, "-p", json.dumps({"data": data}))


def client_of(deployed: Deployed, token: str) -> sdk.Client:
    """A client with this token."""
    made = deployed.installation
    return sdk.Client(made.url, token, ca=made.ca, server_name=made.server_name)


async def known(client: sdk.Client) -> None:
    """Wait until the gateways accept the token: each replica watches the Secret for itself."""
    with trio.fail_after(20):
        while not await _is_known(client):
            await trio.sleep(0.2)


async def _is_known(client: sdk.Client) -> bool:
    """At several doors at once: each call has a connection of its own, to any of the replicas."""
    answers: list[bool] = []

    async def knock() -> None:
        with contextlib.suppress(UnauthenticatedError):
            await client.list()
            answers.append(True)

    async with trio.open_nursery() as nursery:
        for _ in range(DOORS):
            nursery.start_soon(knock)
    return len(answers) == DOORS
