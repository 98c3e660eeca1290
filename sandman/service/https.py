"""Serves an ASGI application over HTTPS or HTTP, on trio. Which server does it is known here alone.

HTTP itself is anycorn's; connections are ours. Its own `serve` sends shielded and without a limit, so
that a client which takes no data keeps it from ever stopping; keeps the connection of a client that left
until the idle limit; and reads its certificate once. Here each accepted socket is known, so that the
stop can cut what does not end:

    stop is set ──▶ lame duck: all goes on, answers say `Connection: close`
                ──▶ no more accepts; idle connections close; requests get `grace_s`
                ──▶ the rest is cancelled ──▶ what still hangs is cut

Lifespan messages are not sent: what lives as long as the server is started around it.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio.abc
import trio
from anycorn.app_wrappers import ASGIWrapper
from anycorn.config import Config
from anycorn.worker_context import WorkerContext

from sandman.service import asgi
from sandman.service.connections import Connection, ConnectionContext, SecureStream

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

_LOG = logging.getLogger("sandman.https")
_OF_CONNECTION = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)
_BACKLOG = 1024
"""Connections that the kernel holds until they are accepted: a burst of callers at once."""
_ACCEPT_PAUSE_S = 0.1
"""Wait after an accept that failed, as for want of descriptors: others will be closed soon."""
_QUEUED_CHUNKS = 4
"""Pieces of a body, of 64 KiB at most, between the socket's reader and the application."""
_PROBE_AFTER_S = 60
_PROBE_EVERY_S = 15
"""TCP keep-alive: without it the connections of a client whose machine died stay for ever."""
_SOCKET_FAREWELL_S = 2.0
"""Before the end of the grace WebSockets are told that the server goes: their clients come back elsewhere."""


@dataclass(frozen=True)
class Settings:
    """Limits of a server.

    Args:
        lame_duck_s: seconds for which a server that was told to stop serves on as before. Endpoints
            and load balancers take some seconds to learn that it is going. 15 s in a cluster.
        grace_s: seconds that requests in flight get after that. 30 s: a kubelet's default.
        cut_after_s: seconds after their cancellation until connections are cut that still hang.
        keep_alive_s: seconds until an idle connection, or one whose request's head does not get
            complete, is closed. 75 s: longer than the 60 s that load balancers keep theirs, so that
            it is they who close.
        stalled_s: seconds after which a peer that takes no data, or does not acknowledge any, is
            dead (TCP_USER_TIMEOUT). Long: a trainer that is busy elsewhere stops reading for a while.
        handshake_s: seconds for a TLS handshake.
        max_connections: open connections; more wait in the backlog. An idle one costs about
            25 KB, with TLS 40 KB.
        max_head_bytes: of a request's line and headers; one read of 64 KiB more may pass.
        max_body_bytes: of a request's body, 413 beyond; None leaves it to the application.
        requests_per_connection: after so many a connection is closed, so that clients spread anew
            over the replicas.
        max_message_bytes: of a WebSocket's message, close code 1009 beyond. Five of them may wait in
            memory for a connection: four before the application, one that is coming in.
        ping_s: seconds between pings on a WebSocket; load balancers cut what is silent for 60 s.
    """

    lame_duck_s: float = 0.0
    grace_s: float = 30.0
    cut_after_s: float = 1.0
    keep_alive_s: float = 75.0
    stalled_s: float = 120.0
    handshake_s: float = 10.0
    max_connections: int = 8192
    max_head_bytes: int = 64 * 1024
    max_body_bytes: int | None = None
    requests_per_connection: int = 10_000
    max_message_bytes: int = 4 * 1024 * 1024
    ping_s: float = 20.0


@dataclass(frozen=True)
class Bound:
    """An address that is listened on."""

    host: str
    port: int


