"""The way to the daemons: one small HTTP transport for each sandbox.

One shared client costs 21 ms a request at 300 origins, since its pool looks at every connection;
one transport each costs 0.23 ms at any number. Here httpx errors become ours, and here alone is
an address dialled: always the one of a pod in the registry, never one that a caller gave.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import ssl
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple, Protocol

import httpx
import trio

from gateway import handshakes
from gateway.daemons import LostError, NotListeningError
from gateway.dialling import KEEP_ALIVE, Tries, broken
from gateway.websocket import DaemonSocket, Opening, RefusedError
from sandman import grants, names, wire
from sandman.errors import DiedError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from gateway.config import Settings
    from gateway.model import Instance
    from sandman.probes import Probe, Target

HANDSHAKE_S = 30.0
"""Seconds for the answer to a WebSocket's handshake, which a server in the sandbox may give."""
TRANSPORTS_MAX = 4096
"""Transports kept open; the one unused for longest is closed. 17 KiB each when idle: 70 MiB."""
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=4, keepalive_expiry=30)
"""Calls to one sandbox at once are not limited here: a command may run for hours. Idle connections
close before the daemon's own limit of 120 s."""
ANSWER_MAX_BYTES = 128 * 1024
"""Of an answer to the gateway itself: a handshake's has some hundred, evidence of 64 commands 70 KiB."""
EVIDENCE_S = 5.0
"""Seconds for a daemon's evidence: some files of the kernel, on a machine that may be very busy."""
SHAKE_S = 1.0
"""Seconds for one try of a handshake: a pod whose network is just being made drops packets."""
Header = tuple[bytes, bytes]


class DaemonKeys(Protocol):
    """The keys in force just now."""

    @property
    def daemon_keys(self) -> Mapping[str, bytes]:
        """Keys that daemon tokens are derived from, by id."""


