"""What a scenario does and when: pure numbers, and phases that follow from what was seen so far."""

from __future__ import annotations

import dataclasses
import math

SCENARIOS = ("burst", "ramp", "hold", "churn", "multi", "abandon")

# Phases, in the order in which they come. Not every scenario has each.
ARRIVE = "arrive"
"""Callers open their connections: a burst measures the gateway, not the handshakes before it."""
WORK = "work"
HOLD = "hold"
OVER = "over"

MONTH_S = 30 * 86400
MONTHLY = 3_100_000
"""Sandboxes in a month, of the largest use that was published."""
SANDBOXES_A_CAMPAIGN = 2
"""One to work in, a fresh one to evaluate in."""

# Bounds: whoever mistypes a zero asks for what is refused, not for ten times the load.
N_MOST = 20_000
CALLERS_MOST = 20_000
RATE_MOST = 2_000.0
"""Calls a second."""
SECONDS_MOST = 7_200.0
TIMES_MOST = 100.0
BATCH_MOST = 1_000
"""The gateway's own bound of `count`."""
ARRIVE_S = 120.0
"""For connections; who is not there by then is not waited for."""
SPARE_S = 900.0
"""Longest life of a sandbox beyond the longest that the test may take: what nobody releases ends all the same."""


class PlanError(ValueError):
    """This cannot be asked for; the text says which flag and why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """One run of a scenario.

    Args:
        scenario: one of `SCENARIOS`.
        n: sandboxes: of a burst in one moment, else held at once.
        callers: users at once; 0: as many as the scenario needs.
        batch: sandboxes asked for in one call; 1: single calls.
        seconds: how long it goes on: `hold`, `churn`, `multi`; of `ramp` until all are there.
        rate: commands and file calls a second over all that are held.
        files: share of them that are files.
        times: `churn`: multiple of the rate that makes `MONTHLY`.
        ttl_s: lease of what is made, kept by heartbeats of the run.
        wait_s: how long a caller waits for a sandbox.
        fill_s: most seconds until all sandboxes of `hold`, `abandon` and `burst` are there.
        rest_s: `multi`: how long a sandbox is kept.
    """

    scenario: str
    n: int = 100
    callers: int = 0
    batch: int = 1
    seconds: float = 60.0
    rate: float = 20.0
    files: float = 0.2
    times: float = 1.0
    ttl_s: float = 120.0
    wait_s: float = 60.0
    fill_s: float = 600.0
    rest_s: float = 1.0

    def __post_init__(self) -> None:
        if self.scenario not in SCENARIOS:
            raise PlanError(f"--scenario is one of {', '.join(SCENARIOS)}")
        bounds: list[tuple[str, float, float, float]] = [
            ("--n", self.n, 1, N_MOST),
            ("--callers", self.callers, 0, CALLERS_MOST),
            ("--batch", self.batch, 1, BATCH_MOST),
            ("--seconds", self.seconds, 0.1, SECONDS_MOST),
            ("--rate", self.rate, 0, RATE_MOST),
            ("--files", self.files, 0, 1),
            ("--times", self.times, 0.001, TIMES_MOST),
            ("--ttl-s", self.ttl_s, 5, 3600),
            ("--wait-s", self.wait_s, 0, 600),
            ("--fill-s", self.fill_s, 1, 3600),
            ("--rest-s", self.rest_s, 0, 600),
        ]
        for flag, value, least, most in bounds:
            if not least <= value <= most:
                raise PlanError(f"{flag} is between {least:g} and {most:g}, not {value:g}")
        if self.batch > 1 and self.scenario not in ("burst", "hold", "abandon"):
            raise PlanError("--batch is for burst, hold and abandon")

    @property
    def users(self) -> int:
        """Callers at once."""
        calls = math.ceil(self.n / self.batch)
        if self.callers:
            return min(self.callers, calls) if self.scenario == "burst" else self.callers
        if self.scenario in ("burst", "ramp"):
            return calls
        if self.scenario == "hold":
            # A caller for each call that begins within a second: then slow answers cost none its place.
            return min(256, max(math.ceil(self.rate), min(self.n, 64)))
        if self.scenario == "abandon":
            return min(self.n, 64)
        if self.scenario == "churn":
            return min(256, max(8, math.ceil(self.campaigns_per_s * 30)))
        return max(8, 2 * self.n)

    @property
    def campaigns_per_s(self) -> float:
        """Campaigns of `churn` that begin in a second."""
        return self.times * per_second(MONTHLY) / SANDBOXES_A_CAMPAIGN

    @property
    def life_s(self) -> float:
        """The longest that one of its sandboxes may live."""
        return ARRIVE_S + self.fill_s + self.seconds + self.ttl_s + SPARE_S

    @property
    def longest_s(self) -> float:
        """The longest that it may take, whatever happens."""
        return ARRIVE_S + self.fill_s + self.seconds + self.wait_s

    def document(self) -> dict[str, float | int | str]:
        """As JSON."""
        return dataclasses.asdict(self) | {"users": self.users}


def per_second(a_month: float) -> float:
    """A month has thirty days here."""
    return a_month / MONTH_S


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """What is known of a run while it goes on: `settled` are sandboxes that were handed over or refused for good."""

    phase_s: float
    total_s: float
    arrived: int = 0
    settled: int = 0


def first_phase(plan: Plan) -> str:
    """Where it begins: callers of a ramp come one after the other, and wait for nobody."""
    return WORK if plan.scenario == "ramp" else ARRIVE


def next_phase(plan: Plan, phase: str, progress: Progress) -> str:
    """The phase that holds now."""
    if phase == OVER or progress.total_s >= plan.longest_s:
        return OVER
    if phase == ARRIVE:
        is_there = progress.arrived >= plan.users or progress.phase_s >= ARRIVE_S
        return WORK if is_there else ARRIVE
    if phase == HOLD:
        return OVER if progress.phase_s >= plan.seconds else HOLD
    if plan.scenario in ("churn", "multi"):
        return OVER if progress.phase_s >= plan.seconds else WORK
    if progress.settled < plan.n and progress.phase_s < _fill_s(plan):
        return WORK
    return HOLD if plan.scenario in ("hold", "ramp") else OVER


def _fill_s(plan: Plan) -> float:
    return plan.fill_s + (plan.seconds if plan.scenario == "ramp" else 0)


def users_at(plan: Plan, phase: str, phase_s: float) -> int:
    """How many callers there are to be: a ramp's come evenly over its `seconds`, all others' at once."""
    if plan.scenario != "ramp" or phase != WORK:
        return plan.users
    return min(plan.users, max(1, math.floor(plan.users * phase_s / plan.seconds)))


def share_of(total: int, mine: int, all_of_them: int) -> int:
    """How many of `total` the process takes that comes `mine`-th (from 0) of so many: all parts add up to it."""
    return total * (mine + 1) // all_of_them - total * mine // all_of_them


def due_s(rate: float, number: int) -> float:
    """When call `number` (from 0) is due after the start. The schedule is open: a slow answer delays no other call."""
    return number / rate


def is_file(number: int, share: float) -> bool:
    """Whether piece of work `number` (from 0) is a file. Dealt evenly, not drawn: a short run has its part too."""
    return int((number + 1) * share) > int(number * share)
