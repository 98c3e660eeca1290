"""Which handler a request goes to, and the checks before it. Every error leaves here as a problem."""

from __future__ import annotations

import threading

from daemon import kernel, log
from daemon.documents import dump
from daemon.exchange import CallerGoneError, Response
from daemon.http1 import parse_query
from sandman import names
from sandman.errors import (
    BadRequestError,
    DiedError,
    InternalError,
    MethodNotAllowedError,
    NotFoundError,
    OutcomeUnknownError,
    SandmanError,
    UnauthenticatedError,
)
from sandman.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from daemon.exchange import Exchange
    from daemon.http1 import Head
    from daemon.lease import Watch

    Handler = Callable[[Exchange], None]
    Table = Mapping[str, Mapping[str, "Route"]]


PORTS = "/v1/ports/{}/*"
ANY = "*"
"""Any method that has no handler of its own."""


class Route(NamedTuple):
    """Who answers, and by which parameters of the query; None: it is not ours."""

    handler: Handler
    parameters: tuple[str, ...] | None = ()


class Routes:
    """The application: answers each exchange exactly once."""

    def __init__(self, table: Table, token_sha256: str, boot_id: str, lease: Watch) -> None:
        self._table = table
        self._token_sha256 = token_sha256
        self._lease = lease
        self.boot_id = boot_id

    def handle(self, exchange: Exchange) -> None:
        """Answer one request.

        Raises:
            CallerGoneError: there was nobody to answer.
        """
        try:
            self._dispatch(exchange)
        except CallerGoneError:
            raise
        except SandmanError as error:
            _refuse(exchange, error)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the connection's thread
            text = f"{type(error).__name__}: {error}"
            log.line(f"{exchange.head.method} {exchange.head.path}: {text}")
            _refuse(exchange, _fault(error, text))

    def _dispatch(self, exchange: Exchange) -> None:
        head = exchange.head
        self._check(head.headers)
        is_use = not _is_look(head)
        self._lease.enter(is_use=is_use)
        try:
            route = self._find(head)
            if route.parameters is not None:
                exchange.query = _query(head.query, route.parameters)
            route.handler(exchange)
        finally:
            self._lease.leave(is_use=is_use)

    def _find(self, head: Head) -> Route:
        methods = self._table.get(head.path) or self._table.get(_pattern(head.path))
        if methods is None:
            raise NotFoundError(f"there is no {head.path}")
        route = methods.get(head.method) or methods.get(ANY)
        if route is None:
            known = ", ".join(sorted(methods)) or "GET, HEAD"
            raise MethodNotAllowedError(f"{head.path} takes {known}")
        return route

    def _check(self, headers: Mapping[str, str]) -> None:
        # Imported at the first call and not at the start: hashlib is not needed to listen.
        from hashlib import sha256  # noqa: PLC0415
        from hmac import compare_digest  # noqa: PLC0415

        scheme, _, token = headers.get("authorization", "").partition(" ")
        digest = sha256(token.strip().encode("latin-1")).hexdigest()
        if scheme.lower() != "bearer" or not compare_digest(digest, self._token_sha256):
            raise UnauthenticatedError("a bearer token is required, and this is not it")
        boot_id = headers.get(names.HEADER_BOOT_ID.lower())
        if boot_id is not None and boot_id != self.boot_id:
            raise DiedError(
                f"the sandbox's daemon was started anew: the call is for boot {boot_id[:64]}",
                facts={"boot_id": self.boot_id},
            )


def _is_look(head: Head) -> bool:
    """Whether a call only looks at the sandbox's state, or is the gateway's own. Who waits for a command's end
    (`wait_s`) does more."""
    if head.path in _OF_THE_GATEWAY:
        return True
    path = head.path if head.path in _LOOKS else _pattern(head.path)
    return path in _LOOKS and head.method == "GET" and not head.query


_OF_THE_GATEWAY = ("/v1/claim", "/v1/renew", "/v1/info", "/v1/probe", "/v1/evidence")
_LOOKS = ("/v1/processes", "/v1/processes/{}", "/v1/sessions", "/v1/sessions/{}")


class Later:
    """A part with handlers that is made at the first call: what it imports need not slow down each start."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: Any = None
        self._lock = threading.Lock()

    @property
    def is_made(self) -> bool:
        """Whether somebody needed it."""
        return self._made is not None

    def made(self) -> Any:  # noqa: ANN401 - whatever `make` makes
        """The part itself."""
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def to(self, name: str, *parameters: str) -> Route:
        """Its handler of that name, which takes these parameters."""
        return Route(self._handler(name), parameters)

    def to_all(self, name: str) -> Route:
        """Its handler of that name, which makes of the query what it will."""
        return Route(self._handler(name), None)

    def _handler(self, name: str) -> Handler:
        def handle(exchange: Exchange) -> None:
            getattr(self.made(), name)(exchange)

        return handle


def _fault(error: Exception, text: str) -> SandmanError:
    """Who is to blame for what nobody caught, and whether the call was carried out is not known."""
    is_short = isinstance(error, OSError) and error.errno in kernel.NO_ROOM
    if is_short or isinstance(error, MemoryError):
        return OutcomeUnknownError(f"the sandbox has left no room: {text}", cause="sandbox")
    return InternalError(text)


def _query(text: str, known: tuple[str, ...]) -> dict[str, bytes]:
    """The query's parameters. One that is misspelt must not be lost in silence."""
    found = parse_query(text)
    unknown = sorted(found.keys() - set(known))
    if unknown:
        told = f"known: {', '.join(known)}" if known else "the call takes none"
        raise BadRequestError(f"unknown parameter {unknown[0]!r}; {told}", field=unknown[0])
    return found


def _pattern(path: str) -> str:
    """The path with its third part left open: `/v1/processes/{}/output`. Of a port all that follows it is
    the server's own."""
    if path.startswith("/v1/ports/"):
        return PORTS
    parts = path.split("/")
    if len(parts) > 3 and names.is_exec_id(parts[3]):
        parts[3] = "{}"
    return "/".join(parts)


def _refuse(exchange: Exchange, error: SandmanError) -> None:
    """Answer with the problem; when an answer was begun all that can be done is to break it off."""
    if exchange.is_answered:
        return
    headers: tuple[tuple[str, str], ...] = ()
    if error.status == 401:
        headers = (("WWW-Authenticate", "Bearer"),)
    if error.retry_after is not None:
        headers = (("Retry-After", str(int(error.retry_after))),)
    exchange.respond(Response(error.status, dump(error.problem()), names.MEDIA_PROBLEM, headers))
