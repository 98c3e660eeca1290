"""What all tests share: which of them must not run at the same time."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from typing import TYPE_CHECKING

import structlog
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer

TOGETHER = {
    "tests/adapters/": "adapters",
    "tests/cluster/": "cluster",
    "tests/scale/": "cluster",
    "tests/conformance/": "conformance",
    "tests/runc/": "runc",
    "tests/browser/": "browser",
    "tests/flow/test_load.py": "load",
}
"""There is one cluster, and the daemons under runc are shared, as are load tests under way: each of these goes to one
worker, in order. The scale bed comes after the cluster, in the same: both at work would measure each other."""


SETTINGS = ("SANDMAN_URL", "SANDMAN_TOKEN", "SANDMAN_TOKEN_FILE", "SANDMAN_CA", "SANDMAN_CONTEXT")
"""Variables by which a client finds its gateway."""

# What a service logs before it is configured. By default a traceback is painted with all local variables, which
# takes a second of the processor, and on a busy machine holds up whatever runs in the same loop for many.
PLAIN = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
structlog.configure(processors=[*structlog.get_config()["processors"][:-1], PLAIN])


def pytest_configure() -> None:
    """A shell without job control starts what it puts into the background with SIGINT ignored. That is inherited by
    all that tests start, on which Ctrl-C would have no effect, and where one process had asked for it, would."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # What whoever runs the tests has logged in to is not to be tested.
    for name in [one for one in os.environ if one in SETTINGS]:
        del os.environ[name]
    os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="sandman-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)


class Scheduling(LoadScopeScheduling):
    """Every test by itself to whichever worker is free, but for those that belong together.

    Not xdist's own marks for that (`xdist_group`): with pytest 9.2 they do nothing, for xdist 3.8 writes them
    into a field that pytest no longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        found = (group for place, group in TOGETHER.items() if nodeid.startswith(place))
        return next(found, nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Whatever `--dist` says."""
    return Scheduling(config, log)
