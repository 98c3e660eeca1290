"""The way to the daemons: one small HTTP transport for each sandbox.

One shared client costs 21 ms a request at 300 origins, since its pool looks at every connection;
one transport each costs 0.23 ms at any number. Here httpx errors become ours, and here alone is
an address dialled: always the one of a pod in the registry, never one that a caller gave.
"""

from __future__ import annotations

import contextlib
import json
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import httpx
import trio

from gateway.daemons import LostError, NotListeningError
from sandman import grants, names, wire
from sandman.errors import DiedError, InternalError, from_problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from gateway.config import Settings
    from gateway.model import Instance

TRANSPORTS_MAX = 4096
"""Transports kept open; the one unused for longest is closed. 17 KiB each when idle: 70 MiB."""
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=4, keepalive_expiry=30)
"""Calls to one sandbox at once are not limited here: a command may run for hours. Idle connections
close before the daemon's own limit of 75 s."""
ANSWER_MAX_BYTES = 64 * 1024
"""Of a handshake's answer, which has some hundred."""
SHAKE_S = 1.0
"""Seconds for one try of a handshake: a pod whose network is just being made drops packets."""
DIAL_PAUSES_S = (0.05, 0.2, 0.8)
"""Pauses between tries to connect to a sandbox that should be there: as long as a network blip."""


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

    def __repr__(self) -> str:
        return f"<Upstream transports={len(self._open)}>"

    async def aclose(self) -> None:
        """Close every transport."""
        while self._open:
            _, entry = self._open.popitem()
            await entry.transport.aclose()

    # --- handshakes ---

    async def info(self, instance: Instance) -> wire.Info:
        """See `Daemons.info`."""
        return await self._shake(instance, "GET", "/v1/info", None)

    async def claim(self, instance: Instance, claim: wire.Claim) -> wire.Info:
        """See `Daemons.claim`."""
        info = await self._shake(instance, "POST", "/v1/claim", claim.to_json())
        if claim.previous_boot_id is not None and info.boot_id == claim.previous_boot_id:
            raise NotListeningError("the daemon from before the swap")
        return info

    async def _shake(
        self, instance: Instance, method: str, path: str, body: dict[str, object] | None
    ) -> wire.Info:
        content = None if body is None else json.dumps(body).encode()
        headers = {"content-type": names.MEDIA_JSON} if content else {}
        try:
            with trio.fail_after(SHAKE_S):
                async with self._request(instance, method, path, headers, content) as response:
                    answer = wire.load_object(await _read_little(response))
        except (httpx.TransportError, trio.TooSlowError) as error:
            raise NotListeningError(str(error)) from error
        if response.status_code == httpx.codes.OK:
            return wire.Info.from_json(answer)
        refusal = from_problem(answer, response.status_code)
        if refusal.reason == "conflict" and "boot_id" in refusal.facts:
            raise NotListeningError("the daemon from before the swap")
        raise refusal

    # --- calls ---

    @contextlib.asynccontextmanager
    async def open(
        self,
        instance: Instance,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: AsyncIterator[bytes] | None,
    ) -> AsyncIterator[httpx.Response]:
        """Send a call on; the response's body is read by the caller within the block.

        Connecting is tried again while nothing was sent. After the first byte nothing is.

        Raises:
            LostError: no connection, or it broke before or after the response's head.
        """
        async with contextlib.AsyncExitStack() as stack:
            response = await self._dial(stack, instance, method, path, headers, content)
            try:
                yield response
            except httpx.TransportError as error:
                raise LostError(str(error) or type(error).__name__, sent=True) from error

    async def _dial(
        self,
        stack: contextlib.AsyncExitStack,
        instance: Instance,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: AsyncIterator[bytes] | None,
    ) -> httpx.Response:
        for pause in (*DIAL_PAUSES_S, None):
            try:
                request = self._request(instance, method, path, headers, content)
                return await stack.enter_async_context(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if pause is None:
                    raise LostError(f"no connection: {error}", sent=False) from error
                await trio.sleep(pause)
            except httpx.TransportError as error:
                raise LostError(str(error) or type(error).__name__, sent=True) from error
        raise AssertionError("unreachable")

    @contextlib.asynccontextmanager
    async def _request(
        self,
        instance: Instance,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes | AsyncIterator[bytes] | None,
    ) -> AsyncIterator[httpx.Response]:
        host = f"[{instance.address}]" if ":" in (instance.address or "") else instance.address
        timeout = {"connect": self._connect_s, "read": None, "write": None, "pool": None}
        request = httpx.Request(
            method,
            f"http://{host}:{self._port}{path}",
            headers={**headers, "authorization": f"Bearer {self._token(instance)}"},
            content=content,
            extensions={"timeout": timeout},
        )
        with self._use(instance) as transport:
            response = await transport.handle_async_request(request)
            try:
                yield response
            finally:
                with trio.move_on_after(1.0, shield=True):
                    await response.aclose()

    def _token(self, instance: Instance) -> str:
        key = self._credentials.daemon_keys.get(instance.key_id)
        if key is None:
            raise InternalError(
                f"no key {instance.key_id!r} to speak to this sandbox's daemon", sandbox=instance.id
            )
        return grants.daemon_token(key, instance.namespace, instance.nonce)

    @contextlib.contextmanager
    def _use(self, instance: Instance) -> Iterator[httpx.AsyncHTTPTransport]:
        entry = self._open.get(instance.uid)
        if entry is None:
            entry = self._open[instance.uid] = _Entry()
        self._open.move_to_end(instance.uid)
        entry.users += 1
        try:
            yield entry.transport
        finally:
            entry.users -= 1

    async def close_unused(self, is_alive: Callable[[str], bool]) -> None:
        """Close transports of pods that are gone, and the longest unused ones over the limit."""
        for uid, entry in list(self._open.items()):
            over = len(self._open) > TRANSPORTS_MAX
            if not entry.users and (over or not is_alive(uid)):
                del self._open[uid]
                await entry.transport.aclose()


async def _read_little(response: httpx.Response) -> bytes:
    """The body of a handshake; what answers there may be hostile and never end."""
    data = b""
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > ANSWER_MAX_BYTES:
            raise DiedError("what answers there is not the daemon: its answer has no end")
    return data


class _Entry:
    """A transport and how many calls use it."""

    def __init__(self) -> None:
        self.transport = httpx.AsyncHTTPTransport(limits=LIMITS, trust_env=False)
        self.users = 0
