"""`python -m tests.openapi`: schemathesis against a gateway in local mode, started for it. See `make fuzz-openapi`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.openapi import run


def main() -> int:
    """The program; its exit code is schemathesis's."""
    parser = argparse.ArgumentParser(prog="python -m tests.openapi", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run; else by chance")
    options = parser.parse_args()
    seed = [] if options.seed is None else [f"--seed={options.seed}"]
    with tempfile.TemporaryDirectory() as place:
        whole = ["--phases=coverage,fuzzing,stateful", f"--max-time={round(options.minutes * 60)}"]
        return run.fuzz(Path(place), *whole, *seed, timeout_s=options.minutes * 60 + 600).returncode


if __name__ == "__main__":
    sys.exit(main())
