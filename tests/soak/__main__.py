"""The long form: `python -m tests.soak`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from daemon.runtime import interpreter, tree
from tests.soak.soak import SoakError, run


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--commands", type=int, default=10_000)
    parser.add_argument("--outputs", type=int, default=50)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        home = tree.compose(interpreter.build(), Path(scratch) / "tree")
        try:
            print(run(home, options.commands, options.outputs))
        except SoakError as error:
            print(f"FAILED: {error}")
            return 1
        finally:
            tree.remove(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
