"""Times in buckets that grow by a constant factor: small to send, exact to add, and within 1 % wherever they lie."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

GROWTH = 1.02
"""Each bucket's upper bound over its lower: a value is told within half of it, 1 %."""
LEAST_MS = 0.01
"""What is shorter counts as this: nothing here is measured more finely."""
_LOG = math.log(GROWTH)


@dataclasses.dataclass(slots=True)
class Histogram:
    """How many values of each size. Adding two loses nothing, in whatever order it is done."""

    counts: dict[int, int] = dataclasses.field(default_factory=dict)
    total_ms: float = 0.0
    most_ms: float = 0.0

    def add(self, value_ms: float, times: int = 1) -> None:
        """Count a value."""
        bucket = bucket_of(value_ms)
        self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.total_ms += value_ms * times
        self.most_ms = max(self.most_ms, value_ms)

    def merge(self, other: Self) -> None:
        """Count what the other has counted."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.total_ms += other.total_ms
        self.most_ms = max(self.most_ms, other.most_ms)

    @property
    def count(self) -> int:
        """How many there are."""
        return sum(self.counts.values())

    @property
    def mean_ms(self) -> float | None:
        """Their mean; None of nothing."""
        return self.total_ms / self.count if self.counts else None

    def percentile(self, share: float) -> float | None:
        """The least value that so great a share (0 to 1) do not exceed, within 1 %; None of nothing."""
        count = self.count
        if not count:
            return None
        rank = max(1, math.ceil(share * count - 1e-9))
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= rank:
                # The greatest is known exactly, and no percentile exceeds it.
                return min(middle_of(bucket), self.most_ms)
        raise AssertionError("fewer values than were counted")

    def document(self) -> dict[str, object]:
        """As JSON: counts by bucket."""
        counts = {str(bucket): count for bucket, count in sorted(self.counts.items())}
        return {"counts": counts, "total_ms": self.total_ms, "most_ms": self.most_ms}

    @classmethod
    def of(cls, document: Mapping[str, object]) -> Self:
        """What `document` told."""
        counts, total, most = (document[name] for name in ("counts", "total_ms", "most_ms"))
        if not isinstance(counts, dict):
            raise TypeError("counts are an object")
        return cls({int(k): int(v) for k, v in counts.items()}, float(str(total)), float(str(most)))


def bucket_of(value_ms: float) -> int:
    """The bucket that a value falls into."""
    return math.floor(math.log(max(value_ms, LEAST_MS) / LEAST_MS) / _LOG)


def middle_of(bucket: int) -> float:
    """The value that stands for a bucket: as far from its lower bound as from its upper, by factor."""
    return LEAST_MS * math.pow(GROWTH, bucket + 0.5)
