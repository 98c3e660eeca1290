"""How fast files move: `python -m benchmarks.files [--runtime] [--gateway]`.

Against one daemon over loopback, by plain sockets, so that its own speed is seen and no client's; with
`--gateway` also by `sandman.Client` through a gateway with TLS. Each round measures every way in turn,
beside what the machine's own `cp` and `tar` make of the same bytes: on a noisy machine the ratios count.
Files lie in memory (/dev/shm) unless `--directory` says else, so that no disk is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from daemon.runtime import interpreter, tree
from sandman import names
from sandman.sync import Client as SyncClient
from tests.unit.daemon import harness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandman.sync import Files
    from tests.unit.daemon.harness import Daemon

MIB = 1024 * 1024
BIG_MIB = 256
SMALL, LARGE = 1000, 10
SMALL_BYTES, LARGE_BYTES = 4096, 20 * MIB


class Bench:
    """The bytes to move, and where to."""

    def __init__(self, top: Path, daemon: Daemon) -> None:
        self.top = top
        self.daemon = daemon
        self.big, self.tree, self.tar = top / "big", top / "tree", top / "tree.tar"
        self.target = top / "target"
        self.big.write_bytes(os.urandom(MIB) * BIG_MIB)
        for number in range(SMALL):
            directory = self.tree / f"d{number % 20}"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / f"small-{number}").write_bytes(os.urandom(SMALL_BYTES))
        for number in range(LARGE):
            (self.tree / f"large-{number}").write_bytes(os.urandom(LARGE_BYTES))
        subprocess.run(["tar", "-C", self.tree, "-cf", self.tar, "."], check=True)  # noqa: S603, S607 - own paths
        self.tree_bytes = SMALL * SMALL_BYTES + LARGE * LARGE_BYTES

    def clear(self) -> None:
        """Nothing is at the target."""
        if self.target.is_dir():
            shutil.rmtree(self.target)
        self.target.unlink(missing_ok=True)

    # --- controls ---

    def cp(self) -> int:
        """One file, by the machine's own means."""
        subprocess.run(["cp", "--reflink=never", self.big, self.target], check=True)  # noqa: S603, S607 - own paths
        return BIG_MIB * MIB

    def tar_to_tar(self) -> int:
        """The directory, by the machine's own means."""
        self.target.mkdir()
        pack = ["tar", f"--directory={self.tree}", "-cf", "-", "."]
        unpack = ["tar", f"--directory={self.target}", "-xf", "-"]
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as packing:  # noqa: S603 - own paths
            subprocess.run(unpack, stdin=packing.stdout, check=True)  # noqa: S603 - own paths
        if packing.returncode:
            raise SystemExit(f"tar ended with {packing.returncode}")
        return self.tree_bytes

    # --- the daemon ---

    def put(self) -> int:
        """One file in."""
        return self._send("PUT", f"/v1/files?path={self.target}", self.big)

    def get(self) -> int:
        """One file out."""
        return self._receive("GET", f"/v1/files?path={self.big}")

    def stream(self) -> int:
        """A command's output, in frames."""
        body = json.dumps({"argv": ["cat", str(self.big)]}).encode()
        length = f"Content-Length: {len(body)}"
        self._receive("POST", "/v1/exec", length, f"Accept: {names.MEDIA_FRAMES}", body=body)
        return BIG_MIB * MIB

    def archive_in(self) -> int:
        """The directory in."""
        return self._send("PUT", f"/v1/archive?path={self.target}", self.tar)

    def archive_out(self) -> int:
        """The directory out."""
        self._receive("GET", f"/v1/archive?path={self.tree}")
        return self.tree_bytes

    # --- through a gateway ---

    def ways_by(self, files: Files, pid: int) -> dict[str, Way]:
        """The same by the client, through a gateway with TLS; what comes out lands at the target, too."""

        def download() -> int:
            files.download(self.big, self.target)
            return BIG_MIB * MIB

        return {
            "upload": Way(lambda: files.upload(self.big, self.target).size, pid, "cp"),
            "download": Way(download, pid, "cp"),
            "upload_dir": Way(
                lambda: files.upload_dir(self.tree, self.target).bytes, pid, "tar to tar"
            ),
            "download_dir": Way(
                lambda: files.download_dir(self.tree, self.target).bytes, pid, "tar to tar"
            ),
        }

    def _send(self, method: str, target: str, file: Path) -> int:
        size = file.stat().st_size
        with self.daemon.connect() as sock, file.open("rb") as source:
            options = (f"Content-Length: {size}", "Connection: close")
            sock.sendall(harness.head(method, target, *options))
            sock.sendfile(source)
            answer = harness.read_all(sock)
        assert b" 200 OK" in answer[:20], answer
        return size

    def _receive(self, method: str, target: str, *options: str, body: bytes = b"") -> int:
        buffer = bytearray(MIB)
        total = 0
        with self.daemon.connect() as sock:
            sock.sendall(harness.head(method, target, *options, "Connection: close") + body)
            while got := sock.recv_into(buffer):
                total += got
        assert total > self.big.stat().st_size // 2, bytes(buffer[:200])
        return total


