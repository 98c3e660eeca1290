"""The leases of all hollow daemons, watched by one thread: the daemon's own has one for itself."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from daemon.lease import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

LOOK_S = 2.0
"""Between two looks at all of them: 12,000 take some 20 ms."""


class Leases:
    """All that are armed."""

    def __init__(self) -> None:
        self._armed: set[SharedWatch] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name="leases", daemon=True).start()

    def add(self, watch: SharedWatch) -> None:
        """Look at this one, too."""
        with self._lock:
            self._armed.add(watch)

    def drop(self, watch: SharedWatch) -> None:
        """Its pod is gone."""
        with self._lock:
            self._armed.discard(watch)

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_S)
            with self._lock:
                armed = list(self._armed)
            for watch in armed:
                if watch.is_over():
                    self.drop(watch)


class SharedWatch(Watch):
    """Keeps one lease, without a thread of its own."""

    def __init__(self, leases: Leases, expire: Callable[[], None]) -> None:
        super().__init__(expire)
        self._leases = leases

    def is_over(self) -> bool:
        """Whether it has just ended; then it has told."""
        if self._look() > 0:
            return False
        if not self._is_ended:
            self._expire()
        return True

    def _start(self) -> None:
        if not self._is_watched:
            self._leases.add(self)
            self._is_watched = True
