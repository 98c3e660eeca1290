"""`python -m tests.flood --count 100000`: the exit code says whether anything was found."""

from __future__ import annotations

import argparse
import random
import sys
from collections import defaultdict

from tests.flood import run


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.flood", description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="requests, a third to each")
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument(
        "--only", nargs=2, metavar=("SERVER", "NUMBER"), help="that one request again"
    )
    options = parser.parse_args()
    if options.only:
        run.again(options.seed, options.only[0], int(options.only[1]))
        return 0
    try:
        reports = run.run(options.seed, options.count)
    except run.FoundError as error:
        print(error)
        return 1
    kinds: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for report in reports:
        for (kind, status), count in report.answers.items():
            kinds[f"{kind} to the {report.name}"][status] += count
    for kind, answers in sorted(kinds.items()):
        print(f"{kind}: " + ", ".join(f"{one}: {n}" for one, n in sorted(answers.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