class Way(NamedTuple):
    """A way to move bytes: does it and tells how many; who serves it; what it is compared to."""

    run: Callable[[], int]
    pid: int | None = None
    control: str | None = None


class Sample(NamedTuple):
    """One measurement: MB a second, and milliseconds of the server's processor time for each MB."""

    speed: float
    cpu: float


def cpu_ms(pid: int | None) -> float:
    """Processor time that the process has used."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def measure(bench: Bench, ways: dict[str, Way], rounds: int) -> dict[str, list[Sample]]:
    """Each way in each round; the first round is not counted."""
    found: dict[str, list[Sample]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            bench.clear()
            used, started = cpu_ms(way.pid), time.perf_counter()
            size = way.run() / 1e6
            seconds = time.perf_counter() - started
            if number:
                found[name].append(Sample(size / seconds, (cpu_ms(way.pid) - used) / size))
    return found


@contextmanager
def gateway() -> Iterator[tuple[Files, int]]:
    """The files of a sandbox behind a gateway, and its pid. Its daemon is on a plain Python."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gateway"],
        cwd=harness.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        with SyncClient(told["url"], told["token"], ca=told["ca"]) as client:
            yield client.attach(told["sandbox"]).files, process.pid
        process.stdin.close()


def table(found: dict[str, list[Sample]], ways: dict[str, Way]) -> str:
    """Markdown."""
    speeds = {
        name: statistics.median(one.speed for one in samples) for name, samples in found.items()
    }
    lines = [
        "| way | MB/s, median | of its control | server's ms of processor a MB |",
        "|---|---|---|---|",
    ]
    for name, way in ways.items():
        ratio = f"{speeds[name] / speeds[way.control]:.2f} of {way.control}" if way.control else ""
        cpu = f"{statistics.median(one.cpu for one in found[name]):.2f}" if way.pid else ""
        lines.append(f"| {name} | {speeds[name]:.0f} | {ratio} | {cpu} |")
    return "\n".join(lines)


def run(top: Path, options: argparse.Namespace) -> None:
    """Measure below this directory."""
    program = None
    if options.runtime:
        mount = tree.compose(interpreter.build(), top / "runtime")
        program = (str(mount / "bin/python3"), "-I", "-S", str(mount / "app"), "serve")
    daemon = harness.start(program=program)
    try:
        bench = Bench(top, daemon)
        idle = harness.peak_kib(daemon)
        pid = daemon.pid
        ways = {
            "cp": Way(bench.cp),
            "PUT of a file": Way(bench.put, pid, "cp"),
            "GET of a file": Way(bench.get, pid, "cp"),
            "output of a command": Way(bench.stream, pid, "cp"),
            "tar to tar": Way(bench.tar_to_tar),
            "PUT of a directory": Way(bench.archive_in, pid, "tar to tar"),
            "GET of a directory": Way(bench.archive_out, pid, "tar to tar"),
        }
        with gateway() if options.gateway else nullcontext() as there:
            if there is not None:
                ways.update(bench.ways_by(*there))
            print(table(measure(bench, ways, options.rounds), ways))
        print(f"\npeak of the daemon: {harness.peak_kib(daemon) - idle} KiB over idle")
    finally:
        daemon.stop()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))  # nosec B108  # noqa: S108 - a directory is made in it
    parser.add_argument("--runtime", action="store_true", help="the daemon on its static Python")
    parser.add_argument("--gateway", action="store_true", help="also by the client, through one")
    options = parser.parse_args()
    # Also when something fails: in memory it would stay until the machine goes down.
    with tempfile.TemporaryDirectory(prefix="sandman-bench-", dir=options.directory) as name:
        run(Path(name), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
