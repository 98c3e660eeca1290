"""How much is asked of the API server at once: less when it says that it is too busy, then gradually
more. Pure.

Additive increase, multiplicative decrease, as TCP does it: each window of successes adds one, a refusal
halves. Refusals of calls that were on their way together are one refusal.
"""

from __future__ import annotations

import dataclasses

LEAST = 1.0
"""Calls at once, however busy the API server is: the one that tells when it is so no longer."""
PAUSE_S = 1.0
"""Seconds without a new call after a refusal that names no time."""
PAUSE_MAX_S = 30.0
"""Longest such pause, whatever a server or a proxy before it says."""


@dataclasses.dataclass(slots=True)
class Window:
    """Calls in flight of one kind.

    Args:
        most: the window when all is well; 0: none ever.
    """

    most: int
    size: float = 0.0
    paused_until: float = 0.0
    """On the clock of `refused`."""

    def __post_init__(self) -> None:
        self.size = float(self.most)

    def limit(self, now: float) -> int:
        """How many may be in flight now."""
        return 0 if now < self.paused_until else int(self.size)

    def succeeded(self) -> None:
        """A call was carried out."""
        if self.size < self.most:
            self.size = min(float(self.most), self.size + 1.0 / max(self.size, LEAST))

    def refused(self, now: float, retry_after: float | None) -> None:
        """A call was not carried out, since the server is too busy."""
        if now >= self.paused_until:
            self.size = min(float(self.most), max(LEAST, self.size / 2.0))
        pause = min(PAUSE_S if retry_after is None else max(retry_after, PAUSE_S), PAUSE_MAX_S)
        self.paused_until = max(self.paused_until, now + pause)


class Backoff:
    """The windows of claims and of creations, and the bound of creations by nodes.

    Args:
        claims_max: claims in flight at once.
        cold_max: pods in the making at once, over all nodes.
        cold_per_node: as many for each node that takes pods.
    """

    def __init__(self, *, claims_max: int, cold_max: int, cold_per_node: int) -> None:
        self.claims = Window(claims_max)
        self.cold = Window(cold_max)
        self._per_node = cold_per_node

    def limits(self, now: float, nodes: int | None) -> tuple[int, int]:
        """Claims and pods in the making that may be in flight now.

        Args:
            now: the clock.
            nodes: how many take pods; None: nothing is known of nodes.
        """
        cold = self.cold.limit(now)
        if nodes is not None:
            # Where no node takes pods, some that wait for one are what makes a cluster grow.
            cold = min(cold, max(1, nodes) * self._per_node)
        return self.claims.limit(now), cold

    def paused_until(self) -> float:
        """When the last pause ends, or ended."""
        return max(self.claims.paused_until, self.cold.paused_until)
