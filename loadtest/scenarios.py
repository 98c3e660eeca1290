"""What one caller does in each scenario, until it is over. Nothing here knows of Locust."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from loadtest import plan as plans

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadtest.caller import Box, Caller
    from loadtest.stage import Stage
    from loadtest.target import Tenant

SETTLED, ARRIVED, DEPARTED = "settled", "arrived", "departed"
"""Counters that phases follow from."""


class Role:
    """One caller of a tenant: `play` returns when its part is over."""

    def __init__(
        self, stage: Stage, caller: Caller, tenant: Tenant, sleep: Callable[[float], None]
    ) -> None:
        self._stage, self._caller, self._tenant, self._sleep = stage, caller, tenant, sleep

    def play(self) -> None:
        """All of it."""
        self._caller.arrive()
        self._stage.record.counters[ARRIVED] += 1
        self._stage.await_phase(plans.WORK, plans.HOLD)
        getattr(self, f"_{self._stage.plan.scenario}")()
        self._stage.record.counters[DEPARTED] += 1

    # Each of these is a scenario, by its name.

    def _burst(self) -> None:
        self._fill()

    _abandon = _burst
    """Nobody releases; how callers vanish is the stage manager's part."""

    def _hold(self) -> None:
        self._fill()
        self._stage.await_phase(plans.HOLD)
        self._use()

    def _ramp(self) -> None:
        self._fill(most=1)
        self._use()

    def _churn(self) -> None:
        while self._stage.pace(self._stage.plan.campaigns_per_s, self._sleep):
            self._campaign()

    def _multi(self) -> None:
        name = self._tenant.name
        ask = self._stage.ask()
        while self._stage.phase == plans.WORK:
            box = self._caller.create(ask, f"create ({name})")
            if box is None:
                continue
            if self._stage.phase == plans.WORK:
                # What was served after the end, when others ask no more, says nothing of shares.
                self._stage.record.counters[f"served {name}"] += 1
            self._caller.exec(box, ["true"])
            self._sleep(self._stage.plan.rest_s)
            self._caller.release(box)

    def _fill(self, most: int | None = None) -> None:
        """Make sandboxes until there are enough; `most` of them at most."""
        stage, batch = self._stage, self._stage.plan.batch
        made = 0
        while stage.phase == plans.WORK and (most is None or made < most):
            count = stage.take(batch)
            if not count:
                return
            self._make(count)
            made += count

    def _make(self, count: int) -> None:
        stage, ask = self._stage, self._stage.ask()
        if stage.plan.batch == 1:
            box = self._caller.create(ask)
            stage.record.counters[SETTLED] += 1
            if box is not None:
                self._keep(box)
            return
        settled = 0
        for box in self._caller.create_many(ask, count):
            settled += 1
            stage.record.counters[SETTLED] += 1
            self._keep(box)
        stage.record.counters[SETTLED] += count - settled

    def _use(self) -> None:
        """Commands and files over all that the tenant holds, each drawn alike, until it is over."""
        stage = self._stage
        while stage.pace(stage.plan.rate, self._sleep):
            if held := stage.held.get(self._tenant.name):
                stage.work(self._caller, random.choice(held))  # noqa: S311 - a draw

    def _keep(self, box: Box) -> None:
        self._stage.held.setdefault(self._tenant.name, []).append(box)

    def _campaign(self) -> None:
        """Work in one sandbox, evaluate in a fresh one, release both."""
        stage, caller = self._stage, self._caller
        work = caller.create(stage.ask(), "create")
        if work is None:
            return
        caller.exec(work, ["true"])
        caller.put(work)
        caller.get(work)
        judge = caller.create(stage.ask(purpose="eval"), "create (eval)")
        if judge is not None:
            caller.put(judge)
            caller.exec(judge, ["true"])
            caller.release(judge)
        caller.release(work)
        stage.record.counters["campaigns"] += judge is not None
