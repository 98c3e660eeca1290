"""What is decided as one, and what became of it: the records of the desk."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import math
from typing import TYPE_CHECKING

import trio

from gateway.model import Ready
from sandman.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.model import Instance
    from gateway.waiting import Waiter
    from gateway.wants import Want

LINGER_S = 30.0
"""Seconds that a case outlives its last caller: a client comes back at once, after a broken connection
within seconds, and a placeholder that is kept for nobody is another's wait."""


DROPPED_MAX = 10_000
"""Requests remembered that were given up, the oldest forgotten first: 200 bytes each."""


Outcome = Ready | Exception


class Dropped:
    """What was given up a moment ago. A caller that goes away in the middle of its call says so on another connection,
    which may be faster: the call that comes after it is nobody's any more."""

    def __init__(self) -> None:
        self._until: dict[tuple[str, str], float] = {}

    def add(self, tenant: str, request: str) -> None:
        """This tenant gives up this request now."""
        now = trio.current_time()
        self._until.pop((tenant, request), None)
        self._until[tenant, request] = now + LINGER_S
        # In order of time, as all are kept equally long.
        old = itertools.takewhile(lambda one: self._until[one] <= now, self._until)
        surplus = itertools.islice(self._until, max(0, len(self._until) - DROPPED_MAX))
        for one in {*old, *surplus}:
            del self._until[one]

    def has(self, tenant: str, request: str) -> bool:
        """Whether a call for this request may have been overtaken by its end."""
        return self._until.get((tenant, request), -math.inf) > trio.current_time()


class Case:
    """What is decided as one, and what became of it."""

    def __init__(self, tenant: str, waiters: dict[str, Waiter], *, can_return: bool) -> None:
        self.tenant = tenant
        self.waiters = waiters
        """By request id."""
        self.outcomes: dict[str, Outcome] = {}
        self.untold = set(waiters)
        """Whose outcome nobody has been given."""
        self.can_return = can_return
        """Whether anybody could ask for it again."""
        self.askers = 0
        self.scope = trio.CancelScope(deadline=trio.current_time() + LINGER_S)
        self.decided = trio.Event()
        self.told = trio.Event()
        self.gone = trio.Event()

    @property
    def is_ending(self) -> bool:
        """Whether it was given up."""
        return self.scope.cancel_called

    def outcome(self, request: str) -> Outcome:
        """What became of one, once it is decided."""
        return self.outcomes.get(request) or NotFoundError("the request was given up")

    def take(self, request: str) -> Ready:
        """What became of one; from now on it is the caller's.

        Raises:
            SandmanError: it could not be, or it was given up.
        """
        outcome = self.outcome(request)
        self.untold.discard(request)
        if not self.untold:
            self.told.set()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    @contextlib.contextmanager
    def attended(self) -> Iterator[None]:
        """Somebody asks for it while the block runs."""
        self.askers += 1
        self.scope.deadline = math.inf
        try:
            yield
        finally:
            self.askers -= 1
            if not self.askers and self.can_return:
                self.scope.deadline = trio.current_time() + LINGER_S
            elif not self.askers and self.untold:
                self.scope.cancel()


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """One of the sandboxes of a call: with its case, or made before."""

    index: int
    id: str
    want: Want
    case: Case | None
    made: Instance | None = None


def member_ids(whole: str, count: int) -> list[str]:
    """Request ids of a call for so many, whose own id is `whole`."""
    if count == 1:
        return [whole]
    return [hashlib.sha256(f"{whole}\0{index}".encode()).hexdigest()[:40] for index in range(count)]
