"""What callers of one process have in common: the phase, whom they are, the pace, what is held."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Protocol

from loadtest import plan as plans
from loadtest.caller import Ask, Box
from loadtest.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadtest.caller import Caller
    from loadtest.plan import Plan
    from loadtest.target import Target, Tenant

LOOK_S = 1.0
"""How often a caller that waits for a phase looks for it. The moment itself is told by an event."""
LATE_MS = "late"
"""Stage of a record: by how much a call began after it was due. Large: the generator cannot keep up."""


class Wake(Protocol):
    """An event that many wait for, once."""

    def wait(self, timeout: float | None = None) -> object: ...
    def set(self) -> None: ...


@dataclasses.dataclass(slots=True)
class Stage:
    """One process of a run.

    Args:
        run: its name, the same in all processes.
        mine, processes: the part of the work that is this process's own.
        event: makes one; another is set at each change of the phase.
    """

    plan: Plan
    target: Target
    run: str
    event: Callable[[], Wake]
    mine: int = 0
    processes: int = 1
    record: Record = dataclasses.field(default_factory=Record)
    phase: str = plans.ARRIVE
    held: dict[str, list[Box]] = dataclasses.field(default_factory=dict)
    """By tenant."""
    written: set[str] = dataclasses.field(default_factory=set)
    """Sandboxes in which the file was written, and not read since."""
    taken: int = 0
    """Of the sandboxes that this process is to make, how many somebody makes or has made."""
    callers: int = 0
    worked: int = 0
    """Pieces of work begun."""
    paced: int = 0
    paced_since: float = 0.0
    wake: Wake = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.wake = self.event()

    def enter(self, phase: str) -> None:
        """The phase holds from now on."""
        self.phase, self.paced, self.paced_since = phase, 0, time.monotonic()
        told, self.wake = self.wake, self.event()
        told.set()

    def await_phase(self, *phases: str) -> None:
        """Until one of them, or the end, has come."""
        while self.phase not in (*phases, plans.OVER):
            self.wake.wait(LOOK_S)

    def tenant(self) -> Tenant:
        """Whose the next caller is: in turns."""
        self.callers += 1
        return self.target.tenants[(self.callers - 1 + self.mine) % len(self.target.tenants)]

    def url(self) -> str:
        """The gateway of the caller that came last: in turns, by tenants' turns."""
        return self.target.urls[(self.callers // len(self.target.tenants)) % len(self.target.urls)]

    def take(self, most: int) -> int:
        """How many of the sandboxes that are still to be made the caller is to make: `most` or fewer."""
        whole = plans.share_of(self.plan.n, self.mine, self.processes)
        got = min(most, whole - self.taken)
        self.taken += got
        return got

    def ask(self, **more: object) -> Ask:
        """An allocation: with the run's lease, and an end of its own whatever becomes of us."""
        body: dict[str, object] = {
            "run": self.run,
            "lease": {"ttl_s": self.plan.ttl_s, "run": True, "max_s": self.plan.life_s},
            **more,
        }
        for name in ("image", "pool"):
            if (value := getattr(self.target, name)) is not None:
                body[name] = value
        return Ask(body, self.plan.wait_s)

    def pace(self, rate: float, sleep: Callable[[float], None]) -> bool:
        """Wait for the next call that is due at so many a second of all processes; False: the phase is over.

        Whoever comes takes the next place of the schedule, which no answer delays.
        """
        phase, since = self.phase, self.paced_since
        if phase == plans.OVER:
            return False
        if rate <= 0:
            self.await_phase(plans.OVER)
            return False
        due = since + plans.due_s(rate / self.processes, self.paced)
        self.paced += 1
        while (left := due - time.monotonic()) > 0:
            sleep(min(left, 0.5))
            if self.phase != phase:
                return False
        self.record.stage(LATE_MS, -left * 1e3, time.time())
        return self.phase == phase

    def work(self, caller: Caller, box: Box) -> None:
        """One command, or one file: written the first time, then in turns with reading."""
        number, self.worked = self.worked, self.worked + 1
        if not plans.is_file(number, self.plan.files):
            caller.exec(box, ["true"])
        elif box.id in self.written:
            caller.get(box)
            self.written.discard(box.id)
        elif caller.put(box):
            self.written.add(box.id)
