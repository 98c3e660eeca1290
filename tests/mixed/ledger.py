"""What callers hold, which faults there were, and what was wrong. Pure: moments are handed in, seconds on one clock."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING

from tests.mixed.plan import Fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

SETTLE_S = 30.0
"""Seconds after a fault in which it may be felt: a gateway starts in some ten on a busy machine, another leads after
ten at most, and a call that was begun before is repeated for half a minute."""
AWAY = {"unreachable", "outcome_unknown", "capacity"}
"""What may be said while no gateway answers, or none of them is told anything by the API server."""
FELT: Mapping[Fault, set[str]] = {
    Fault.KILL_GATEWAY: AWAY,
    Fault.KILL_ALLOCATOR: AWAY,
    Fault.DELETE_GATEWAY: AWAY,
    Fault.RESTART_API: AWAY,
}
"""What others may hear of a fault than those whose sandbox it hit. The rest is to be felt by nobody else."""
WRECKS: Mapping[Fault, set[str]] = {
    Fault.DELETE_SANDBOX: {"deleted"},
    Fault.KILL_SANDBOX: {"died"},
    # It may be somebody's by then.
    Fault.DELETE_PLACEHOLDER: {"deleted"},
}
"""What is said of a sandbox that was hit."""
FORGOTTEN = "not_found"
"""Said of a sandbox that ended, once nothing is left to know it by: its pod is gone, and so is who saw it end."""


@dataclasses.dataclass(slots=True)
class Held:
    """A sandbox that a caller holds.

    Attributes:
        files: by path, the SHA-256 that its content may have; None: there may be none.
        marks: by the word that a command leaves, whether it must be there.
    """

    id: str
    boot: str
    tenant: str
    caller: int
    files: dict[str, set[str | None]] = dataclasses.field(default_factory=dict)
    marks: dict[str, bool] = dataclasses.field(default_factory=dict)

    @property
    def pod(self) -> str:
        """Its pod's name."""
        return self.id.rpartition("-")[0]

    def writing(self, path: str, digest: str) -> None:
        """A write is sent: until it is answered the file may be as it was or as it will be."""
        self.files.setdefault(path, {None}).add(digest)

    def written(self, path: str, digest: str) -> None:
        """The write was answered."""
        self.files[path] = {digest}


@dataclasses.dataclass(frozen=True, slots=True)
class Felt:
    """A fault, from when it was begun until it was over; None: it is not yet."""

    fault: Fault
    begun: float
    ended: float | None
    pod: str | None = None
    """The sandbox that it hit."""

    def is_near(self, begun: float, ended: float) -> bool:
        """Whether a call of that time may have met it."""
        return self.begun <= ended and (self.ended is None or begun <= self.ended + SETTLE_S)


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """What a caller was told in place of an answer."""

    action: str
    reason: str
    detail: str
    begun: float
    ended: float
    pod: str | None = None

    def __str__(self) -> str:
        where = f" of {self.pod}" if self.pod else ""
        return f"{self.begun:.1f} to {self.ended:.1f} s: {self.action}{where}: {self.reason}: {self.detail[:300]}"


class Ledger:
    """What there is.

    Args:
        tell: hears of each failure and of what is wrong at once: a load that is cut short leaves its trace so.
    """

    def __init__(self, tell: Callable[[str], object] = lambda _text: None) -> None:
        self._tell = tell
        self.held: dict[str, Held] = {}
        self.faults: list[Felt] = []
        self.failures: list[Failure] = []
        self.wrong: list[str] = []
        """What must not be."""
        self.counts: Counter[str] = Counter()
        """What was done, and how it ended."""

    def __repr__(self) -> str:
        return f"<Ledger held={len(self.held)} wrong={len(self.wrong)}>"

    def blame(self, texts: Iterable[str]) -> None:
        """This must not be."""
        for text in texts:
            self.wrong.append(text)
            self._tell(f"WRONG: {text}")

    # --- sandboxes ---

    def had(self, one: Held) -> Held:
        """A caller was given it. The same one again is the same: a repeated call found it."""
        known = self.held.setdefault(one.id, one)
        if (known.boot, known.caller) != (one.boot, one.caller):
            self.blame([f"{one.id} was given to {known.caller} and to {one.caller}"])
        return known

    def let_go(self, one: Held) -> None:
        """Its caller has given it back, or was told that it is no more."""
        self.held.pop(one.id, None)

    def of(self, caller: int) -> list[Held]:
        """What this caller holds, in order of their coming."""
        return [one for one in self.held.values() if one.caller == caller]

    # --- faults ---

    def began(self, fault: Fault, now: float, pod: str | None = None) -> Felt:
        """A fault is done now."""
        felt = Felt(fault, now, None, pod)
        self.faults.append(felt)
        self.counts[fault.value] += 1
        return felt

    def over(self, felt: Felt, now: float) -> None:
        """What was hit is there again, as far as it comes again."""
        at = self.faults.index(felt)
        self.faults[at] = dataclasses.replace(felt, ended=now)

    def wrecks(self, pod: str) -> set[str]:
        """What may be said of this pod's sandbox by what was done to it; empty when nothing was."""
        hits = [WRECKS[one.fault] for one in self.faults if one.pod == pod and one.fault in WRECKS]
        return set().union({FORGOTTEN}, *hits) if hits else set()

    # --- failures ---

    def failed(self, failure: Failure) -> None:
        """A caller was told of a failure, which the faults near it must explain."""
        self.failures.append(failure)
        self.counts[f"failed: {failure.reason}"] += 1
        self._tell(f"told: {failure}")
        if not self.explains(failure):
            near = ", ".join(one.fault.value for one in self._near(failure)) or "none"
            self.blame([f"{failure} (faults near it: {near})"])

    def explains(self, failure: Failure) -> bool:
        """Whether the faults allow it."""
        allowed = set().union(*(FELT.get(one.fault, set()) for one in self._near(failure)))
        if failure.pod is not None:
            allowed |= self.wrecks(failure.pod)
        return failure.reason in allowed

    def _near(self, failure: Failure) -> list[Felt]:
        return [one for one in self.faults if one.is_near(failure.begun, failure.ended)]

    # --- the look at the end ---

    def compare(self, leased: Mapping[str, str]) -> list[str]:
        """What is wrong with the leased pods: sandbox ids and their tenants, as the cluster has them."""
        due = {one.id: one for one in self.held.values() if not self.wrecks(one.pod)}
        missing = [f"{one} is held and not there" for one in sorted(due.keys() - leased.keys())]
        extra = [f"{one} is there and nobody's" for one in sorted(leased.keys() - self.held.keys())]
        others = [
            f"{one} is {leased[one]}'s, not {due[one].tenant}'s"
            for one in sorted(due.keys() & leased.keys())
            if leased[one] != due[one].tenant
        ]
        return missing + extra + others

    @staticmethod
    def compare_marks(one: Held, found: Iterable[str]) -> list[str]:
        """What is wrong with the marks that commands have left."""
        seen = Counter(found)
        twice = [f"{one.id}: {word} ran {n} times" for word, n in seen.items() if n > 1]
        strange = [f"{one.id}: {word} is nobody's" for word in seen.keys() - one.marks.keys()]
        lost = [
            f"{one.id}: {word} ran and left nothing"
            for word, must in one.marks.items()
            if must and word not in seen
        ]
        return twice + strange + lost

    @staticmethod
    def compare_file(one: Held, path: str, digest: str | None) -> list[str]:
        """What is wrong with a file of this content; None: it is not there."""
        if digest in one.files.get(path, {None}):
            return []
        return [f"{one.id}: {path} is {digest}, not one of {one.files.get(path)}"]
