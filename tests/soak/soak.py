"""Commands that leave orphans, and long outputs, to one daemon that is PID 1: what is lost, left or grown.

The daemon is the one that goes into pods, on its own static Python, in a pid namespace of its own. Each
command double-forks: one orphan in a session of its own, one that still holds the command's stdout. PID 1
must reap them all, and no exit code may be another's.
"""

from __future__ import annotations

import hashlib
import http.client
import itertools
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sandman import names, wire
from tests.unit.daemon import harness
from tests.unit.daemon.conftest import IN_ITS_OWN_NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLERS = 8
SEQ_LAST = 2_000_000
REMEMBERED = 1024
"""Ended commands that the daemon remembers: its memory grows until it knows so many."""
GROWTH_KIB = 16 * 1024
"""Four readings of the kernel's noise and the allocator's; a leak of 2 KiB a command would be over it."""
SCRIPT = """
( (setsid sh -c 'sleep 0.0{n} & :' </dev/null >/dev/null 2>&1 &) & )
(sleep 0.0{n} &)
echo {number}
exit {code}
"""


class SoakError(Exception):
    """Something was lost, left or wrong; the text says what."""


class Report(NamedTuple):
    """What was done, and the daemon's resident memory before and after, in KiB."""

    commands: int
    outputs: int
    seconds: float
    rss_before: int
    rss_after: int

    def __str__(self) -> str:
        return (
            f"{self.commands} commands with two orphans each, {self.outputs} outputs of"
            f" `seq 1 {SEQ_LAST}`: 0 zombies, 0 wrong exit codes, 0 cut outputs in"
            f" {self.seconds:.0f} s; VmRSS {self.rss_before} KiB before, {self.rss_after} after"
        )


def run(tree: Path, commands: int, outputs: int) -> Report:
    """Do it all against a daemon from this tree.

    Raises:
        SoakError: at the first thing that is wrong.
    """
    began = time.monotonic()
    program = (str(tree / "bin" / "python3"), "-I", "-S", str(tree / "app"), "serve")
    daemon = harness.start(*IN_ITS_OWN_NAMESPACE, program=program, cwd=Path("/"))
    try:
        warm = min(commands // 2, REMEMBERED + 100)
        leave_orphans(daemon, range(warm))
        descriptors = settled(daemon)
        before = resident_kib(daemon.pid)
        leave_orphans(daemon, range(warm, commands))
        wanted = digest_of_seq()
        for number in range(outputs):
            check_output(daemon, number, wanted)
        check_after(daemon, descriptors)
        after = resident_kib(daemon.pid)
        if after > before + GROWTH_KIB:
            raise SoakError(f"the daemon grew: {before} KiB before, {after} after")
        return Report(commands, outputs, time.monotonic() - began, before, after)
    finally:
        daemon.stop()


# --- commands with orphans ---


def leave_orphans(daemon: harness.Daemon, numbers: range) -> None:
    """Run them all, some at once, and compare each result."""
    local = threading.local()
    made: list[http.client.HTTPConnection] = []

    def call(number: int) -> None:
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=120)
            made.append(local.connection)
        check_command(local.connection, number)

    with ThreadPoolExecutor(CALLERS) as pool:
        try:
            for _ in pool.map(call, numbers):
                pass
        finally:
            pool.shutdown(cancel_futures=True)
            for connection in made:
                connection.close()


def check_command(connection: http.client.HTTPConnection, number: int) -> None:
    """One command; its exit code and its output must be its own."""
    code = number % 256
    script = SCRIPT.format(n=1 + number % 5, number=number, code=code)
    body = json.dumps({"argv": ["sh", "-c", script]})
    headers = {"Authorization": f"Bearer {harness.TOKEN}", "Content-Type": names.MEDIA_JSON}
    connection.request("POST", "/v1/exec", body, headers)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise SoakError(f"command {number}: status {answer.status}: {text[:500]!r}")
    result = wire.ExecResult.from_json(json.loads(text))
    found = (result.exit_code, result.signal, result.stdout, result.timed_out)
    if found != (code, None, b"%d\n" % number, False):
        raise SoakError(f"command {number}: wanted exit code {code}, got {result}")


# --- long outputs ---


def digest_of_seq() -> str:
    """SHA-256 of what `seq` writes."""
    digest = hashlib.sha256()
    for start in range(1, SEQ_LAST + 1, 100_000):
        digest.update(b"".join(b"%d\n" % n for n in range(start, start + 100_000)))
    return digest.hexdigest()


def check_output(daemon: harness.Daemon, number: int, wanted: str) -> None:
    """All of it, as frames, to the last byte."""
    body = json.dumps({"argv": ["seq", "1", str(SEQ_LAST)]})
    headers = {"Accept": names.MEDIA_FRAMES}
    digest, last = hashlib.sha256(), None
    with daemon.client.stream("POST", "/v1/exec", content=body, headers=headers) as answer:
        for frame in frames_of(answer.iter_raw()):
            if frame.type == wire.STDOUT:
                digest.update(frame.payload)
            last = frame
    if last is None or last.type != wire.EXIT or json.loads(last.payload)["exit_code"] != 0:
        raise SoakError(f"output {number}: it ends with {last}")
    if digest.hexdigest() != wanted:
        raise SoakError(f"output {number}: other bytes than seq writes: {last.payload!r}")


def frames_of(chunks: Iterator[bytes]) -> Iterator[wire.Frame]:
    """The frames in a body."""
    decoder = wire.FrameDecoder()
    return itertools.chain.from_iterable(decoder.feed(chunk) for chunk in chunks)


# --- what is left ---


def settled(daemon: harness.Daemon) -> int:
    """Descriptors of the daemon once no orphan is left."""
    if not harness.wait_until(lambda: not descendants(daemon.pid), 60):
        raise SoakError(f"orphans do not end: {descendants(daemon.pid)[:5]}")
    return descriptors_of(daemon.pid)


def check_after(daemon: harness.Daemon, descriptors: int) -> None:
    """Nothing is left: no process, no zombie, no descriptor."""
    settled(daemon)
    running = daemon.client.get("/v1/info").json()["running"]
    if running:
        raise SoakError(f"{running} commands are said to run")
    slack = CALLERS + 8  # connections that are about to be closed
    if not harness.wait_until(lambda: descriptors_of(daemon.pid) <= descriptors + slack, 30):
        raise SoakError(f"{descriptors_of(daemon.pid)} descriptors, {descriptors} before")


def descendants(pid: int) -> list[str]:
    """Direct children with their states, zombies among them. PID 1 inherits all others."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # a thread, or a child, that ends meanwhile
            for child in (task / "children").read_text().split():
                found.append(Path(f"/proc/{child}/stat").read_text()[:80])  # noqa: PERF401
    return found


def descriptors_of(pid: int) -> int:
    """How many descriptors the process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208


def resident_kib(pid: int) -> int:
    """The process's resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
