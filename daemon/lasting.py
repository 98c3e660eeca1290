"""What outlives the guests of a workload's daemon, since it holds descriptors or is theirs in turn."""

from __future__ import annotations

from daemon.usage import Meter
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon.drain import Drain
    from daemon.processes import Processes
    from daemon.tree import Life
    from sandman.claims import Info


class Lasting:
    """The parts that one guest's application hands to the next.

    Args:
        spared: the workload's marks: what no guest may end.
        part: lets the guest with this claim leave; see `guests`.
    """

    def __init__(self, spared: Life, part: Callable[[str], Info]) -> None:
        self.spared = spared
        self.part = part
        self.meter = Meter()
        self.processes: Processes | None = None
        """Of the guest that is there; set by `application`."""
        self._drain: Drain | None = None

    @property
    def drain(self) -> Drain:
        """Empties the pipes of all guests' background processes."""
        if self._drain is None:
            from daemon.drain import Drain  # noqa: PLC0415 - needed with the first command

            self._drain = Drain()
        return self._drain