class Upstream:
    """Transports to daemons, by pod.

    Args:
        credentials: keys that daemon tokens are derived from.
        settings: `connect_s`, `daemon_port`.
    """

    def __init__(self, credentials: DaemonKeys, settings: Settings) -> None:
        self._credentials = credentials
        self._connect_s = settings.connect_s
        self._port = settings.daemon_port
        self._open: OrderedDict[str, _Entry] = OrderedDict()
        # Never used, for daemons speak plain HTTP. Without it httpx reads the authorities of the
        # whole internet for each transport: 49 ms of CPU.
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def __repr__(self) -> str:
        return f"<Upstream transports={len(self._open)}>"

    async def aclose(self) -> None:
        """Close every transport."""
        while self._open:
            _, entry = self._open.popitem()
            await entry.transport.aclose()

    # --- handshakes ---

    async def info(self, instance: Instance, patience_s: float = SHAKE_S) -> wire.Info:
        """See `Daemons.info`. `patience_s`: seconds for the answer; more where there is no next try."""
        return await self._shake(instance, "GET", "/v1/info", None, patience_s)

    async def claim(self, instance: Instance, claim: wire.Claim) -> wire.Info:
        """See `Daemons.claim`."""
        info = await self._shake(instance, "POST", "/v1/claim", claim.to_json(), SHAKE_S)
        if claim.previous_boot_id is not None and info.boot_id == claim.previous_boot_id:
            raise NotListeningError("the daemon from before the swap")
        return info

    async def probe(self, instance: Instance, probe: Probe) -> dict[Target, str]:
        """See `Daemons.probe`."""
        patience_s = SHAKE_S + probe.timeout_s
        answer = await self._tell(instance, "POST", "/v1/probe", probe.to_json(), patience_s)
        return handshakes.probed(*answer, probe.targets)

    async def evidence(
        self, instance: Instance, exec_ids: tuple[str, ...]
    ) -> tuple[dict[str, object], list[dict[str, object]]]:
        """What its daemon says for a certificate; raises as `Daemons.probe`."""
        body: dict[str, object] = {"exec_ids": list(exec_ids)}
        answer = await self._tell(instance, "POST", "/v1/evidence", body, EVIDENCE_S)
        return handshakes.evidence(*answer, exec_ids)

    async def renew(self, instance: Instance, ttl_s: float, *, asked: bool) -> None:
        """See `Daemons.renew`."""
        # Without what is not said, a daemon from before there was `asked` can be told all the same.
        body: dict[str, object] = {"ttl_s": ttl_s, "asked": True} if asked else {"ttl_s": ttl_s}
        status, data = await self._tell(instance, "POST", "/v1/renew", body, SHAKE_S)
        if status != httpx.codes.OK:
            handshakes.refuse(status, data)

    async def _shake(
        self,
        instance: Instance,
        method: str,
        path: str,
        body: dict[str, object] | None,
        patience_s: float,
    ) -> wire.Info:
        return handshakes.info(*await self._tell(instance, method, path, body, patience_s))

    async def _tell(
        self,
        instance: Instance,
        method: str,
        path: str,
        body: dict[str, object] | None,
        patience_s: float,
    ) -> tuple[int, bytes]:
        """Status and body of the answer to a small call of the gateway's own."""
        content = None if body is None else json.dumps(body).encode()
        headers = [(b"content-type", names.MEDIA_JSON.encode())] if content else []
        token = self._token(instance)
        if token is None:
            # The watch of the keys may be behind that of the pods; it is not for long.
            raise NotListeningError(f"there is no key {instance.key_id!r} yet")
        try:
            with trio.fail_after(patience_s):
                await self._knock(instance)
                sending = _Sending(method, path, headers, content)
                async with self._request(instance, token, sending, patience_s) as response:
                    data = await _read_little(response)
        except httpx.ConnectError as error:
            self._entry(instance).was_refused = True
            raise NotListeningError(str(error) or "nobody listens") from error
        except (httpx.TransportError, trio.TooSlowError) as error:
            raise NotListeningError(str(error) or "no answer in time") from error
        return response.status_code, data

    async def _knock(self, instance: Instance) -> None:
        """After a refusal: see whether somebody listens by now, at a tenth of what a request costs.

        A daemon that is just starting is tried again every few milliseconds, on the processor that it needs
        itself if the node is this one.
        """
        entry = self._entry(instance)
        if not entry.was_refused:
            return
        host = _host(instance.address).strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with trio.socket.socket(family, socket.SOCK_STREAM) as sock:
            try:
                await sock.connect((host, instance.port_or(self._port)))
            except OSError as error:
                raise NotListeningError(str(error)) from error
        entry.was_refused = False

    # --- calls ---

    @contextlib.asynccontextmanager
    async def open(
        self,
        instance: Instance,
        method: str,
        path: str,
        headers: Sequence[Header],
        content: bytes | AsyncIterator[bytes] | None,
        until: float | None = None,
    ) -> AsyncIterator[httpx.Response]:
        """Send a call on; the response's body is read by the caller within the block.

        Connecting is tried again while nothing was sent. After the first byte nothing is.

        Args:
            instance: where to.
            method: the caller's.
            path: path and query, sent as they are: to decode and encode would change files' names.
            headers: names and values, as bytes.
            content: the body, None when there is none.
            until: when connecting is given up, on trio's clock; None: after DIAL_S.

        Raises:
            LostError: no connection, it broke before or after the response's head, or what answers
                there is not the daemon.
            UnreachableError: the key to speak to it is not here yet.
        """
        async with contextlib.AsyncExitStack() as stack:
            sending = _Sending(method, path, headers, content)
            response = await self._dial(stack, instance, sending, until)
            if handshakes.is_strangers(response.status_code, response.headers.raw):
                raise LostError("another daemon answers there", sent=False)
            if not 200 <= response.status_code < 600:
                raise LostError(f"its answer has status {response.status_code}", sent=True)
            try:
                yield response
            except httpx.TransportError as error:
                raise broken(error) from error

    @contextlib.asynccontextmanager
    async def open_socket(
        self,
        instance: Instance,
        path: str,
        headers: Sequence[Header],
        subprotocols: Sequence[str],
        until: float | None = None,
    ) -> AsyncIterator[DaemonSocket]:
        """A WebSocket to the daemon, for the length of the block; else as `open`.

        Raises:
            RefusedError: the answer is an HTTP response.
            LostError: no connection, no answer within HANDSHAKE_S, or not the daemon's.
            UnreachableError: the key to speak to it is not here yet.
        """
        token = self._token_or_raise(instance)
        stream = await self._connect(instance, until)
        try:
            socket = DaemonSocket(stream)
            opening = Opening(
                host=f"{_host(instance.address)}:{instance.port_or(self._port)}",
                target=path,
                headers=[*headers, (b"authorization", f"Bearer {token}".encode())],
                subprotocols=subprotocols,
            )
            await _shake_hands(socket, opening)
            yield socket
        finally:
            await trio.aclose_forcefully(stream)

    async def _connect(self, instance: Instance, until: float | None = None) -> trio.SocketStream:
        tries = Tries(until)
        while True:
            try:
                address = _host(instance.address).strip("[]")
                with trio.fail_after(tries.limit(self._connect_s)):
                    stream = await trio.open_tcp_stream(address, instance.port_or(self._port))
            except (OSError, trio.TooSlowError, httpx.ConnectError) as error:
                await trio.sleep(tries.pause(error))
            else:
                for level, option, value in KEEP_ALIVE:
                    stream.setsockopt(level, option, value)
                return stream

    async def _dial(
        self,
        stack: contextlib.AsyncExitStack,
        instance: Instance,
        sending: _Sending,
        until: float | None,
    ) -> httpx.Response:
        token = self._token_or_raise(instance)
        tries = Tries(until)
        while True:
            try:
                limit = tries.limit(self._connect_s)
                request = self._request(instance, token, sending, limit)
                return await stack.enter_async_context(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                await trio.sleep(tries.pause(error))
            except httpx.TransportError as error:
                raise broken(error) from error

    @contextlib.asynccontextmanager
    async def _request(
        self, instance: Instance, token: str, sending: _Sending, connect_s: float
    ) -> AsyncIterator[httpx.Response]:
        timeout = {"connect": connect_s, "read": None, "write": None, "pool": None}
        request = httpx.Request(
            sending.method,
            f"http://{_host(instance.address)}:{instance.port_or(self._port)}/",
            headers=[*sending.headers, (b"authorization", f"Bearer {token}".encode())],
            content=sending.content,
            extensions={"timeout": timeout, "target": sending.path.encode("latin-1")},
        )
        with self._use(instance) as transport:
            response = await transport.handle_async_request(request)
            try:
                yield response
            finally:
                with trio.move_on_after(1.0, shield=True):
                    await response.aclose()

    def _token(self, instance: Instance) -> str | None:
        key = self._credentials.daemon_keys.get(instance.key_id)
        return None if key is None else grants.daemon_token(key, instance.namespace, instance.nonce)

    def _token_or_raise(self, instance: Instance) -> str:
        token = self._token(instance)
        if token is None:
            raise UnreachableError(
                f"there is no key {instance.key_id!r} to speak to this sandbox with yet",
                sandbox=instance.id,
                retry_after=1.0,
            )
        return token

    @contextlib.contextmanager
    def _use(self, instance: Instance) -> Iterator[httpx.AsyncHTTPTransport]:
        entry = self._entry(instance)
        self._open.move_to_end(instance.uid)
        entry.users += 1
        try:
            yield entry.transport
        finally:
            entry.users -= 1

    def _entry(self, instance: Instance) -> _Entry:
        entry = self._open.get(instance.uid)
        if entry is None:
            entry = self._open[instance.uid] = _Entry(self._tls)
        return entry

    async def close_unused(self, is_alive: Callable[[str], bool]) -> None:
        """Close transports of pods that are gone, and the longest unused ones over the limit."""
        for uid, entry in list(self._open.items()):
            over = len(self._open) > TRANSPORTS_MAX
            if not entry.users and (over or not is_alive(uid)):
                del self._open[uid]
                await entry.transport.aclose()


class _Sending(NamedTuple):
    """What a call sends."""

    method: str
    path: str
    headers: Sequence[Header]
    content: bytes | AsyncIterator[bytes] | None


async def _shake_hands(socket: DaemonSocket, opening: Opening) -> None:
    try:
        with trio.fail_after(HANDSHAKE_S):
            await socket.open(opening)
    except trio.TooSlowError as error:
        raise LostError(f"no answer to the handshake in {HANDSHAKE_S:.0f} s", sent=True) from error
    except RefusedError as refused:
        if handshakes.is_strangers(refused.status, refused.headers):
            raise LostError("another daemon answers there", sent=False) from refused
        raise


async def _read_little(response: httpx.Response) -> bytes:
    """The body of a handshake; what answers there may be hostile and never end."""
    data = b""
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > ANSWER_MAX_BYTES:
            raise DiedError("what answers there is not the daemon: its answer has no end")
    return data


def _host(address: str | None) -> str:
    """The host of a URL; an address, never a name that somebody would have to resolve."""
    try:
        host = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError as error:
        raise httpx.ConnectError(f"the pod has no address: {address!r}") from error
    return f"[{host}]" if host.version == 6 else str(host)


class _Entry:
    """A transport and how many calls use it."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self.transport = httpx.AsyncHTTPTransport(
            verify=tls, limits=LIMITS, trust_env=False, socket_options=KEEP_ALIVE
        )
        self.users = 0
        self.was_refused = False
        """Nobody listened when it was dialled last."""
