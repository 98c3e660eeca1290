"""One input again, without libFuzzer: `python -m tests.fuzz.replay NAME FILE…`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.fuzz.targets import TARGETS


def main() -> None:
    """Raise what the target raises."""
    name, *files = sys.argv[1:]
    for file in files:
        TARGETS[name](Path(file).read_bytes())
        print(f"{file}: nothing found")


if __name__ == "__main__":
    main()
