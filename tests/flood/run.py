"""The flood: malformed requests to all three at once, an honest caller of each beside them, and what is left after."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import httpx
import trio

from tests.flood.kinds import some
from tests.flood.parties import Party, started
from tests.flood.sender import AT_ONCE, Flood
from tests.soak.soak import resident_kib

if TYPE_CHECKING:
    from collections.abc import Callable

GROWTH_KIB = 24 * 1024
"""What each may have more at the end than after the first part. Allocators keep what tens of bodies of 1 MiB at once took,
here and there; a leak of 1 KiB a request would be over it in the long form."""
PARTS = 10
WARM = 2
"""Tenths of the requests after which memory is looked at first: by then each kind has come often, and pools of
connections, threads and buffers have the size that they keep."""
SETTLE_S = 30.0
"""Seconds in which what a flood had open is closed again."""
LATER_KIB = 8 * 1024
"""What each may have more at the end than after half of the requests, by when what allocators keep is kept: in the long form
a leak of half a KiB a request would be over it."""
POOLED = 40
"""Connections of its own that may be more after than before: the gateway keeps up to 32 to the API server for a minute
(`kube.transport`), 4 to a daemon (`gateway.upstream`), and those of watches come and go."""
SPARE = 4
"""Other descriptors that may be more: a file that is read at this moment, a pipe of a command. A connection of a caller
that stays open is none of these, and is found by itself."""
BESIDE_S = 0.05
"""Between two calls of an honest caller."""


SHOWN = 100
"""Findings that are told one by one."""
LISTENING = "0A"
"""The state of a listening socket in /proc/net/tcp."""


class FoundError(Exception):
    """What must not be; the text has it all."""


class Caller:
    """An honest caller of one of them: call after call on a connection that it keeps."""

    def __init__(self, party: Party) -> None:
        self._party = party
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.spans: list[float] = []
        self.failures: list[str] = []

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        with self._party.client() as client:
            while not self._stop.wait(BESIDE_S):
                for call in self._party.honest:
                    begun = time.monotonic()
                    try:
                        answer = client.request(call.method, call.path, content=call.body)
                    except httpx.HTTPError as error:
                        self.failures.append(f"{call.path}: {error!r}")
                        continue
                    self.spans.append(time.monotonic() - begun)
                    if answer.status_code != 200 or call.holds not in answer.text:
                        said = f"{answer.status_code} {answer.text[:300]}"
                        self.failures.append(f"{call.path}: {said}")


class Held(NamedTuple):
    """What a process has open."""

    descriptors: int
    callers: int
    """Connections that somebody made to it and that it has not closed."""
    made: int
    """Connections that it made to others, and keeps."""

    @property
    def rest(self) -> int:
        """What is neither."""
        return self.descriptors - self.callers - self.made


class Report(NamedTuple):
    """What became of one of them."""

    name: str
    answers: Counter[tuple[str, str]]
    honest: int
    median_s: float
    p99_s: float
    worst_s: float
    rss_kib: tuple[int, ...]
    """After each tenth of the requests."""
    held: tuple[Held, Held]
    """Before and after."""
    settled_s: float
    found: tuple[str, ...]

    def __str__(self) -> str:
        statuses: Counter[str] = Counter()
        for (_, status), count in self.answers.items():
            statuses[status] += count
        told = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
        return (
            f"{self.name}: {told}; honest: {self.honest} calls, median {self.median_s * 1000:.0f} ms, "
            f"p99 {self.p99_s * 1000:.0f} ms, worst {self.worst_s * 1000:.0f} ms; RSS in KiB after each tenth "
            f"{', '.join(str(one) for one in self.rss_kib)}; {self.held[0]}, then {self.held[1]} after {self.settled_s:.1f} s"
        )


def run(seed: int, count: int, say: Callable[[str], None] = print) -> list[Report]:
    """So many requests in all, a third to each.

    Raises:
        FoundError: somebody did what it must not do.
    """
    with tempfile.TemporaryDirectory(prefix="flood-") as folder, started(Path(folder)) as parties:
        begun = time.monotonic()
        reports = _run(parties, seed, count)
        span = time.monotonic() - begun
        say(f"{count} malformed requests, seed {seed}, in {span:.0f} s")
        for report in reports:
            say(str(report))
        if found := [text for report in reports for text in report.found]:
            raise FoundError(f"{len(found)} found:\n" + "\n".join(found[:SHOWN]))
        return reports


def again(seed: int, name: str, number: int) -> None:
    """Send one request of a run once more, and say what comes."""
    with tempfile.TemporaryDirectory(prefix="flood-") as folder, started(Path(folder)) as parties:
        [party] = [one for one in parties if one.name == name]
        request = some(party.aim, seed, name, number)
        print(request)
        begun = time.monotonic()
        print(trio.run(Flood(party, seed, 0).tell, request), f"{time.monotonic() - begun:.1f} s")
        print("\n".join(party.log()[-10:]))


def _run(parties: list[Party], seed: int, count: int) -> list[Report]:
    for party in parties:
        _warm_up(party)
    base = {one.name: held_by(one) for one in parties}
    there = {one.name: _there(one) for one in parties}
    floods = [Flood(one, seed, count // len(parties)) for one in parties]
    memory: dict[str, list[int]] = {one.name: [] for one in parties}

    async def all_of_them() -> None:
        async with trio.open_nursery() as nursery:
            for flood in floods:
                nursery.start_soon(flood.run, _watch(flood, memory, count // len(parties)))

    with contextlib.ExitStack() as stack:
        callers = [stack.enter_context(Caller(one)) for one in parties]
        trio.run(all_of_them)
    reports = [
        _report(flood, caller, base[flood.party.name], memory[flood.party.name])
        for flood, caller in zip(floods, callers, strict=True)
    ]
    for party in parties:
        assert _there(party) == there[party.name], f"{party.name}: something was made, or went"
    return reports


def _there(party: Party) -> list[int]:
    """How much there is of what it lists."""
    found = []
    with party.client() as client:
        for path in party.lists:
            deadline = time.monotonic() + SETTLE_S
            # Of one that has just started not all may be known yet, nor be answered while others wait.
            while (answer := client.get(path)).status_code != 200:
                assert time.monotonic() < deadline, answer.text
                time.sleep(0.1)
            found.append(len(next(iter(answer.json().values()))))
    return found


def _warm_up(party: Party) -> None:
    """As many honest calls at once as there will be others: pools of connections between the three fill up."""
    with party.client() as client, ThreadPoolExecutor(AT_ONCE) as pool:
        for call in party.honest:
            calls = [
                pool.submit(client.request, call.method, call.path, content=call.body)
                for _ in range(AT_ONCE)
            ]
            for one in calls:
                answer = one.result()
                assert call.holds in answer.text, answer.text


def _watch(flood: Flood, memory: dict[str, list[int]], count: int) -> Callable[[int], None]:
    """Notes the memory after each tenth but the last, at whose end it is looked at by itself."""
    marks = {count * tenth // PARTS for tenth in range(1, PARTS)}

    def after(sent: int) -> None:
        if sent in marks:
            memory[flood.party.name].append(resident_kib(flood.party.pid))

    return after


def held_by(party: Party) -> Held:
    """What it has open now."""
    inodes, descriptors = set(), 0
    for one in Path(f"/proc/{party.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            inodes.add(str(one.readlink()).removeprefix("socket:[").removesuffix("]"))
            descriptors += 1
    lines = Path(f"/proc/{party.pid}/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    own = [one for one in fields if one[9] in inodes and one[3] != LISTENING]
    callers = sum(one[1].endswith(f":{party.port:04X}") for one in own)
    return Held(descriptors, callers, len(own) - callers)


def _report(flood: Flood, caller: Caller, base: Held, memory: list[int]) -> Report:
    party = flood.party
    # Of others first: of malformed ones there may be many alike.
    found = [f"{party.name}: an honest call failed: {text}" for text in caller.failures]
    begun = time.monotonic()
    while (held := held_by(party)).callers > base.callers and time.monotonic() - begun < SETTLE_S:
        time.sleep(0.1)
    settled = time.monotonic() - begun
    rss = (*memory, resident_kib(party.pid))
    found += _kept(party.name, base, held, rss)
    found += [f"{party.name} logged: {line}" for line in _faults(party)]
    found += flood.found
    with party.client() as client:
        for call in party.honest:
            answer = client.request(call.method, call.path, content=call.body)
            assert call.holds in answer.text, answer.text
    spans = sorted(caller.spans)
    return Report(
        party.name, flood.answers, len(spans), statistics.median(spans), spans[len(spans) * 99 // 100], spans[-1],
        rss, (base, held), settled, tuple(found),
    )  # fmt: skip


def _kept(name: str, base: Held, held: Held, rss: tuple[int, ...]) -> list[str]:
    """What was not given back."""
    found = []
    if held.callers > base.callers:
        found.append(f"{name}: {held.callers} connections are open, {base.callers} before")
    if held.made > base.made + POOLED:
        found.append(f"{name}: it has {held.made} connections to others, {base.made} before")
    if held.rest > base.rest + SPARE:
        found.append(f"{name}: {held.rest} other descriptors are open, {base.rest} before")
    if rss[-1] > rss[WARM - 1] + GROWTH_KIB or rss[-1] > rss[PARTS // 2 - 1] + LATER_KIB:
        found.append(f"{name}: RSS in KiB after each tenth {rss}")
    return found


def _faults(party: Party) -> list[str]:
    """Lines of its log that tell of a fault of its own."""
    words = ("Traceback", '"level": "error"', '"level": "critical"')
    return [line for line in party.log() if any(word in line for word in words)][:5]
