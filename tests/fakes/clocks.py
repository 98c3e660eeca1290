"""Virtual time for tests whose sockets are real."""

from __future__ import annotations

from trio.testing import MockClock

QUIET_S = 0.02
"""Real seconds without anything to do: what was sent over the loopback is there by then."""


def jumping() -> MockClock:
    """Time that stands while any task works, and leaps to the next deadline once all wait.

    For tests that have both ends of their sockets in one process. A clock that merely runs faster than
    the real one makes each moment that the machine is busy elsewhere so much longer, until a limit of the
    code under test ends what is well under way.
    """
    return MockClock(autojump_threshold=QUIET_S)
