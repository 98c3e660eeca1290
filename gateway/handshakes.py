"""What daemons answer to the gateway's own calls. Pure. It may be anything: the sandbox is hostile."""

from __future__ import annotations

import contextlib
import json
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, NoReturn

from gateway.daemons import NotListeningError
from sandman import evidence as evidences
from sandman import names, probes, wire
from sandman.errors import BadRequestError, DiedError
from sandman.problems import from_problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sandman.probes import Target

PORT_HEADER = names.HEADER_PORT.lower().encode()
_BOOT_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""A boot id becomes a header's value and part of a token."""


def info(status: int, data: bytes) -> wire.Info:
    """What a daemon answered to a handshake. It may be anything: the sandbox is hostile.

    Raises:
        NotListeningError: another pod's daemon, or still the one from before the swap.
        DiedError: not a daemon.
        SandmanError: the daemon refuses.
    """
    if status != HTTPStatus.OK:
        refuse(status, data)
    with _sense():
        return _with_sound_boot_id(wire.Info.from_json(wire.load_object(data)))


def probed(status: int, data: bytes, asked: tuple[Target, ...]) -> dict[Target, str]:
    """How each address answered, as a daemon says; raises as `info`."""
    if status != HTTPStatus.OK:
        refuse(status, data)
    with _sense():
        return probes.results_from_json(wire.load_object(data), asked)


def evidence(
    status: int, data: bytes, exec_ids: tuple[str, ...]
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """What a daemon says for a certificate; raises as `info`."""
    if status != HTTPStatus.OK:
        refuse(status, data)
    with _sense():
        return evidences.answer_from_json(wire.load_object(data), exec_ids)


def refuse(status: int, data: bytes) -> NoReturn:
    """Raise what a daemon refused a call with; as `info`."""
    if status == HTTPStatus.UNAUTHORIZED:
        raise NotListeningError("what answers there does not accept this pod's token")
    with _sense():
        refusal = from_problem(wire.load_object(data), status)
        # NaN and the like can be read and not be told.
        json.dumps(refusal.problem(), allow_nan=False)
    if refusal.reason == "conflict" and "boot_id" in refusal.facts:
        raise NotListeningError("the daemon from before the swap")
    raise refusal


def is_strangers(status: int, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether another pod's daemon refuses our token: an address is given anew soon after its pod is gone.
    The caller's token is well. A server in the sandbox may ask for credentials of its own."""
    marked = any(name.lower() == PORT_HEADER for name, _ in headers)
    return status == HTTPStatus.UNAUTHORIZED and not marked


@contextlib.contextmanager
def _sense() -> Iterator[None]:
    """Reads what a daemon says.

    Raises:
        DiedError: it makes no sense.
    """
    try:
        yield
    except (BadRequestError, ValueError, OverflowError, RecursionError) as error:
        raise DiedError("what answers there is not the daemon: it makes no sense") from error


def _with_sound_boot_id(info: wire.Info) -> wire.Info:
    if not _BOOT_ID.fullmatch(info.boot_id):
        raise ValueError(info.boot_id)
    return info
