"""What callers met: pure counts by time, which workers send and the master adds up."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any, Self

from loadtest.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Mapping

ERRORS_KEPT = 50
"""Different texts of errors that are kept: the first of each reason is what somebody reads."""
TEXT_MOST = 300
"""Characters of one."""


@dataclasses.dataclass(slots=True)
class Record:
    """Counts. A *slot* is a second of the wall clock: machines of one test agree on it closely enough.

    `calls`: times of what succeeded, by call and slot. `errors`: failures that a caller was left with, by call, reason
    and slot. `retries`: tries that were made again, by call and reason. `tiers`: sandboxes by tier. `stages`: what the
    gateway says of an allocation, by its name. `counters`: whatever else a scenario counts. `handed`: short digests
    of the sandboxes handed over, `doubles` of those that came twice.
    """

    calls: dict[str, dict[int, Histogram]] = dataclasses.field(default_factory=dict)
    stages: dict[str, dict[int, Histogram]] = dataclasses.field(default_factory=dict)
    errors: Counter[tuple[str, str, int]] = dataclasses.field(default_factory=Counter)
    retries: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    tiers: Counter[tuple[str, int]] = dataclasses.field(default_factory=Counter)
    counters: Counter[str] = dataclasses.field(default_factory=Counter)
    texts: dict[str, str] = dataclasses.field(default_factory=dict)
    handed: set[str] = dataclasses.field(default_factory=set)
    doubles: int = 0

    def took(self, call: str, ms: float, now: float) -> None:
        """A call succeeded, and ended now."""
        _put(self.calls, call, ms, now)

    def stage(self, name: str, ms: float, now: float) -> None:
        """The gateway tells how long a part of an allocation took."""
        _put(self.stages, name, ms, now)

    def failed(self, call: str, reason: str, text: str, now: float) -> None:
        """A caller was left with an error."""
        self.errors[call, reason, int(now)] += 1
        if reason in self.texts or len(self.texts) < ERRORS_KEPT:
            self.texts.setdefault(reason, text[:TEXT_MOST])

    def retried(self, call: str, reason: str) -> None:
        """A try failed and another is made."""
        self.retries[call, reason] += 1

    def got(self, sandbox: str, tier: str, now: float) -> None:
        """A sandbox was handed over."""
        digest = hashlib.blake2s(sandbox.encode(), digest_size=8).hexdigest()
        self.doubles += digest in self.handed
        self.handed.add(digest)
        self.tiers[tier, int(now)] += 1

    def merge(self, other: Self) -> None:
        """Add what another one has."""
        for mine, theirs in ((self.calls, other.calls), (self.stages, other.stages)):
            for name, slots in theirs.items():
                for slot, histogram in slots.items():
                    mine.setdefault(name, {}).setdefault(slot, Histogram()).merge(histogram)
        self.errors.update(other.errors)
        self.retries.update(other.retries)
        self.tiers.update(other.tiers)
        self.counters.update(other.counters)
        for reason, text in other.texts.items():
            self.texts.setdefault(reason, text)
        self.doubles += other.doubles + len(self.handed & other.handed)
        self.handed |= other.handed

    def drain(self) -> Self:
        """All of it, and none is left here: what was told once is not told again."""
        told = dataclasses.replace(self)
        empty = type(self)()
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(empty, field.name))
        return told

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "calls": _times(self.calls),
            "stages": _times(self.stages),
            "errors": [[*key, count] for key, count in sorted(self.errors.items())],
            "retries": [[*key, count] for key, count in sorted(self.retries.items())],
            "tiers": [[*key, count] for key, count in sorted(self.tiers.items())],
            "counters": dict(sorted(self.counters.items())),
            "texts": dict(sorted(self.texts.items())),
            "handed": sorted(self.handed),
            "doubles": self.doubles,
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """What `document` told."""
        counted = {
            name: Counter({tuple(row[:-1]): row[-1] for row in document[name]})
            for name in ("errors", "retries", "tiers")
        }
        return cls(
            calls=_histograms(document["calls"]),
            stages=_histograms(document["stages"]),
            counters=Counter(document["counters"]),
            texts=dict(document["texts"]),
            handed=set(document["handed"]),
            doubles=document["doubles"],
            **counted,
        )

    def whole(self, call: str) -> Histogram:
        """All times of a call, whenever they were."""
        whole = Histogram()
        for one in self.calls.get(call, {}).values():
            whole.merge(one)
        return whole

    def failures(self, call: str | None = None) -> Counter[str]:
        """Errors by reason, of one call or of all."""
        found: Counter[str] = Counter()
        for (name, reason, _), count in self.errors.items():
            if call in (None, name):
                found[reason] += count
        return found


def _put(table: dict[str, dict[int, Histogram]], name: str, ms: float, now: float) -> None:
    table.setdefault(name, {}).setdefault(int(now), Histogram()).add(ms)


def _times(table: dict[str, dict[int, Histogram]]) -> dict[str, dict[str, dict[str, object]]]:
    return {
        name: {str(slot): one.document() for slot, one in sorted(slots.items())}
        for name, slots in sorted(table.items())
    }


def _histograms(table: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[int, Histogram]]:
    return {
        name: {int(slot): Histogram.of(one) for slot, one in slots.items()}
        for name, slots in table.items()
    }
