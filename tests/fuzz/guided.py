"""One target under libFuzzer: `python -m tests.fuzz.guided NAME [libFuzzer's options] [corpus…]`."""

from __future__ import annotations

import sys

import atheris

# Coverage is counted in what is imported here: our own code, and not the oracle's.
with atheris.instrument_imports(include=["daemon", "sandman"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz until libFuzzer's options say stop; an input that raises is kept as an artifact."""
    name, *options = sys.argv[1:]
    atheris.Setup([sys.argv[0], *options], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
