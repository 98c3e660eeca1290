"""Connections to all addresses at once: idle ones wait in one epoll, a call has a thread while it is answered.

The daemon's own server has a thread for each connection; of twelve thousand pods that would be too many.
"""

from __future__ import annotations

import os
import select
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from daemon.connection import Connection
from daemon.exchange import CallerGoneError

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon.exchange import Exchange

    Find = Callable[[str], Callable[[Exchange], None] | None]

WORKERS = 256
"""Calls that are answered at once; those that sleep count."""
BACKLOG = 4096
_READY = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT


class HollowConnection(Connection):
    """One that is served when something has come, and not by a thread that waits for it."""

    def __init__(self, sock: socket.socket, find: Find) -> None:
        super().__init__(sock, self._answer)
        self._address = sock.getsockname()[0]
        self._find = find

    def serve_ready(self) -> bool:
        """Answer what is there; whether the connection goes on."""
        try:
            while self._serve_one():
                if not self._buffer:
                    return True
        except CallerGoneError:
            return False
        return False

    def close(self) -> None:
        """It is over."""
        self._sock.close()

    def _answer(self, exchange: Exchange) -> None:
        handle = self._find(self._address)
        if handle is None:
            raise CallerGoneError("there is no pod at this address")
        handle(exchange)


class HollowServer:
    """Serves one port of every address.

    Args:
        port: to listen on.
        find: who answers at an address; None: nobody.
        host: to listen on; all of them, unless a test wants fewer.
    """

    def __init__(self, port: int, find: Find, host: str = "0.0.0.0") -> None:
        self._find = find
        self._listener = socket.create_server((host, port), backlog=BACKLOG)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._connections: dict[int, HollowConnection] = {}
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="call")
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._stop, select.EPOLLIN)

    def stop(self) -> None:
        """Have `run` return; from any thread."""
        os.eventfd_write(self._stop, 1)

    def run(self) -> None:
        """Serve until stopped; what is under way then is seen through."""
        try:
            self._run()
        finally:
            self._workers.shutdown()
            self._listener.close()
            self._poll.close()
            os.close(self._stop)
            for connection in self._connections.values():
                connection.close()

    def _run(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._stop:
                    return
                if fd == self._listener.fileno():
                    self._accept()
                else:
                    self._workers.submit(self._serve, fd)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # nobody more just now, or one that has gone again
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections[sock.fileno()] = HollowConnection(sock, self._find)
            self._poll.register(sock, _READY)

    def _serve(self, fd: int) -> None:
        connection = self._connections[fd]
        if connection.serve_ready():
            self._poll.modify(fd, _READY)
            return
        self._poll.unregister(fd)
        del self._connections[fd]
        connection.close()  # last: the next one accepted may have the same number
