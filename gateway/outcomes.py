"""What became of allocations: counted by pool, tier and outcome. Pure.

An outcome is `ok`, the reason of an error, `cancelled` when the caller went away, or `internal`. All three
labels have few values whatever callers send: a pool that nobody made counts as `none`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from sandman.errors import InternalError, SandmanError

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from gateway.model import Ready

OK = "ok"
CANCELLED = "cancelled"
NONE = "none"
"""A pool that there is not, or the tier of an allocation that came to nothing."""


class Outcome:
    """One allocation that is not over."""

    def __init__(self, pool: str) -> None:
        self.pool = pool
        """Of those that there are."""
        self.ready: Ready | None = None

    def made(self, ready: Ready) -> Ready:
        """It came to a sandbox."""
        self.ready = ready
        return ready


class Outcomes:
    """Counts of this process."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """By pool, tier and outcome."""

    @contextlib.contextmanager
    def of(self, pool: str, known: Container[str]) -> Iterator[Outcome]:
        """Count what becomes of the block: its outcome, or the error that leaves it.

        Args:
            pool: as the caller asked for it.
            known: pools that there are.
        """
        outcome = Outcome(pool if pool in known else NONE)
        try:
            yield outcome
        except SandmanError as error:
            self.counts[outcome.pool, NONE, error.reason] += 1
            raise
        except Exception:
            self.counts[outcome.pool, NONE, InternalError.reason] += 1
            raise
        except BaseException:
            self.counts[outcome.pool, NONE, CANCELLED] += 1
            raise
        if outcome.ready is not None:
            one = outcome.ready.instance
            self.counts[one.pool, one.tier or NONE, OK] += 1
