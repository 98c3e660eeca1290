"""What is done and what goes wrong, from a seed. Pure: the same seed and the same successes give the same plan."""

from __future__ import annotations

import dataclasses
import enum
import random

MOST_HELD = 4
"""Sandboxes that one caller holds: with those of all others they fit on one node of two cores."""
FILE_BYTES = (0, 1, 4096, 70_000, 1_500_000)
"""Sizes of files: none, one, a page, some reads, some TLS records and frames."""
FIRST_FAULT_S = 3.0
"""Seconds of load before the first fault: callers shall hold something by then."""


class Way(enum.Enum):
    """How a sandbox is to come to be."""

    WARM = "warm"
    SWAP = "swap"
    COLD = "cold"


@dataclasses.dataclass(frozen=True, slots=True)
class Create:
    """Allocate one and keep it."""

    way: Way


@dataclasses.dataclass(frozen=True, slots=True)
class Twice:
    """Allocate one by two calls with one key at once, perhaps at two replicas; keep it."""

    way: Way


@dataclasses.dataclass(frozen=True, slots=True)
class Abandon:
    """Go away in the middle of an allocation.

    Attributes:
        after_s: how long it is waited for.
        by_client: the client is cancelled, which gives up its request; else the connection is cut without a word.
        returns: after a cut the caller comes back with its key, and keeps what it gets.
    """

    way: Way
    after_s: float
    by_client: bool
    returns: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """Allocate several by one call, run a command in each, let them go."""

    way: Way
    count: int
    gang: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Reserve:
    """Have some prepared, take one of them, end the reservation."""

    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class Execute:
    """Run a command that leaves a mark, and ends with this code."""

    box: int
    code: int


@dataclasses.dataclass(frozen=True, slots=True)
class Put:
    """Write a file over what was there."""

    box: int
    name: str
    size: int
    fill: int


@dataclasses.dataclass(frozen=True, slots=True)
class Get:
    """Read a file that was written before."""

    box: int
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Renew:
    """Say that it is still needed."""

    box: int


@dataclasses.dataclass(frozen=True, slots=True)
class Release:
    """Let one go."""

    box: int


Action = Create | Twice | Abandon | Batch | Reserve | Execute | Put | Get | Renew | Release

MAKING = ((Create, 6), (Twice, 3), (Abandon, 5), (Batch, 2), (Reserve, 1))
USING = ((Execute, 10), (Put, 5), (Get, 5), (Renew, 1), (Release, 3))
"""What may be drawn, with its weight."""


class Script:
    """What one caller does.

    Args:
        seed: of the whole load.
        caller: its number.
    """

    def __init__(self, seed: int, caller: int) -> None:
        self._dice = random.Random(f"{seed}/{caller}")

    def __repr__(self) -> str:
        return f"<Script {self._dice.getstate()[1][-1]}>"

    def next(self, held: int) -> tuple[float, Action]:
        """Seconds to think before, and what is done then. `held`: how many sandboxes the caller has.

        The same numbers are drawn whatever it holds, so that one outcome changes one step and not all that follow.
        """
        dice = random.Random(self._dice.getrandbits(64))
        pause = dice.uniform(0.05, 1.2)
        menu = [*(MAKING if held < MOST_HELD else ()), *(USING if held else ())]
        [kind] = dice.choices([one for one, _ in menu], [weight for _, weight in menu])
        return pause, _draw(kind, dice)


def _draw(kind: type[Action], dice: random.Random) -> Action:
    way, box, name = dice.choice(list(Way)), dice.randrange(1000), f"file-{dice.randrange(3)}"
    after_s = dice.choice((0.0, 0.01, 0.05, 0.2, 0.5, 1.0))
    drawn: tuple[Action, ...] = (
        Create(way),
        Twice(way),
        Abandon(way, after_s, by_client=dice.random() < 0.5, returns=dice.random() < 0.5),
        Batch(way, dice.randint(2, 4), gang=dice.random() < 0.5),
        Reserve(dice.randint(1, 2)),
        Execute(box, dice.choice((0, 1, 77))),
        Put(box, name, dice.choice(FILE_BYTES), dice.randrange(256)),
        Get(box, name),
        Renew(box),
        Release(box),
    )
    return next(one for one in drawn if type(one) is kind)


class Fault(enum.Enum):
    """What goes wrong."""

    KILL_GATEWAY = "kill -9 of a gateway"
    DELETE_GATEWAY = "deletion of a gateway's pod"
    KILL_ALLOCATOR = "kill -9 of the gateway that allocates"
    DELETE_SANDBOX = "kubectl delete of a sandbox's pod"
    KILL_SANDBOX = "kill -9 of a sandbox's first process"
    DELETE_PLACEHOLDER = "kubectl delete of a free placeholder"
    DROP_WATCHES = "reset of a gateway's connections to the API server"
    RESTART_API = "kill -9 of the API server, whose watches are too old when it is back (410)"


@dataclasses.dataclass(frozen=True, slots=True)
class Mishap:
    """One fault of the plan.

    Attributes:
        at: seconds after the load's beginning.
        pick: which of those that it may hit, in [0, 1).
    """

    at: float
    fault: Fault
    pick: float


def mishaps(seed: int, seconds: float, gap_s: float) -> list[Mishap]:
    """The faults of a load of so many seconds, `gap_s` apart in the mean: each kind once before any comes again."""
    dice = random.Random(f"{seed}/faults")
    found: list[Mishap] = []
    at = FIRST_FAULT_S
    left: list[Fault] = []
    while at < seconds:
        if not left:
            left = dice.sample(list(Fault), len(Fault))
        found.append(Mishap(at, left.pop(), dice.random()))
        at += gap_s * dice.uniform(0.5, 1.5)
    return found


def content(size: int, fill: int) -> bytes:
    """The bytes of a file, all of them determined by these two."""
    return random.Random(f"{size}/{fill}").randbytes(size)
