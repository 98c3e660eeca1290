"""`POST /v1/probe`: which addresses can be reached from in here. For gateways alone: it takes the daemon's token,
and a caller's calls do not come here."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import time
from typing import TYPE_CHECKING

from daemon.documents import dump
from daemon.exchange import Response
from sandman import names, probes
from sandman.errors import BadRequestError
from sandman.fields import load_object

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from sandman.probes import Probe, Target

_MAX_BYTES = 8192
"""Sixteen addresses are a thousand."""
_REFUSALS = {errno.ECONNREFUSED, errno.ECONNRESET}


class Probing:
    """The handler of `probe`."""

    def probe(self, exchange: Exchange) -> None:
        """Try all addresses at once, in the caller's own thread; nothing is sent to any of them."""
        asked = probes.Probe.from_json(load_object(exchange.read_body(_MAX_BYTES)))
        for target in asked.targets:
            _check(target)
        body = dump(probes.results_to_json(tried(asked)))
        exchange.respond(Response(200, body, names.MEDIA_JSON))


def tried(probe: Probe) -> dict[Target, str]:
    """How each address answers.

    Raises:
        OSError: there is no room for the sockets.
    """
    results: dict[Target, str] = {}
    with contextlib.ExitStack() as stack:
        waiting: dict[int, tuple[Target, socket.socket]] = {}
        poll = select.poll()
        for target in dict.fromkeys(probe.targets):
            try:
                sock = stack.enter_context(socket.socket(_family(target), socket.SOCK_STREAM))
            except OSError as error:
                if error.errno != errno.EAFNOSUPPORT:
                    raise
                results[target] = probes.UNREACHABLE  # no IPv6 here
                continue
            sock.setblocking(False)
            code = sock.connect_ex((target.address, target.port))
            if code == errno.EINPROGRESS:
                waiting[sock.fileno()] = (target, sock)
                poll.register(sock, select.POLLOUT)
            else:
                results[target] = _outcome(code, sock)
        deadline = time.monotonic() + probe.timeout_s
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            for number, _ in poll.poll(left_s * 1000):
                poll.unregister(number)
                target, sock = waiting.pop(number)
                results[target] = _outcome(
                    sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), sock
                )
        results |= {target: probes.TIMEOUT for target, _ in waiting.values()}
    return results


def _family(target: Target) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in target.address else socket.AF_INET


def _check(target: Target) -> None:
    """A name would be looked up, for as long as somebody's name server likes."""
    try:
        socket.inet_pton(_family(target), target.address)
    except (OSError, ValueError):
        text = f"targets must be IP addresses and ports, not {str(target)[:80]!r}"
        raise BadRequestError(text, field="targets") from None


def _outcome(code: int, sock: socket.socket) -> str:
    if code == errno.ETIMEDOUT:
        return probes.TIMEOUT
    if code:
        return probes.REFUSED if code in _REFUSALS else probes.UNREACHABLE
    try:
        # On the loopback, where nothing listens, a socket may meet itself.
        meets_itself = sock.getsockname() == sock.getpeername()
    except OSError:  # accepted, and reset at once
        return probes.REACHABLE
    return probes.REFUSED if meets_itself else probes.REACHABLE
