"""The daemon beside one in Go with the same two routes: `python -m benchmarks.daemon`.

The candidate is what goes into pods: the static interpreter from the cache and the daemon's byte code. The
control (`godaemon/`) is built here. Both are started directly on this machine, without a container, and
measured in turn within each round; the load is the control's binary for both, so it favours neither. What is
uploaded goes to memory where there is /dev/shm, so that no disk is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.runtime import interpreter, tree

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
TOKEN = "of-the-benchmark"  # noqa: S105 - of a daemon that lives as long as this runs
INSTANCES = 50
STARTS = 20
"""In each round."""
EXEC_S = 3.0
STREAM_BYTES = 512 * 1024 * 1024
SETTLE_S = 2.0
MAX_LISTENING_MS, MAX_LISTENING_RATIO = 30.0, 12.0
MAX_PSS_MB = 6.0
MIN_EXEC_RATIO = 0.6
MIN_MB_PER_S = 300.0


@dataclass(frozen=True, slots=True)
class Program:
    """A daemon that can be started, and the load for it."""

    name: str
    command: tuple[str, ...]
    load: Path

    def environment(self, port: int) -> dict[str, str]:
        """What the pod would set."""
        digest = hashlib.sha256(TOKEN.encode()).hexdigest()
        own = {"SANDMAN_TOKEN_SHA256": digest, "SANDMAN_PORT": str(port)}
        return {"PATH": os.environ["PATH"], "HOME": "/", **own}

    @contextlib.contextmanager
    def running(self, count: int = 1) -> Iterator[list[tuple[int, int]]]:
        """So many instances, each answering: pids and ports."""
        ports = free_ports(count)
        processes = [
            subprocess.Popen(  # noqa: S603 - a daemon of this checkout
                self.command, env=self.environment(port), stderr=subprocess.DEVNULL, cwd="/"
            )
            for port in ports
        ]
        try:
            for port in ports:
                await_health(port)
            yield [(process.pid, port) for process, port in zip(processes, ports, strict=True)]
        finally:
            for process in processes:
                process.kill()
                process.wait()

    def ask(self, kind: str, port: int, *options: str, own: bool = False) -> dict[str, object]:
        """One measurement by the load; `own`: it starts the daemon itself."""
        command = [str(self.load), kind, f"-port={port}", f"-token={TOKEN}", *options]
        environment = self.environment(port) if own else None
        done = subprocess.run(  # noqa: S603 - this file's own clients
            command, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{self.name}: {kind}: {done.stderr[-2000:]}")
        found: dict[str, object] = json.loads(done.stdout)
        return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody has just now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


def await_health(port: int) -> None:
    """Wait until it answers."""
    until = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5):  # nosec B310  # an address of this file
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


# --- measurements: each adds its figures to a series by name ---

Series = dict[str, list[float]]


def measure_start(program: Program, series: Series) -> None:
    """From the fork to a port that takes connections, to a sign of life, and to a call with a token."""
    (port,) = free_ports(1)
    found = program.ask("start", port, f"-n={STARTS}", *program.command, own=True)
    for name in ("listening_ms", "living_ms", "ready_ms"):
        series.setdefault(name, []).extend(found[name])  # type: ignore[arg-type]


def measure_memory(program: Program, series: Series) -> None:
    """PSS of each of many instances: after the start, and after a command in each."""
    with program.running(INSTANCES) as instances:
        time.sleep(SETTLE_S)
        series.setdefault("pss_mb", []).append(mean_pss_mb(instances))
        for _, port in instances:
            program.ask("exec", port, "-seconds=0.01", "/bin/true")
        time.sleep(SETTLE_S)
        series.setdefault("pss_used_mb", []).append(mean_pss_mb(instances))


def mean_pss_mb(instances: list[tuple[int, int]]) -> float:
    """Of one instance."""
    total = 0
    for pid, _ in instances:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])
    return total * 1024 / 1e6 / len(instances)


def measure_load(program: Program, series: Series, seconds: float, size: int) -> None:
    """Commands and streams."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # nosec B108  # noqa: S108 - a directory is made in it
    with tempfile.TemporaryDirectory(dir=memory) as scratch, program.running() as ((_, port),):
        for concurrency in (1, 16):
            options = (f"-c={concurrency}", f"-seconds={seconds}", "/bin/true")
            found = program.ask("exec", port, *options)
            series.setdefault(f"exec_{concurrency}", []).append(float(str(found["per_s"])))
            series.setdefault(f"exec_{concurrency}_ms", []).append(float(str(found["p50_ms"])))
        found = program.ask("upload", port, f"-bytes={size}", f"-path={scratch}/file")
        series.setdefault("upload", []).append(float(str(found["mb_per_s"])))
        command = ("head", "-c", str(size), "/dev/zero")
        found = program.ask("output", port, f"-bytes={size}", *command)
        series.setdefault("output", []).append(float(str(found["mb_per_s"])))


