"""One command for each thing: `python -m loadtest burst --n 300`, `… curve A/report.json B/report.json`, `… floor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from loadtest.plan import SCENARIOS

USAGE = f"""\
python -m loadtest SCENARIO [flags]            {", ".join(SCENARIOS)}
python -m loadtest report JSON                 write the page anew, beside it
python -m loadtest curve JSON... --out HTML    several runs of `hold` side by side
python -m loadtest floor --target FILE [flags] the control: bare claims, and pods made one by one

Flags of scenarios: locust -f loadtest/locustfile.py --help. See docs/loadtest.md.
"""
LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def main(arguments: list[str]) -> int:
    """What is asked for; the exit code."""
    match arguments:
        case [scenario, *rest] if scenario in SCENARIOS:
            return locust(scenario, rest)
        case ["report" | "curve" as what, *rest]:
            from loadtest import curve  # noqa: PLC0415 - no scenario needs it

            return curve.main(what, rest)
        case ["floor", *rest]:
            from loadtest import floor  # noqa: PLC0415 - nor this

            return floor.main(rest)
        case _:
            sys.stderr.write(USAGE)
            return 2


def locust(scenario: str, rest: list[str]) -> int:
    """Become Locust, which forks, patches and exits as it likes."""
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless"]
    more = ["--only-summary", "--skip-log-setup", "--scenario", scenario, *rest]
    # Our own interpreter, and arguments of who called us.
    os.execv(sys.executable, [*command, *more])  # noqa: S606
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
