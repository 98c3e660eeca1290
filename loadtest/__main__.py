"""One command for each thing: `python -m loadtest burst --n 300`, `… curve A/report.json B/report.json`, `… floor`."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from loadtest.plan import SCENARIOS
from loadtest.session import BrokenError
from loadtest.target import TargetError

USAGE = f"""\
python -m loadtest SCENARIO [flags]            {", ".join(SCENARIOS)}
python -m loadtest report JSON                 write the page anew, beside it
python -m loadtest curve JSON... --out HTML    several runs of `hold` side by side
python -m loadtest floor --target FILE [flags] the control: bare claims, and pods made one by one

Flags of scenarios: locust -f loadtest/locustfile.py --help. See docs/loadtest.md.
"""
LOCUSTFILE = Path(__file__).with_name("locustfile.py")


def main(arguments: list[str]) -> int:
    """What is asked for; the exit code. For a scenario this becomes Locust, which forks and patches as it likes."""
    what, *rest = arguments or [""]
    if what in SCENARIOS:
        command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless"]
        more = ["--only-summary", "--skip-log-setup", "--scenario", what, *rest]
        # Our own interpreter, and arguments of who called us.
        os.execv(sys.executable, [*command, *more])  # noqa: S606
    if what in ("report", "curve"):
        from loadtest import curve  # noqa: PLC0415 - no scenario needs it

        return curve.main(what, rest)
    if what == "floor":
        from loadtest import floor  # noqa: PLC0415 - nor this

        try:
            return floor.main(rest)
        except (floor.FloorError, TargetError, BrokenError) as error:
            sys.stderr.write(f"loadtest: {error}\n")
            return 2
    sys.stderr.write(USAGE)
    return 2


if __name__ == "__main__":
    # As Ctrl-C: what the floor has claimed is deleted all the same. Locust makes its own.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