async def serve(
    app: asgi.App,
    *,
    bind: Sequence[str],
    stop: trio.Event,
    tls: Callable[[], ssl.SSLContext] | None = None,
    settings: Settings = Settings(),
    task_status: trio.TaskStatus[list[Bound]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set and its consequences are over; cancelled, stop at once.

    A handler is cancelled when its caller disconnects (`asgi.CancelOnDisconnect`).

    Args:
        app: an ASGI application; gets http and websocket scopes.
        bind: addresses as `host:port`, `[::]:port` (IPv6 and IPv4) or `:port`; port 0 is any.
        stop: set it to stop; `stop_on_signals` does. Readiness belongs to it: not ready once set.
        tls: gives the context for each new connection (`tls.Certificate.current`); None: plain HTTP.
        settings: limits.
        task_status: gets the addresses bound, once connections are accepted.

    Raises:
        OSError: an address cannot be bound.
        ValueError: an address cannot be understood.
    """
    await _Server(app, stop, tls, settings).run(bind, task_status)


async def stop_on_signals(
    stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Set `stop` at the first SIGTERM or SIGINT; a second one then ends the process at once."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        async for number in received:
            _LOG.info("stopping on %s", signal.Signals(number).name)
            stop.set()
            return


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[host]:port` or `:port` (all addresses, IPv6 and IPv4).

    Raises:
        ValueError: it is none of these.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        raise ValueError(f"{address!r} is no host:port")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], int(port)
    if ":" in host:
        raise ValueError(f"{address!r}: an IPv6 address goes in brackets")
    return host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0"), int(port)  # nosec B104  # noqa: S104 - a service in a pod


def _listen(address: str, stalled_s: float) -> socket.socket:
    """A listening socket. Accepted ones inherit its options (on Linux)."""
    host, port = parse_address(address)
    listener = socket.create_server(
        (host, port),
        family=socket.AF_INET6 if ":" in host else socket.AF_INET,
        backlog=_BACKLOG,
        dualstack_ipv6=host == "::",
    )
    listener.setblocking(False)
    options = {
        socket.TCP_USER_TIMEOUT: int(stalled_s * 1000),
        socket.TCP_KEEPIDLE: _PROBE_AFTER_S,
        socket.TCP_KEEPINTVL: _PROBE_EVERY_S,
    }
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options.items():
        listener.setsockopt(socket.IPPROTO_TCP, option, value)
    return listener


def _configure(settings: Settings) -> Config:
    config = Config()
    config.accesslog = None
    config.errorlog = _LOG
    config.include_server_header = False
    config.keep_alive_timeout = settings.keep_alive_s
    config.keep_alive_max_requests = settings.requests_per_connection
    config.h11_max_incomplete_size = settings.max_head_bytes
    config.max_app_queue_size = _QUEUED_CHUNKS
    config.websocket_max_message_size = settings.max_message_bytes
    config.websocket_ping_interval = settings.ping_s
    # What inflates a thousandfold passes every limit on what comes in.
    config.websocket_permessage_deflate = False
    return config


def _is_of_connection(error: BaseException) -> bool:
    """Whether only a peer or the network is at fault: resets, failed handshakes, timeouts."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_of_connection(inner) for inner in error.exceptions)
    return isinstance(error, _OF_CONNECTION)


class _Server:
    """One run of `serve`."""

    def __init__(
        self,
        app: asgi.App,
        stop: trio.Event,
        tls: Callable[[], ssl.SSLContext] | None,
        settings: Settings,
    ) -> None:
        if settings.max_body_bytes is not None:
            app = asgi.LimitBody(app, settings.max_body_bytes)
        self._farewell = trio.Event()
        app = asgi.CloseSockets(asgi.CloseWhenStopping(app, stop), self._farewell)
        wrapped = asgi.CancelOnDisconnect(app)
        self._app = ASGIWrapper(wrapped)  # type: ignore[arg-type]
        self._stop = stop
        self._tls = tls
        self._settings = settings
        self._config = _configure(settings)
        self._context = WorkerContext(max_requests=None)
        self._places = trio.Semaphore(settings.max_connections)
        self._open: set[anyio.abc.SocketStream] = set()
        self._finished = trio.Event()

    async def run(self, bind: Sequence[str], task_status: trio.TaskStatus[list[Bound]]) -> None:
        with contextlib.ExitStack() as stack:
            sockets = [
                stack.enter_context(_listen(address, self._settings.stalled_s)) for address in bind
            ]
            bound = [Bound(*item.getsockname()[:2]) for item in sockets]
            async with trio.open_nursery() as everything:
                everything.start_soon(self._cut_what_hangs)
                try:
                    async with trio.open_nursery() as handlers:
                        await self._accept_until_stopped(sockets, handlers, bound, task_status)
                        # Closed before the wait: what comes now is refused and goes elsewhere.
                        stack.close()
                        await self._context.terminated.set()
                        deadline = trio.current_time() + self._settings.grace_s
                        everything.cancel_scope.deadline = deadline
                        everything.start_soon(self._say_farewell, deadline)
                finally:
                    self._finished.set()

    async def _say_farewell(self, deadline: float) -> None:
        with trio.move_on_at(deadline - _SOCKET_FAREWELL_S):
            await self._finished.wait()
        self._farewell.set()

    async def _accept_until_stopped(
        self,
        sockets: list[socket.socket],
        handlers: trio.Nursery,
        bound: list[Bound],
        task_status: trio.TaskStatus[list[Bound]],
    ) -> None:
        async with trio.open_nursery() as accepting:
            for item in sockets:
                listener = await anyio.abc.SocketListener.from_socket(item)
                accepting.start_soon(self._accept, listener, handlers)
            task_status.started(bound)
            await self._stop.wait()
            await trio.sleep(self._settings.lame_duck_s)
            accepting.cancel_scope.cancel()

    async def _accept(self, listener: anyio.abc.SocketListener, handlers: trio.Nursery) -> None:
        while True:
            await self._places.acquire()
            try:
                stream = await listener.accept()
            except (OSError, anyio.BrokenResourceError) as error:
                # Out of descriptors, or the peer went while it waited: neither is a reason to end.
                self._places.release()
                _LOG.warning("accept failed: %r", error.__cause__ or error)
                await trio.sleep(_ACCEPT_PAUSE_S)
            else:
                handlers.start_soon(self._handle, stream)

    async def _handle(self, plain: anyio.abc.SocketStream) -> None:
        self._open.add(plain)
        try:
            stream = await self._secured(plain)
            context: Any = ConnectionContext(self._context)
            await Connection(self._app, self._config, context, {}, stream).run()
        except Exception as error:  # noqa: BLE001 - a fault in one connection ends that one alone
            level = logging.DEBUG if _is_of_connection(error) else logging.ERROR
            _LOG.log(level, "a connection failed: %r", error, exc_info=level == logging.ERROR)
        finally:
            self._open.discard(plain)
            self._places.release()
            await anyio.aclose_forcefully(plain)

    async def _secured(self, plain: anyio.abc.SocketStream) -> Any:  # noqa: ANN401 - either stream
        if self._tls is None:
            return plain
        with anyio.fail_after(self._settings.handshake_s):
            return await SecureStream.wrap(
                plain, server_side=True, ssl_context=self._tls(), standard_compatible=False
            )

    async def _cut_what_hangs(self) -> None:
        """End what cancellation cannot: anycorn sends shielded, for as long as the peer likes."""
        try:
            await self._finished.wait()
        finally:
            with trio.move_on_after(self._settings.cut_after_s, shield=True):
                await self._finished.wait()
            for stream in self._open:
                _LOG.warning("a connection that takes no data is cut")
                with contextlib.suppress(OSError):
                    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)  # nosec B610  # noqa: S610 - no Django
                    raw.shutdown(socket.SHUT_RDWR)
