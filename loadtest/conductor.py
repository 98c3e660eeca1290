"""Who leads a run: phases, heartbeats, readings, and the end, after which nothing is left. One in a run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from loadtest import plan as plans
from loadtest.caller import Caller
from loadtest.scenarios import ARRIVED, DEPARTED, SETTLED
from loadtest.session import Session
from loadtest.summary import End
from loadtest.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadtest.plan import Plan
    from loadtest.record import Record
    from loadtest.target import Target

DEPART_S = 90.0
"""For callers to end the call that they are in."""
EMPTY_S = 60.0
"""For what was released to be gone."""
RECLAIM_SPARE_S = 90.0
"""How long is watched beyond a lease's end until abandoned sandboxes are gone: three times the bar."""
LOOK_S = 0.5


class Conductor:
    """The one who leads.

    Args:
        record: what all processes together have met.
        tell: a phase begins, for all processes.
        sleep: seconds.
    """

    def __init__(
        self,
        plan: Plan,
        target: Target,
        run: str,
        record: Record,
        tell: Callable[[str], None],
        sleep: Callable[[float], None],
    ) -> None:
        self.plan, self.target, self.run, self.record = plan, target, run, record
        self.phase, self.began = "", time.time()
        self.phases: list[tuple[str, float]] = []
        self.watch = Watch(target)
        self.end = End()
        self.is_finished = False
        self._tell, self._sleep = tell, sleep
        self._started = self._since = time.monotonic()
        trust = target.trust()
        self._callers = [
            Caller(Session.with_key(target.urls[0], trust, one.key, target.server_name), record, sleep=sleep)
            for one in target.tenants
        ]  # fmt: skip

    def advance(self) -> int | None:
        """Enter the phase that is due; how many callers there are to be, None: it is over."""
        now = time.monotonic()
        if not self.phase:
            self._started = now
            self._enter(plans.first_phase(self.plan))
        counters = self.record.counters
        progress = plans.Progress(
            phase_s=now - self._since,
            total_s=now - self._started,
            arrived=counters[ARRIVED],
            settled=counters[SETTLED],
        )
        phase = plans.next_phase(self.plan, self.phase, progress)
        if phase != self.phase:
            self._enter(phase)
        if phase == plans.OVER and self._are_gone(time.monotonic() - self._since):
            return None
        return plans.users_at(self.plan, phase, time.monotonic() - self._since)

    def _are_gone(self, seconds: float) -> bool:
        """Whether callers have ended the call that they were in. Those who vanish end none."""
        counters = self.record.counters
        is_enough = counters[DEPARTED] >= counters[ARRIVED] or seconds >= DEPART_S
        return self.plan.scenario == "abandon" or is_enough

    def _enter(self, phase: str) -> None:
        self.phase, self._since = phase, time.monotonic()
        self.phases.append((phase, time.time()))
        self._tell(phase)

    def keep(self) -> None:
        """Heartbeats, until it is over: of clients that vanish nobody sends any more."""
        while self.phase != plans.OVER:
            for caller in self._callers:
                caller.heartbeat(self.run, self.plan.ttl_s)
            due = time.monotonic() + self.plan.ttl_s / 4
            while self.phase != plans.OVER and time.monotonic() < due:
                self._sleep(LOOK_S)

    def look(self) -> None:
        """Readings, until all is finished."""
        while not self.is_finished:
            self.watch.look()
            self._sleep(LOOK_S)

    def stop(self) -> None:
        """It is over, whatever was under way."""
        if self.phase not in ("", plans.OVER):
            self._enter(plans.OVER)

    def finish(self) -> None:
        """Release everything, or see abandoned things go; once, however it is ended."""
        if self.is_finished:
            return
        self.stop()
        if self.plan.scenario == "abandon":
            self._see_gone()
        else:
            self._release()
        self.watch.look_at_all()
        self.is_finished = True

    def _release(self) -> None:
        for caller in self._callers:
            self.end.released += caller.release_run(self.run) or 0
        self.end.left = self._until_none(EMPTY_S)

    def _see_gone(self) -> None:
        # From the last word of anybody: the phase's begin.
        over = self._since
        self.end.left = self._until_none(self.plan.ttl_s + RECLAIM_SPARE_S)
        if self.end.left == 0:
            self.end.gone_s = time.monotonic() - over
        else:
            for caller in self._callers:
                self.end.released += caller.release_run(self.run) or 0

    def _until_none(self, within_s: float) -> int | None:
        """Sandboxes of the run that are left when none are, or time is up."""
        until = time.monotonic() + within_s
        while True:
            counts = [caller.held(self.run) for caller in self._callers]
            known = [count for count in counts if count is not None]
            left = sum(known) if len(known) == len(counts) else None
            if left == 0 or time.monotonic() >= until:
                return left
            self._sleep(LOOK_S)
