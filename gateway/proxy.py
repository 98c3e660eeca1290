"""Forwards a call to the sandbox's daemon, bytes as they come, both ways.

A call ends when its sandbox does: with the true reason, in the form that the caller reads (a problem
document before the response began, an ERROR frame after). It never ends as a result.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Self

import trio

from gateway import calls, reach
from gateway.daemons import LostError, NotListeningError
from gateway.dialling import is_silence
from gateway.losses import Losses
from sandman import names, wire
from sandman.errors import BadRequestError, DiedError, SandmanError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import httpx
    from starlette.types import Receive, Scope, Send

    from gateway.config import Settings
    from gateway.either import Known, Reader
    from gateway.model import Instance
    from gateway.ports import Port
    from gateway.upstream import Upstream

REQUEST_HEADERS = (
    b"content-type", b"content-length", b"accept", b"range", b"content-encoding", b"content-range",
    b"if-match", b"if-none-match", b"if-range", b"if-unmodified-since",
)  # fmt: skip
"""What goes on to the daemon. A list of what may, not of what may not: the caller's Authorization,
cookies, hop-by-hop and routing headers have no business inside a sandbox."""
RESPONSE_HEADERS = (
    b"content-type",
    b"content-length",
    b"content-range",
    b"accept-ranges",
    b"sandman-mode",
    b"retry-after",
)
SAFE_HEADERS = (
    (b"content-security-policy", b"sandbox"),
    (b"x-content-type-options", b"nosniff"),
)
"""What comes from a sandbox was written by an untrusted program: a browser must not run it on the
gateway's origin."""


