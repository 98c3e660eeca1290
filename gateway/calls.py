"""Calls under way and by what their callers are known, so that they end when that is revoked.

A call looks at its token when it begins. One that goes on for hours (a command's output, a terminal) would outlive
its key else: each change of the keys, and the clock every few seconds, is a look at all of them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import trio

from sandman.errors import UnauthenticatedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from gateway.model import Principal

EVERY_S = 5.0
"""Seconds between two looks for what has expired. What is revoked is seen at once."""
_KEY = "sandman.call"


class Cancellable(Protocol):
    """A cancel scope."""

    def cancel(self) -> None:
        """End what runs in it."""


class Call:
    """One of them."""

    def __init__(self) -> None:
        self.principal: Principal | None = None
        self.error: UnauthenticatedError | None = None
        """Why it was ended, once it was."""
        self._scopes: list[Cancellable] = []

    @contextlib.contextmanager
    def during(self, scope: Cancellable) -> Iterator[None]:
        """While the block runs, the end of the call is the end of this scope, and of none around it: its owner
        can tell the caller why, in the form that is still possible."""
        self._scopes.append(scope)
        if self.error is not None:
            scope.cancel()
        try:
            yield
        finally:
            self._scopes.remove(scope)

    def end(self) -> None:
        """What the caller is known by is no more."""
        if self.error is None:
            self.error = revoked()
            self._scopes[-1].cancel()


class RevokedError(Exception):
    """The caller's key was revoked in the middle of an answer; the connection is cut."""


class Calls:
    """All calls under way in this replica.

    Args:
        is_in_force: whether what somebody is known by would still be taken.
    """

    def __init__(self, is_in_force: Callable[[Principal], bool]) -> None:
        self._is_in_force = is_in_force
        self._open: set[Call] = set()

    def __len__(self) -> int:
        return len(self._open)

    async def run(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            await trio.sleep(EVERY_S)
            self.review()

    def review(self) -> None:
        """End the calls of what is not in force any more."""
        for call in list(self._open):
            if call.principal is not None and not self._is_in_force(call.principal):
                call.end()

    def begin(self, scope: Scope, principal: Principal) -> None:
        """This call is that caller's.

        Raises:
            UnauthenticatedError: what he is known by was revoked since it was looked at.
        """
        if not self._is_in_force(principal):
            raise revoked()
        of(scope).principal = principal

    @contextlib.contextmanager
    def one(self, scope: Scope) -> Iterator[Call]:
        """While the block runs, this is the scope of a call under way."""
        call = scope[_KEY] = Call()
        self._open.add(call)
        try:
            yield call
        finally:
            self._open.discard(call)


def of(scope: Scope) -> Call:
    """The call that this is the scope of."""
    call = scope.get(_KEY)
    return call if isinstance(call, Call) else Call()


def revoked() -> UnauthenticatedError:
    """What a caller is told."""
    return UnauthenticatedError("the token of this call is revoked or has expired")


class Ending:
    """Ends calls: an ASGI application around the others.

    Args:
        app: what it is around.
        calls: where each call stands while it runs.
        refuse: an error as a response.
    """

    def __init__(
        self, app: ASGIApp, calls: Calls, refuse: Callable[[Scope, Exception], Response]
    ) -> None:
        self._app = app
        self._calls = calls
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one.

        Raises:
            RevokedError: its answer had begun.
        """
        has_begun = False

        async def send_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        with self._calls.one(scope) as call, trio.CancelScope() as end, call.during(end):
            await self._app(scope, receive, send_on)
        if not end.cancelled_caught:
            return
        error = call.error or revoked()
        if has_begun:
            raise RevokedError(error.detail)
        response = self._refuse(scope, error)
        response.headers["Connection"] = "close"
        await response(scope, receive, send)
