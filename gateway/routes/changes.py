"""Bodies of calls about a sandbox that there is → frozen values. Pure; each refusal names the field."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway import scopes
from gateway.routes import parse
from sandman import evidence, names, wire
from sandman.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.config import Settings

NETWORK_WAIT_S = 30.0
"""Seconds for an egress profile to be in force: network plugins take some, and minutes only when they are ill."""
TOKEN_TTL_S = 3600.0
"""Seconds that a token of one sandbox is good whose caller names none: an episode."""


def network_change(body: Mapping[str, object], settings: Settings) -> tuple[str, float]:
    """The body of `PUT /v1/sandboxes/{id}/network`: the profile, and how long to probe.

    Raises:
        BadRequestError, NetworkUnsupportedError: names the field at fault.
    """
    reader = wire.Fields(body)
    profile, wait_s = parse.network(reader.raw("network")), reader.seconds("wait_s")
    reader.finish()
    if profile is None:
        raise reader.fail("network", "the name of an egress profile")
    return profile, NETWORK_WAIT_S if wait_s is None else parse.wait(wait_s, settings)


def token_request(body: Mapping[str, object]) -> tuple[tuple[str, ...], float]:
    """The body of `POST /v1/sandboxes/{id}/tokens`: its scopes, none where it names none, and its seconds.

    Raises:
        BadRequestError: names the field at fault.
    """
    reader = wire.Fields(body)
    wanted, ttl_s = reader.raw("may"), reader.seconds("ttl_s")
    reader.finish()
    try:
        may = () if wanted is None else scopes.check(wanted)
    except ValueError as error:
        raise BadRequestError(f"may must be {error}", field="may") from None
    return may, ttl_s or TOKEN_TTL_S


def certificate_request(body: Mapping[str, object]) -> tuple[str, ...]:
    """The body of `POST /v1/sandboxes/{id}/certificate`: ids of the commands that are told of.

    Raises:
        BadRequestError: names the field at fault.
    """
    reader = wire.Fields(body)
    exec_ids = reader.texts("exec_ids") or ()
    reader.finish()
    most = evidence.MAX_COMMANDS
    if len(exec_ids) > most or not all(map(names.is_exec_id, exec_ids)):
        raise reader.fail("exec_ids", f"a list of up to {most} ids of commands")
    return tuple(dict.fromkeys(exec_ids))


def ticket_request(body: Mapping[str, object]) -> str:
    """The body of `POST /v1/sandboxes/{id}/tickets`: the id of the command whose terminal it is for.

    Raises:
        BadRequestError: names the field at fault.
    """
    reader = wire.Fields(body)
    exec_id = reader.text("exec_id")
    reader.finish()
    if exec_id is None or not names.is_exec_id(exec_id):
        raise reader.fail("exec_id", "the id of a command with a terminal")
    return exec_id
