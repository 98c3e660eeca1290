"""Sends what is malformed, many at once, and notes what is answered."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
from collections import Counter
from typing import TYPE_CHECKING

import trio

from tests.flood.kinds import NEVER_DONE, Malformed, Then, some

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.flood.parties import Party

AT_ONCE = 24
"""Connections at once to each of the three: slow ones among them hold theirs for up to a second."""
ANSWER_S = 60.0
"""Within so many seconds a server answers what is whole, or closes; its connections that idle it closes after 75 s, so
that one which is forgotten is found. Long for the sake of machines that do much else."""
QUIET_S = 0.3
"""After a whole answer on a connection that stays open: another would come at once."""
REFUSED = "closed"
"""What is noted where the connection was closed without a word."""
GONE = "left"
"""What is noted where the sender went without waiting."""
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
_GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class Flood:
    """So many requests to one server, `seed` and number say which.

    `answers` counts what came, by kind and status (or REFUSED, GONE); `found` has what must not have come.
    """

    def __init__(self, party: Party, seed: int, count: int) -> None:
        self.party = party
        self._seed = seed
        self._numbers = iter(range(count))
        self.answers: Counter[tuple[str, str]] = Counter()
        self.found: list[str] = []
        self.sent = 0
        self._trust = None
        if party.trust is not None:
            self._trust = ssl.create_default_context()
            self._trust.check_hostname = False
            self._trust.verify_mode = ssl.CERT_NONE

    async def run(self, after: Callable[[int], None]) -> None:
        """Send all; `after` is told how many have been sent."""
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(self._worker, after)

    async def _worker(self, after: Callable[[int], None]) -> None:
        for number in self._numbers:
            request = some(self.party.aim, self._seed, self.party.name, number)
            try:
                with trio.fail_after(ANSWER_S):
                    statuses = await self.tell(request)
            except trio.TooSlowError:
                self._find(request, number, f"neither an answer nor an end within {ANSWER_S:g} s")
            else:
                self._judge(request, number, statuses)
            self.sent += 1
            after(self.sent)

    def _judge(self, request: Malformed, number: int, statuses: list[str]) -> None:
        for status in statuses:
            self.answers[request.kind, status] += 1
            if status.startswith("5") and status != "503":
                self._find(request, number, f"status {status}")
            if status.startswith("2") and self.party.aim.is_strict and request.kind in NEVER_DONE:
                self._find(request, number, f"taken for good: status {status}")
        if request.kind == "smuggling" and len(statuses) > 1:
            self._find(request, number, f"two requests were seen in one: {statuses}")

    def _find(self, request: Malformed, number: int, what: str) -> None:
        text = b"".join(piece for _, piece in request.pieces)
        self.found.append(
            f"{self.party.name}, seed {self._seed}, request {number}, {request.kind}: {what}: {text[:300]!r}"
        )

    async def tell(self, request: Malformed) -> list[str]:
        """The statuses of what was answered, or why there are none."""
        plain = await trio.open_tcp_stream("127.0.0.1", self.party.port)
        stream: trio.SSLStream[trio.SocketStream] | trio.SocketStream = plain
        said = bytearray()
        try:
            if self._trust is not None and request.in_tls:
                stream = trio.SSLStream(plain, self._trust, https_compatible=True)
                await stream.do_handshake()
            async with trio.open_nursery() as nursery:
                # Who is refused before all is sent reads why, as it comes.
                if request.then in (Then.READ, Then.HALF_CLOSE):
                    nursery.start_soon(_read, stream, said, nursery)
                for pause_s, piece in request.pieces:
                    await trio.sleep(pause_s)
                    if piece:
                        with contextlib.suppress(*_GONE):
                            await stream.send_all(piece)
                if request.then is Then.HALF_CLOSE:
                    with contextlib.suppress(*_GONE):
                        await plain.send_eof()
        except* _GONE:
            pass
        finally:
            _leave(plain, with_reset=request.then is Then.RESET)
        if request.then in (Then.LEAVE, Then.RESET):
            return [GONE]
        return [found.decode() for found in _STATUS.findall(said) if found != b"100"] or [REFUSED]


async def _read(
    stream: trio.SSLStream[trio.SocketStream] | trio.SocketStream,
    said: bytearray,
    nursery: trio.Nursery,
) -> None:
    """Read until it is closed, or until what came is whole and nothing follows."""
    with contextlib.suppress(*_GONE):
        while True:
            timeout = QUIET_S if _is_whole(said) else ANSWER_S
            with trio.move_on_after(timeout) as scope:
                piece = await stream.receive_some(65536)
                if not piece:
                    break
                said += piece
            if scope.cancelled_caught and _is_whole(said):
                break
    nursery.cancel_scope.cancel()


def _is_whole(said: bytearray) -> bool:
    """Whether the last answer is there whole, as far as its length tells."""
    start = said.rfind(b"HTTP/1.1 ")
    if start < 0:
        return False
    answer, end, body = bytes(said[start:]).partition(b"\r\n\r\n")
    if not end or answer.startswith(b"HTTP/1.1 100"):
        return False
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", answer)
    if length is None:
        return body.endswith(b"0\r\n\r\n") or answer.startswith((b"HTTP/1.1 204", b"HTTP/1.1 101"))
    return len(body) >= int(length[1])


def _leave(plain: trio.SocketStream, *, with_reset: bool) -> None:
    if with_reset:
        with contextlib.suppress(OSError):
            plain.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    plain.socket.close()
