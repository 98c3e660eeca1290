"""The sandbox's lease as its own daemon keeps it: who is not reached for too long ends by itself.

Of all that ends a sandbox this alone needs nobody outside: neither gateway nor API server nor kubelet.
It is armed by the claim, so that a placeholder waits for ever. Reached means: an authenticated call came,
or one is still open, whether or not a byte moves on it. A connection whose other end is gone is noticed
within half a minute (`server`) and closes the call.

Beside it stands what a gateway asks before it ends a sandbox for want of use: when it was last *used*, by a call
other than a look at its state, and when its caller last *renewed* it. A gateway's own calls are neither.

`Lease` is the state, and pure; `Watch` is its clock and its thread.
"""

from __future__ import annotations

import math
import threading
import time

from sandman.errors import ConflictError, ExpiredError, UnreachableError
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandman.wire import LeaseTerms

LOOK_S = 30.0
"""Seconds between two looks at the clock at the latest: a wait does not count the time that the machine
is suspended, the lease does."""


def now() -> float:
    """Seconds on a clock that nobody sets, and that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """When to end. Seconds, all on the one clock that its owner reads."""

    def __init__(self) -> None:
        self.terms: LeaseTerms | None = None
        """None: not armed."""
        self._reached = 0.0
        self._open = 0
        self._in_use = 0
        self._used: float | None = None
        self._renewed: float | None = None

    @property
    def span_s(self) -> float:
        """How long it may be out of reach."""
        return math.inf if self.terms is None else self.terms.ttl_s + self.terms.grace_s

    def agree(self, terms: LeaseTerms, at: float) -> None:
        """From now on these terms hold."""
        self.terms = terms
        self._reached = at

    def use(self, at: float) -> None:
        """It was claimed, or called."""
        self._used = at

    def keep(self, at: float) -> None:
        """Its caller renewed it."""
        self._renewed = at

    def enter(self, at: float, *, is_use: bool = True) -> None:
        """A call has come. `is_use`: it is more than a look."""
        self._open += 1
        self._reached = at
        if is_use:
            self._in_use += 1
            self.use(at)

    def leave(self, at: float, *, is_use: bool = True) -> None:
        """It is over."""
        self._open -= 1
        self._reached = at
        if is_use:
            self._in_use -= 1
            self.use(at)

    def ages(self, at: float) -> tuple[float | None, float | None]:
        """Seconds since it was last used, 0 while it is, and last renewed; None: never."""
        used = at if self._in_use else self._used
        renewed = self._renewed
        return (
            None if used is None else at - used,
            None if renewed is None else at - renewed,
        )

    def left(self, at: float) -> float:
        """Seconds until it is over, unless it is reached before."""
        return self.span_s if self._open else self._reached + self.span_s - at


class Watch:
    """Keeps the lease.

    Args:
        expire: ends the sandbox; called once, in the watching thread.
        clock: see `now`.
    """

    def __init__(self, expire: Callable[[], None], clock: Callable[[], float] = now) -> None:
        self._expire = expire
        self._clock = clock
        self._lease = Lease()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._is_watched = False
        self._is_over = False
        self._is_ended = False

    def agree(self, terms: LeaseTerms) -> None:
        """Arm it, or set new terms.

        Raises:
            ExpiredError: too late.
            UnreachableError: there is no room for the thread that watches it: it is not armed.
        """
        with self._lock:
            self._check()
            self._start()
            self._lease.agree(terms, self._clock())
            self._lease.use(self._clock())
        self._changed.set()

    def renew(self, ttl_s: float, *, asked: bool = False) -> LeaseTerms:
        """From now on it may be out of reach for so many seconds, and the grace; the terms.

        Args:
            ttl_s: seconds.
            asked: its caller wanted it, not a gateway by itself.

        Raises:
            ConflictError: it was never armed.
            ExpiredError: too late.
        """
        with self._lock:
            self._check()
            if self._lease.terms is None:
                raise ConflictError("there is no lease to renew: the claim came with none")
            terms = self._lease.terms._replace(ttl_s=ttl_s)
            self._lease.agree(terms, self._clock())
            if asked:
                self._lease.keep(self._clock())
        self._changed.set()
        return terms

    def end(self) -> None:
        """It was given back: from now on no call is answered, and nothing expires."""
        with self._lock:
            self._is_over = self._is_ended = True
        self._changed.set()

    def enter(self, *, is_use: bool = True) -> None:
        """An authenticated call has come; `leave` follows.

        Raises:
            ExpiredError: too late: nothing of it is done.
        """
        with self._lock:
            self._check()
            self._lease.enter(self._clock(), is_use=is_use)

    def leave(self, *, is_use: bool = True) -> None:
        """The call is answered, or its caller is gone."""
        with self._lock:
            self._lease.leave(self._clock(), is_use=is_use)

    def activity(self, rested_at: float | None) -> tuple[float | None, float | None, float | None]:
        """Seconds since it was last used, was last renewed by its caller, and had something to do; None: never.

        Args:
            rested_at: when the last command was over, on this clock; None while one runs.
        """
        with self._lock:
            at = self._clock()
            used, renewed = self._lease.ages(at)
        if used is None:
            return None, renewed, None
        return used, renewed, 0.0 if rested_at is None else max(0.0, min(used, at - rested_at))

    def _check(self) -> None:
        if self._is_over:
            raise ExpiredError("nobody reached this sandbox for as long as its lease allows")

    def _start(self) -> None:
        if self._is_watched:
            return
        try:
            threading.Thread(target=self._run, name="lease", daemon=True).start()
        except RuntimeError as error:  # the sandbox's limit of processes is reached
            text = f"no thread to keep the lease: {error}"
            raise UnreachableError(text, cause="sandbox", retry_after=1.0) from error
        self._is_watched = True

    def _run(self) -> None:
        while True:
            try:
                if (wait := self._look()) <= 0:
                    break
                self._changed.wait(wait)
            except (
                MemoryError
            ):  # what runs in the sandbox has it, and it must not keep the lease alive
                time.sleep(1.0)
        if not self._is_ended:
            self._expire()

    def _look(self) -> float:
        """Seconds until the next look; 0: it is over."""
        self._changed.clear()
        with self._lock:
            left = 0.0 if self._is_over else self._lease.left(self._clock())
            self._is_over = left <= 0
            return min(max(left, 0.0), LOOK_S)
