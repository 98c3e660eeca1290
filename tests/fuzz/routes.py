"""Every route of a real daemon, at random: no fault of its own, no hang, nothing left, no growth."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import h11

from sandman import names
from sandman.problems import by_reason
from tests.fuzz import asks
from tests.fuzz.cage import caged
from tests.soak.soak import descendants, descriptors_of, resident_kib
from tests.unit.daemon.harness import wait_until

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.daemon.harness import Daemon

ANSWER_S = 60.0
"""An answer that takes longer is a hang; the longest that a call may take is 10 s (stdin unread)."""
GROWTH_KIB = 40 * 1024
"""What the daemon may have more at the end than after half of the calls: at most 32 MiB of what ended
commands wrote, and some kilobytes for each of the 1024 that it remembers."""
STATUSES = {200, 204, 206, 416, *(cls.status for cls in by_reason().values())} - {500, 502}


class FindingError(Exception):
    """The daemon did what it must not do; the text has the call."""


def run(
    seed: int,
    calls: int,
    seconds: float = float("inf"),
    say: Callable[[str], None] = print,
    runtime: Path | None = None,
) -> None:
    """So many calls, or for so long; `runtime` as of `caged`.

    Raises:
        FindingError: the daemon is at fault.
    """
    dice = asks.Dice(seed)
    began = time.monotonic()
    made = 0
    with caged(runtime) as daemon:
        connection = Caller(daemon)
        before = 0
        while made < calls and time.monotonic() - began < seconds:
            connection.call(asks.some(dice))
            made += 1
            is_half = made * 2 >= calls or (time.monotonic() - began) * 2 >= seconds
            if is_half and not before:
                before = resident_kib(daemon.pid)
        for name in asks.SESSIONS[:4]:
            connection.call(asks.Ask("DELETE", f"/v1/sessions/{name.replace(' ', '%20')}"))
        for exec_id in (*asks.IDS[:6], *dice.names):
            connection.call(asks.Ask("DELETE", f"/v1/processes/{exec_id}"))
        connection.close()
        _check_after(daemon, before, seed)
        say(
            f"routes: {made} calls, seed {seed}; VmRSS {before} KiB before, {resident_kib(daemon.pid)} after"
        )


def _check_after(daemon: Daemon, before: int, seed: int) -> None:
    info = daemon.client.get("/v1/info").json()
    assert info["boot_id"]
    if not wait_until(lambda: daemon.client.get("/v1/info").json()["running"] == 0, 30):
        raise FindingError(
            f"seed {seed}: commands still run: {daemon.client.get('/v1/processes').text}"
        )
    if not wait_until(lambda: not zombies_of(daemon.pid), 10):
        raise FindingError(f"seed {seed}: zombies: {zombies_of(daemon.pid)}")
    if not wait_until(lambda: descriptors_of(daemon.pid) <= 24, 30):
        raise FindingError(f"seed {seed}: {descriptors_of(daemon.pid)} descriptors are open")
    if resident_kib(daemon.pid) > before + GROWTH_KIB:
        raise FindingError(
            f"seed {seed}: VmRSS {before} KiB before, {resident_kib(daemon.pid)} after"
        )
    if faults := [line for line in daemon.lines if "Error" in line or "Traceback" in line]:
        raise FindingError(f"seed {seed}: the daemon's log: {faults[:5]}")


def zombies_of(pid: int) -> list[str]:
    """Children of this process that ended and were not waited for."""
    return [stat for stat in descendants(pid) if stat.rpartition(")")[2].split()[0] == "Z"]


class Caller:
    """A connection that is kept as long as the daemon keeps it."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._sock: socket.socket | None = None

    def close(self) -> None:
        """Go."""
        if self._sock is not None:
            self._sock.close()
        self._sock = None

    def call(self, ask: asks.Ask) -> None:
        """Make the call and judge the answer."""
        if self._sock is None:
            self._sock = self._daemon.connect()
        self._sock.settimeout(ask.patience_s or ANSWER_S)
        try:
            answer = self._exchange(asks.encode(ask))
        except TimeoutError:
            self.close()
            if ask.patience_s is None:
                raise FindingError(f"no answer within {ANSWER_S} s: {shown(ask)}") from None
            return
        except (h11.RemoteProtocolError, OSError) as error:
            self.close()
            if self._daemon.process.poll() is not None:
                raise FindingError(
                    f"the daemon ended: {shown(ask)}: {self._daemon.lines[-20:]}"
                ) from error
            if broken_off(ask):
                return
            raise FindingError(f"no whole answer ({error}): {shown(ask)}") from error
        judge(ask, *answer)

    def _exchange(self, data: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
        assert self._sock is not None
        reader = h11.Connection(h11.CLIENT)
        method = "HEAD" if data.startswith(b"HEAD") else "GET"
        reader.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
        reader.send(h11.EndOfMessage())
        with suppress(BrokenPipeError, ConnectionResetError):  # it has refused, and says so
            self._sock.sendall(data)
        response: h11.Response | None = None
        body = bytearray()
        while True:
            event = reader.next_event()
            if event is h11.NEED_DATA:
                reader.receive_data(self._sock.recv(65536))
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
        assert response is not None
        if reader.their_state is not h11.DONE:
            self.close()
        return response.status_code, dict(response.headers), bytes(body)


def broken_off(ask: asks.Ask) -> bool:
    """Whether an answer may be broken off by the nature of what was asked for: a file that changed."""
    return ask.target.startswith(("/v1/files?path=/proc", "/v1/archive"))


def is_forgotten(status: int, body: bytes) -> bool:
    """Whether a command of that name has run, over a thousand others ago: the one doubt that is no fault."""
    return status == 502 and b"how it ended is forgotten" in body


def judge(ask: asks.Ask, status: int, headers: dict[bytes, bytes], body: bytes) -> None:
    """Raise unless this can be the answer."""
    if status not in STATUSES and not is_forgotten(status, body):
        raise FindingError(f"status {status}: {shown(ask)}: {body[:500]!r}")
    if status >= 400 and ask.method != "HEAD":
        problem = json.loads(body)
        is_problem = headers[b"content-type"] == names.MEDIA_PROBLEM.encode()
        if not is_problem or problem["reason"] == "internal":
            raise FindingError(f"not a problem of ours: {shown(ask)}: {body[:500]!r}")
    if headers.get(b"content-type") == names.MEDIA_JSON.encode() and ask.method != "HEAD":
        json.loads(body)
    is_framed = headers.get(b"content-type") == names.MEDIA_FRAMES.encode()
    if is_framed and b'"reason": "internal"' in body:
        raise FindingError(f"a fault of its own in frames: {shown(ask)}: {body[-500:]!r}")


def shown(ask: asks.Ask) -> str:
    """The call, cut to what can be read."""
    return repr(ask._replace(body=ask.body[:600], target=ask.target[:400]))
