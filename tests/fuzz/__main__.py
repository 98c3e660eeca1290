"""All fuzzers in turn: `python -m tests.fuzz --minutes 30`. The exit code says whether anything was found.

The time is shared out evenly. What a guided fuzzer learns stays in build/fuzz/corpus and is where the next
run begins; an input that is a finding is kept in build/fuzz/findings, and told with the command that repeats it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
from pathlib import Path

from daemon.runtime import interpreter
from tests.fuzz import routes
from tests.fuzz.targets import CORPUS, TARGETS

BUILD = Path(__file__).resolve().parents[2] / "build" / "fuzz"
MAX_INPUT_BYTES = 3000
"""Longer inputs find little more here, and each is read byte by byte, too."""
INPUT_S = 25
"""One input that takes longer is a hang."""
MEMORY_MB = 1024


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="for all of them together")
    parser.add_argument("--only", nargs="*", choices=[*TARGETS, "routes"])
    parser.add_argument("--seed", type=int, default=random.randrange(2**31), help="of the routes")
    options = parser.parse_args()
    wanted = options.only or [*TARGETS, "routes"]
    seconds = options.minutes * 60 / len(wanted)
    findings = [name for name in wanted if not fuzz(name, seconds, options.seed)]
    print(f"fuzzed: {', '.join(wanted)}; findings: {', '.join(findings) or 'none'}")
    return 1 if findings else 0


def fuzz(name: str, seconds: float, seed: int) -> bool:
    """Fuzz one target for so long; whether nothing was found."""
    if name in TARGETS:
        return guided(name, seconds)
    if os.geteuid() != 0:
        print("routes: needs root for a root directory of its own: not run")
        return True
    try:
        # On the Python that goes into pods: what another one's allocator keeps is no growth of the daemon's.
        routes.run(seed, sys.maxsize, seconds, runtime=interpreter.build())
    except (routes.FindingError, AssertionError) as error:
        print(f"routes: FOUND with seed {seed}: {error}")
        return False
    return True


def guided(name: str, seconds: float) -> bool:
    """Under libFuzzer, in a process of its own."""
    learned, findings, log = BUILD / "corpus" / name, BUILD / "findings", BUILD / f"{name}.log"
    for directory in (learned, findings):
        directory.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "tests.fuzz.guided", name, str(learned), str(CORPUS / name),
        f"-max_total_time={max(1, round(seconds))}", f"-max_len={MAX_INPUT_BYTES}", f"-timeout={INPUT_S}",
        f"-rss_limit_mb={MEMORY_MB}", f"-artifact_prefix={findings}/{name}-", "-print_final_stats=1",
    ]  # fmt: skip
    with log.open("w") as out:
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    text = log.read_text(errors="replace")
    print(f"{name}: {_summary(text)}")
    if code:
        report(name, text)
    return code == 0


def _summary(text: str) -> str:
    runs = re.findall(r"stat::number_of_executed_units: +(\d+)", text)
    seen = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", text)
    places, features, inputs = seen[-1] if seen else ("?", "?", "?")
    return (
        f"{runs[-1] if runs else '?'} inputs, {places} places, {features} features, {inputs} kept"
    )


def report(name: str, text: str) -> None:
    """What was found, and how to see it again."""
    said = re.search(r"=== Uncaught Python exception: ===\n(.{0,1500}?)\n\n", text, re.DOTALL)
    print(f"{name}: FOUND: {said[1] if said else text[-1500:]}")
    for artifact in re.findall(r"Test unit written to (\S+)", text):
        print(f"{name}: again: python -m tests.fuzz.replay {name} {artifact}")


if __name__ == "__main__":
    sys.exit(main())