# --- the table ---


@dataclass(slots=True)
class Table:
    """Rows of Markdown, and the bars that were missed."""

    rows: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def add(
        self, what: str, go: float, ours: float, bar: str = "", *, ok: bool | None = None
    ) -> None:
        """One row; `ok` None: there is no bar."""
        verdict = "" if ok is None else "kept" if ok else "**missed**"
        if ok is False:
            self.missed.append(what)
        ratio = f"{ours / go:.2f}" if go else ""
        self.rows.append(f"| {what} | {go:.1f} | {ours:.1f} | {ratio} | {bar} | {verdict} |")


def best(values: list[float], name: str) -> float:
    """The least disturbed: the shortest time, the highest rate. Memory is not disturbed."""
    if name.endswith("_mb"):
        return statistics.median(values)
    return min(values) if name.endswith("_ms") else max(values)


def tabulate(go: Series, ours: Series, *, is_shared: bool) -> Table:
    """Medians, or of a machine that others use the best, and what was promised of them."""
    table = Table()

    def figures(name: str) -> tuple[float, float]:
        if is_shared:
            return best(go[name], name), best(ours[name], name)
        return statistics.median(go[name]), statistics.median(ours[name])

    g, o = figures("listening_ms")
    ok = o <= MAX_LISTENING_MS and o <= MAX_LISTENING_RATIO * g
    bar = f"≤ {MAX_LISTENING_MS:.0f} and ≤ {MAX_LISTENING_RATIO:.0f} of Go's"
    table.add("start to listening, ms", g, o, bar, ok=ok)
    table.add("start to a sign of life, ms", *figures("living_ms"))
    table.add("start to a call with a token, ms", *figures("ready_ms"))
    g, o = figures("pss_mb")
    table.add(f"PSS of each of {INSTANCES}, MB", g, o, f"≤ {MAX_PSS_MB:.0f}", ok=o <= MAX_PSS_MB)
    table.add("the same after commands, MB", *figures("pss_used_mb"))
    for concurrency in (1, 16):
        g, o = figures(f"exec_{concurrency}")
        ok = o >= MIN_EXEC_RATIO * g
        bar = f"≥ {MIN_EXEC_RATIO} of Go's"
        table.add(f"`/bin/true`, {concurrency} at once, per s", g, o, bar, ok=ok)
        table.add("the same, median ms", *figures(f"exec_{concurrency}_ms"))
    streams = {"upload": "upload of one file, MB/s", "output": "output as frames, MB/s"}
    for name, what in streams.items():
        g, o = figures(name)
        table.add(what, g, o, f"≥ {MIN_MB_PER_S:.0f}", ok=o >= MIN_MB_PER_S)
    return table


def show(table: Table, options: argparse.Namespace, load: float) -> None:
    """As Markdown, to be pasted."""
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, load average {load:.1f} before"
    command = f"python -m benchmarks.daemon --rounds {options.rounds}{' --shared' * options.shared}"
    kind = "the best of each" if options.shared else "medians"
    print(f"`{command}`, {datetime.now(UTC):%Y-%m-%d}, {kind}, interleaved; {machine}:\n")
    print("| | Go | Sandman | ratio | bar | |\n|---|---|---|---|---|---|")
    print("\n".join(table.rows))
    print(f"\nbars missed: {', '.join(table.missed) or 'none'}")


def build_control(directory: Path) -> Path:
    """The control and the load, as one binary."""
    binary = directory / "godaemon"
    environment = {**os.environ, "CGO_ENABLED": "0"}
    command = ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", str(binary), "."]
    subprocess.run(command, cwd=HERE / "godaemon", env=environment, check=True)  # noqa: S603 - words of above
    return binary


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.daemon", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=EXEC_S, help="of each load of commands")
    parser.add_argument("--bytes", type=int, default=STREAM_BYTES, help="of each stream")
    parser.add_argument(
        "--shared", action="store_true", help="others use this machine: the best counts"
    )
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bench-daemon-") as scratch:
        binary = build_control(Path(scratch))
        home = tree.compose(interpreter.build(), Path(scratch) / "tree")
        serve = (str(home / "bin" / "python3"), "-I", "-S", str(home / "app"), "serve")
        both = (
            (Program("Go", (str(binary), "serve"), binary), Series()),
            (Program("Sandman", serve, binary), Series()),
        )
        for number in range(options.rounds):
            for program, series in both if number % 2 == 0 else both[::-1]:
                print(f"round {number + 1}: {program.name}", file=sys.stderr)
                measure_start(program, series)
                measure_memory(program, series)
                measure_load(program, series, options.seconds, options.bytes)
        tree.remove(home)
    show(tabulate(both[0][1], both[1][1], is_shared=options.shared), options, load)
    return 0


if __name__ == "__main__":
    sys.exit(main())
