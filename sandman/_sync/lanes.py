# Written by scripts/unasync.py from sandman/_async/lanes.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Connections to one gateway, one in each lane: a call takes a lane for itself and gives it back.

Why not httpx's own pool: it walks over all of its connections and waiters at each request and hands
an idle one to several waiters at once, who then fight for it. 200 commands at a time took a median of
1.2 s there where each alone takes 0.05 s. A stack of clients of one connection each costs the same at
any number, and the connection used last, the one least likely to be closed by now, is used first.
"""

from __future__ import annotations

import ssl
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import httpx

from sandman._core import blocking as anyio

if TYPE_CHECKING:
    import httpcore

    from sandman._core.config import Settings

CLOSE_LIMIT_S = 2.0
"""Closing a connection sends at most a TLS farewell; nobody waits longer for that."""
CONNECTING_AT_ONCE = 64
"""Calls that connect at the same time; the time limit of each counts from its turn. A burst of 3,000
that connect all at once is late with every one, and starts over when the limit has passed."""


class Lane:
    """One connection, or the place for one. Made by `Lanes`."""

    def __init__(self, http: httpx.Client, connecting: anyio.Semaphore) -> None:
        self.http = http
        self.idle_since = 0.0
        self.half_made: httpcore.NetworkStream | None = None
        """A connection whose handshake is going on. When that is cancelled nobody else closes it: httpcore does so
        after errors alone."""
        self._connecting = connecting
        self._is_new = True
        self._waits = False

    def enter(self) -> None:
        """Wait until it is this lane's turn to connect; at once when it has been connected."""
        if self._is_new:
            self._connecting.acquire()
            self._waits = True

    def connected(self) -> None:
        """The connection is there, or given up: the next one may connect. May be called again."""
        self._is_new = False
        self.half_made = None
        if self._waits:
            self._waits = False
            self._connecting.release()


class Lanes:
    """Lanes that nobody uses just now; as many more are made as calls ask for."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle: deque[Lane] = deque()
        self._closed = False
        most = settings.limits.max_connections
        self._room = None if most is None else anyio.Semaphore(most)
        self._connecting = anyio.Semaphore(CONNECTING_AT_ONCE)
        self._trust: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<Lanes idle={len(self._idle)}>"

    def take(self) -> Lane:
        """A lane for one call; waits when `max_connections` are in use, and for its turn to connect."""
        if self._room is not None:
            self._room.acquire()
        # Deques pop atomically: threads may share the sync twin.
        try:
            lane = self._idle.pop()
        except IndexError:
            lane = Lane(self._make(), self._connecting)
        try:
            lane.enter()
        except BaseException:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                self.give(lane, whole=False)
            raise
        return lane

    def give(self, lane: Lane, *, whole: bool) -> None:
        """Take a lane back; one that is not `whole`, whose call was cancelled somewhere, is closed."""
        half_made = lane.half_made
        lane.connected()
        if self._room is not None:
            self._room.release()
        if half_made is not None:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                half_made.close()
        now = lane.idle_since = anyio.current_time()
        stale = [] if whole and not self._closed else [lane]
        if not stale:
            self._idle.append(lane)
        # The longest idle are at the left.
        with suppress(IndexError):
            while self._idle[0].idle_since < now - self._settings.limits.idle_s:
                stale.append(self._idle.popleft())
        for one in stale:
            _close(one)

    def close(self) -> None:
        """Close all lanes; those in use close when they are given back."""
        self._closed = True
        while self._idle:
            _close(self._idle.pop())

    def _make(self) -> httpx.Client:
        return httpx.Client(
            verify=self.trust(),
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=None,
                keepalive_expiry=self._settings.limits.idle_s,
            ),
        )

    def trust(self) -> ssl.SSLContext:
        """The certificates to trust."""
        # Reading a bundle of CAs takes longer than a command: once for all lanes.
        if self._trust is None:
            self._trust = self._settings.trust or _default_trust(self._settings.url)
        return self._trust


def _default_trust(url: str) -> ssl.SSLContext:
    if url.startswith("http:"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts nobody, and is not asked
    return httpx.create_ssl_context()


def _close(lane: Lane) -> None:
    with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
        lane.http.close()
