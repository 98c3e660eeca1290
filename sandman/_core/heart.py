"""Heartbeats of the runs whose sandboxes a client has: for as long as its process lives, and no longer. And what the
client could not give back: heartbeats would keep it for as long.

A thread in either client, with a connection of its own: a trainer's event loop may be held up for minutes by what it
computes, and its sandboxes shall not be taken for abandoned then. It is a daemon thread: it keeps no process alive, and
a process that is killed takes it along.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from sandman import names
from sandman._core import blocking
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman._core.config import Settings
    from sandman._sync.transport import Transport

DEFAULT_TTL_S = 300.0
"""Seconds that sandboxes outlive the last heartbeat of their client: it may be held up for minutes, and what a dead
one leaves shall not stay for many."""
BEATS_IN_TTL = 4
"""Heartbeats in one `ttl_s`: three may be lost."""
LONGEST_PAUSE_S = 60.0
"""Seconds between two heartbeats at most."""
AGAIN_S = 5.0
"""Seconds until one that failed is sent again, or the usual pause where that is shorter."""
STOP_S = 2.0
"""Seconds that closing a client waits for a heartbeat on its way, and to say that there will be no more."""
LAST_S = 0.5
"""Seconds for each of its last words."""
HEARSAY_S = 0.25
"""Seconds until every replica knows what one of them did."""

logger = logging.getLogger("sandman")


_hearts: weakref.WeakSet[Heart] = weakref.WeakSet()


def _after_fork() -> None:
    for heart in _hearts:
        heart.begin()


os.register_at_fork(after_in_child=_after_fork)


@dataclasses.dataclass(slots=True)
class _Run:
    ttl_s: float
    due: float
    """On the monotonic clock."""
    pending: int = 0
    """Calls that make sandboxes of it just now."""
    asked: int = 0
    """How often such a call began or ended."""
    was_kept: bool = False
    """Whether a heartbeat of it was sent, which the cluster may remember."""
    reserved_until: float = 0.0
    """When the last reservation for it ends, on the monotonic clock."""

    @property
    def pause_s(self) -> float:
        return min(self.ttl_s / BEATS_IN_TTL, LONGEST_PAUSE_S)


class Debt(NamedTuple):
    """A call that gives back what nobody holds; repeated, it does no harm."""

    path: str
    key: str | None = None
    """Idempotency key of the request that it gives up."""


class Heart:
    """Sends the heartbeats of one client, and gives back what it owes.

    Args:
        settings: the client's.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._is_stopped = False
        self.begin()
        _hearts.add(self)

    def begin(self) -> None:
        """Without runs, and without a thread: at first, and after a fork in the child, which has its parent's locks
        as they were and none of its threads. What the parent holds is the parent's to keep."""
        self._runs: dict[str, _Run] = {}
        self._debts: dict[Debt, float] = {}
        """When each is tried next."""
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        return f"<Heart runs={sorted(self._runs)}>"

    @property
    def beats(self) -> bool:
        """Whether there is a thread, which closing must end."""
        return self._thread is not None

    @contextlib.contextmanager
    def expecting(self, run: str, ttl_s: float) -> Iterator[None]:
        """While this runs sandboxes of this run are made: it is kept from now on, until it has none.

        Raises:
            RuntimeError: its client is closed: they would be lost at the end of a lease that nobody renews.
        """
        if self._is_stopped:
            raise RuntimeError(
                "the client is closed, and sends no heartbeats for what would be made: make it inside of `with`, "
                "or with heartbeat=False"
            )
        self._add(run, ttl_s)
        try:
            yield
        finally:
            with self._lock:
                known = self._runs.get(run)
                if known is not None:
                    known.pending -= 1
                    known.asked += 1

    def reserved(self, run: str, seconds: float, ttl_s: float = DEFAULT_TTL_S) -> None:
        """Something is reserved for this run for so long: it is kept, also while it has no sandbox."""
        if self._is_stopped:
            return  # it ends ten minutes later, as the caller was told
        with self.expecting(run, ttl_s), self._lock:
            known = self._runs[run]
            known.reserved_until = max(known.reserved_until, time.monotonic() + seconds)

    def _add(self, run: str, ttl_s: float) -> None:
        with self._lock:
            known = self._runs.setdefault(run, _Run(ttl_s, time.monotonic() + ttl_s))
            known.ttl_s = min(known.ttl_s, ttl_s)
            known.due = min(known.due, time.monotonic() + known.pause_s)
            known.pending += 1
            known.asked += 1
            self._start()
        self._changed.set()

    def owe(self, debt: Debt) -> None:
        """It could not be given back just now: that is tried until it can, or until the client is closed."""
        with self._lock:
            self._debts[debt] = time.monotonic() + AGAIN_S
            self._start()
        self._changed.set()

    def _start(self) -> None:
        if not self._is_stopped and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sandman-heart", daemon=True)
            self._thread.start()

    def again(self) -> Heart:
        """For a client that is used again: another one, since a thread of this one may still be ending."""
        return Heart(self._settings) if self._is_stopped else self

    def stop(self) -> None:
        """No more heartbeats; leases go on without."""
        with self._lock:
            self._is_stopped = True
            thread, self._thread = self._thread, None
        self._changed.set()
        if thread is not None:
            thread.join(STOP_S)

    def _run(self) -> None:
        # What the synchronous client needs, and one that makes no sandbox does not.
        from sandman._sync import transport as sync  # noqa: PLC0415

        transport = sync.Transport(self._settings)
        try:
            while not self._is_stopped:
                self._changed.clear()
                # First: what is given back is not to be kept.
                self._pay(transport, self._owed(time.monotonic()), AGAIN_S)
                for name, run in self._due(time.monotonic()):
                    self._beat(transport, name, run)
                self._changed.wait(self._wait(time.monotonic()))
            self._pay(transport, self._owed(math.inf), LAST_S)
            kept = [name for name, run in self._runs.items() if run.was_kept]
            if left := self._end(transport, kept):
                # Another replica than the one that released the last may hear of it a moment later.
                blocking.sleep(HEARSAY_S)
                self._end(transport, left)
        finally:
            transport.close()

    def _due(self, now: float) -> list[tuple[str, _Run]]:
        with self._lock:
            return [(name, run) for name, run in self._runs.items() if run.due <= now]

    def _owed(self, now: float) -> list[Debt]:
        with self._lock:
            return [debt for debt, at in self._debts.items() if at <= now]

    def _wait(self, now: float) -> float | None:
        """Seconds until the next one is due; None: there is none, and none while it is stopped."""
        with self._lock:
            if self._is_stopped:
                return 0.0
            due = [*(run.due for run in self._runs.values()), *self._debts.values()]
            return max(0.0, min(due, default=now + 1e6) - now)

    def _beat(self, transport: Transport, name: str, run: _Run) -> None:
        from sandman._sync.transport import Call  # noqa: PLC0415

        asked, began = run.asked, time.monotonic()
        call = Call.with_json(
            "POST", f"/v1/runs/{quote(name, safe='')}/heartbeat", {"ttl_s": run.ttl_s}
        )
        call.patience_s = call.silence_s = max(1.0, run.pause_s)
        run.was_kept = True
        try:
            answer = transport.json(call)
        except Exception as error:
            # Of a fault of ours the log tells all; the sandboxes must not pay for it.
            trace = not isinstance(error, SandmanError)
            logger.warning("the heartbeat of run %s failed: %s", name, error, exc_info=trace)
            run.due = time.monotonic() + min(AGAIN_S, run.pause_s)
            return
        run.due = began + run.pause_s
        if isinstance(answer, dict) and answer.get("sandboxes") == 0 and self._forget(name, asked):
            self._end(transport, [name])

    def _pay(self, transport: Transport, debts: list[Debt], patience_s: float) -> None:
        """Until one cannot be paid: heartbeats are not to wait for hundreds of them."""
        from sandman._sync.transport import Call  # noqa: PLC0415

        for debt in debts:
            headers = {} if debt.key is None else {names.HEADER_IDEMPOTENCY_KEY: debt.key}
            call = Call("DELETE", debt.path, headers)
            call.patience_s = call.silence_s = patience_s
            try:
                transport.json(call)
            except Exception as error:
                trace = not isinstance(error, SandmanError)
                logger.warning(
                    "what nobody holds could not be given back: %s", error, exc_info=trace
                )
                with self._lock:
                    self._debts[debt] = time.monotonic() + AGAIN_S
                return
            with self._lock:
                del self._debts[debt]

    def _end(self, transport: Transport, runs: list[str]) -> list[str]:
        """There will be no more heartbeats: what they left goes with the last sandbox, if that is gone by now.
        Those of which it is not."""
        from sandman._sync.transport import Call  # noqa: PLC0415

        left = []
        for name in runs:
            call = Call("DELETE", f"/v1/runs/{quote(name, safe='')}/heartbeat")
            call.patience_s = call.silence_s = LAST_S
            try:
                answer = transport.json(call)
            except Exception as error:
                # The gateway sees to it some minutes later, too.
                trace = not isinstance(error, SandmanError)
                logger.info("the end of run %s could not be told: %s", name, error, exc_info=trace)
                return []
            if isinstance(answer, dict) and answer.get("sandboxes"):
                left.append(name)
        return left

    def _forget(self, name: str, asked: int) -> bool:
        """It has no sandboxes any more, unless one was made while the gateway was asked; whether it has none."""
        with self._lock:
            known = self._runs[name]
            is_reserved = time.monotonic() < known.reserved_until
            if known.pending or known.asked != asked or is_reserved:
                return False
            del self._runs[name]
            return True