class Proxy:
    """Forwards calls.

    Args:
        roster: which sandbox has ended.
        upstream: the way to the daemons.
        pods: asked when the watch does not know yet why a daemon went silent.
    """

    def __init__(self, roster: Known, upstream: Upstream, pods: Reader, settings: Settings) -> None:
        self.registry = self._registry = roster.registry
        self.upstream = upstream
        self._settings = settings
        self.losses = Losses(roster, upstream, pods, settings)
        """Knows why a sandbox is no more, or finds out."""
        self._boots: dict[str, str] = {}

    def learn(self, uid: str, boot_id: str) -> None:
        """Pin a sandbox to the daemon start that was handed over."""
        self._boots[uid] = boot_id

    def has_met(self, uid: str) -> bool:
        """Whether this replica knows that the sandbox's handshake is done."""
        return uid in self._boots

    def forget_ended(self) -> None:
        """Drop pins of pods that are gone."""
        for uid in [uid for uid in self._boots if self._registry.get(uid) is None]:
            del self._boots[uid]

    async def boot_id(self, instance: Instance, until: float) -> str:
        """The daemon start that the sandbox's claim was made with.

        Args:
            instance: whose.
            until: when the caller must have heard, on trio's clock.

        Raises:
            DiedError: the daemon that answers there has another claim.
            UnreachableError: nobody answers there, or its handshake is not done yet.
        """
        known = self._boots.get(instance.uid)
        if known is None and instance.place is not None:
            known = instance.place.boot_id  # the Lease says it
        if known is not None:
            return known
        begun = trio.current_time()
        # There is no second try, and a node on which fifty sandboxes start at once is slow.
        patience = reach.dial_until(begun, until, self._settings.loss_s) - begun
        try:
            info = await self.upstream.info(instance, patience)
        except NotListeningError as error:
            since = begun if is_silence(error) else None
            lost = LostError(str(error), sent=False, since=since)
            raise await self.losses.diagnose(instance, lost, "GET", until) from error
        if info.claim_id is None or info.boot_id == instance.previous_boot_id:
            # The allocator, maybe another replica, is about to claim it. Had it died instead, its
            # container would not be started again, and the pod would tell.
            raise UnreachableError(
                "the sandbox is only starting", sandbox=instance.id, retry_after=1.0
            )
        if info.claim_id != instance.claim_id:
            raise DiedError("another daemon answers there", sandbox=instance.id)
        self.learn(instance.uid, info.boot_id)
        return info.boot_id

    def forward(self, target: Target, path: str, port: Port | None = None) -> Forwarding:
        """The call as a response that Starlette runs: an ASGI application.

        Args:
            target: where to.
            path: path and raw query at the daemon.
            port: the server in the sandbox that is called, where it is not the daemon itself.
        """
        return Forwarding(self, target, path, port)

    async def run(self, forwarding: Forwarding, scope: Scope, receive: Receive, send: Send) -> None:
        """Carry out one forwarding."""
        target, reply = forwarding.target, _Reply(send, forwarding.port)
        instance = target.instance
        lost: LostError | None = None
        call = calls.of(scope)
        with (
            trio.CancelScope() as ended,
            self._registry.during(instance.uid, ended),
            call.during(ended),
        ):
            if (over := self.losses.known_end(instance)) is not None:
                # It ended between the look-up and here: nobody would cancel this call.
                raise over
            try:
                await self._exchange(forwarding, scope, receive, reply)
            except LostError as error:
                lost = error
        if ended.cancelled_caught or lost is not None:
            reply.break_off(call.error or lost)
            why = call.error or await self.losses.diagnose(
                instance, lost, scope["method"], target.until
            )
            await reply.fail(why)

    async def _exchange(
        self, forwarding: Forwarding, scope: Scope, receive: Receive, reply: _Reply
    ) -> None:
        port, target = forwarding.port, forwarding.target
        headers = request_headers(scope, target.boot_id)
        if port is not None:
            headers = [*port.request_headers(scope["headers"]), headers[-1]]
        body = RequestBody(receive) if has_body(scope) else None
        until = self.dial_until(target)
        async with self.upstream.open(
            target.instance, scope["method"], forwarding.path, headers, body, until
        ) as response:
            await reply.start(response)
            async for chunk in response.aiter_raw():
                await reply.body(chunk)
            await reply.end()

    def dial_until(self, target: Target) -> float:
        """When connecting is given up, so that its caller hears in time."""
        now = trio.current_time()
        return reach.dial_until(now, target.until, self._settings.loss_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Whom a call is for: the pod, the daemon start that is meant, and when, on trio's clock, its caller must
    have heard that it cannot be reached."""

    instance: Instance
    boot_id: str
    until: float


class Forwarding:
    """One call on its way; an ASGI application."""

    def __init__(self, proxy: Proxy, target: Target, path: str, port: Port | None = None) -> None:
        self._proxy = proxy
        self.target = target
        self.path = path
        self.port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run it."""
        await self._proxy.run(self, scope, receive, send)


class _Reply:
    """The response to the caller, as far as it has come."""

    def __init__(self, send: Send, port: Port | None = None) -> None:
        self._send = send
        self._port = port
        self._frames: wire.FrameDecoder | None = None
        self._started = False

    async def start(self, response: httpx.Response) -> None:
        kept = response_headers(response.headers.raw, self._port)
        media = dict(kept).get(b"content-type", b"").partition(b";")[0].strip().lower()
        if media == names.MEDIA_FRAMES.encode() and self._port is None:
            self._frames = wire.FrameDecoder()
            # An ERROR frame may be added, and a frame that is not whole left out.
            kept = [header for header in kept if header[0] != b"content-length"]
        await self._send(
            {
                "type": "http.response.start",
                "status": response.status_code,
                "headers": [*kept, *SAFE_HEADERS],
            }
        )
        self._started = True

    async def body(self, chunk: bytes) -> None:
        """Pass bytes on; of frames whole ones only, so that an ERROR frame can always follow.

        Raises:
            LostError: what should be frames is not.
        """
        if self._frames is not None:
            try:
                frames = list(self._frames.feed(chunk))
            except BadRequestError as error:
                raise LostError(f"its answer makes no sense: {error.detail}", sent=True) from error
            chunk = b"".join(wire.encode_frame(*frame) for frame in frames)
        if chunk:
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def break_off(self, why: Exception | None) -> None:
        """End at once what can tell no reason any more: nothing is left to be found out for.

        Raises:
            BrokenBodyError: it is the body of a file, or of a server in the sandbox.
        """
        if self._started and self._frames is None:
            raise BrokenBodyError(str(why or "the sandbox has ended"))

    async def fail(self, error: SandmanError) -> None:
        """Tell the caller, in the form that is still possible.

        Raises:
            SandmanError: nothing was sent yet: the edge makes a problem document of it.
        """
        if not self._started:
            raise error
        frame = wire.encode_frame(wire.ERROR, json.dumps(error.problem()).encode())
        await self._send({"type": "http.response.body", "body": frame, "more_body": False})


class BrokenBodyError(Exception):
    """The sandbox was lost in the middle of a body; the connection to the caller is cut."""


def request_headers(scope: Scope, boot_id: str) -> list[tuple[bytes, bytes]]:
    """Headers for the daemon: the caller's that may pass, and the boot that is meant. As bytes: their
    values need not be ASCII."""
    given = dict(scope["headers"])
    if b"transfer-encoding" in given:
        # It overrides the length, which may be a lie (RFC 9112, 6.3).
        given.pop(b"content-length", None)
    passed = [(name, given[name]) for name in REQUEST_HEADERS if name in given]
    return [*passed, (names.HEADER_BOOT_ID.encode(), boot_id.encode())]


def response_headers(
    given: Iterable[tuple[bytes, bytes]], port: Port | None
) -> list[tuple[bytes, bytes]]:
    """Headers for the caller: of a server in the sandbox what may pass, of the daemon what is listed."""
    headers = {name.lower(): value for name, value in given}
    if port is not None and names.HEADER_PORT.lower().encode() in headers:
        return port.response_headers(given)
    return [(name, headers[name]) for name in RESPONSE_HEADERS if name in headers]


def has_body(scope: Scope) -> bool:
    """Whether the caller sends a body. HTTP/2 needs no header to say so."""
    given = dict(scope["headers"])
    if b"transfer-encoding" in given or given.get(b"content-length", b"0") != b"0":
        return True
    untold = scope.get("http_version") == "2" and b"content-length" not in given
    return untold and scope["method"] in {"POST", "PUT"}


class RequestBody:
    """The request's body as it comes in. No generator: there is nothing to close."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._more = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next piece.

        Raises:
            LostError: the caller went away before its end.
        """
        while self._more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise LostError("the caller went away", sent=True)
            self._more = message.get("more_body", False)
            if message.get("body"):
                return bytes(message["body"])
        raise StopAsyncIteration
