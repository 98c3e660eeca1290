"""What programs under load tell of themselves while it goes on: a reading each few seconds."""

from __future__ import annotations

import dataclasses
import resource
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from loadtest import exposition
from loadtest.exposition import Reading
from loadtest.session import BrokenError, Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from loadtest.target import Target

EACH_S = 2.0
API_SERVER_EACH_S = 5.0
"""Its metrics are megabytes, which it has to write and we have to read."""
ANSWER_S = 20.0


@dataclasses.dataclass(slots=True)
class Source:
    """A program that is asked."""

    who: str
    session: Session
    path: str
    understand: Callable[[str], dict[str, float]]
    each_s: float
    due: float = 0.0


class Watch:
    """All that is read of one target, and of the load's own process."""

    def __init__(self, target: Target) -> None:
        self.readings: list[Reading] = []
        self.missed = 0
        self._sources = _sources(target)
        self._own_due = 0.0

    def look(self) -> None:
        """Ask whoever is due."""
        for source in self._sources:
            if time.monotonic() >= source.due:
                source.due = time.monotonic() + source.each_s
                self._ask(source)
        if time.monotonic() >= self._own_due:
            self._own_due = time.monotonic() + EACH_S
            self.readings.append(Reading(time.time(), "load", _own()))

    def look_at_all(self) -> None:
        """Ask everybody, due or not: at the beginning and at the end."""
        for source in self._sources:
            source.due = 0.0
        self.look()

    def _ask(self, source: Source) -> None:
        try:
            answer = source.session.call("GET", source.path, silence_s=ANSWER_S)
        except BrokenError:
            self.missed += 1
            return
        if answer.status != 200:
            self.missed += 1
            return
        values = source.understand(answer.body.decode(errors="replace"))
        self.readings.append(Reading(time.time(), source.who, values))


def _sources(target: Target) -> list[Source]:
    trust, found = target.trust(), []
    for number, url in enumerate(target.metrics_urls()):
        session = Session(url, trust, {}, target.server_name)
        path = urlsplit(url).path
        found.append(Source(f"gateway {number}", session, path, exposition.of_gateway, EACH_S))
    if (server := target.api_server) is not None:
        session = Session(server.url, server.trust(), server.headers())
        found.append(
            Source("API server", session, "/metrics", exposition.of_api_server, API_SERVER_EACH_S)
        )
    return found


def _own() -> dict[str, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"cpu": used.ru_utime + used.ru_stime, "memory": float(_resident())}


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - read each two seconds
        return int(file.read().split()[1]) * resource.getpagesize()
