"""Commands of the documents that are not run here, each with the reason; what they name is looked for all the same."""

from __future__ import annotations

import re
from typing import NamedTuple


class NotRun(NamedTuple):
    """Commands of one file that begin so."""

    file: str
    begins: str
    why: str

    def fits(self, file: str, command: str) -> bool:
        """Whether it is meant."""
        return file == self.file and re.match(self.begins, command) is not None


_OTHERS = "changes a cluster with Sandman on it; tests/cluster does the same there by other means"

NOT_RUN = (
    NotRun(
        "README.md", "make demo ", "installs for minutes; test_tasks_local runs what it runs then"
    ),
    NotRun("README.md", "make setup && ", "serves until it is stopped; test_local does that"),
    NotRun(
        "README.md",
        "make demo-cluster",
        "needs the cluster; tests/cluster/test_main_job does the same there",
    ),
    NotRun("README.md", "make test-all", "is the test run that this is a part of"),
    NotRun("README.md", "sandman shell ", "wants a terminal; test_terminals has one"),
    NotRun("docs/local.md", "sandman serve ", "serves until it is stopped; test_local does that"),
    NotRun("docs/quickstart-local.md", "make setup", "makes the environment that this runs in"),
    NotRun(
        "docs/quickstart-local.md",
        ".venv/bin/sandman serve ",
        "serves until it is stopped; test_local does that",
    ),
    NotRun("docs/quickstart-cluster.md", "make setup", "makes the environment that this runs in"),
    NotRun(
        "docs/quickstart-cluster.md",
        r".venv/bin/python -m scripts\.images",
        "pushes to a registry; tests/cluster/install does",
    ),
    NotRun("docs/quickstart-cluster.md", "kubectl ", "is about a reader's own cluster"),
    NotRun(
        "docs/quickstart-cluster.md",
        r".venv/bin/sandman (doctor|keys) ",
        "is about a reader's own cluster; tests/cluster has both",
    ),
    NotRun("docs/quickstart-cluster.md", "export ", "names a reader's own cluster"),
    NotRun("docs/cli.md", "sandman login ", "wants a token of a reader's own gateway"),
    NotRun("docs/cli.md", "sandman port-forward ", "serves until it is stopped"),
    NotRun("docs/cli.md", r'eval "\$\(sandman completion', "writes below the reader's home"),
    NotRun("docs/loadtest.md", "make load ", "installs Locust into an environment of its own"),
    NotRun(
        "docs/loadtest.md",
        r"\.venv/bin/sandman serve ",
        "serves until it is stopped; test_local does that",
    ),
    NotRun("docs/loadtest.md", r"\.venv-load/bin/python ", "needs that environment of its own"),
    NotRun("docs/operations.md", "kubectl ", _OTHERS),
    NotRun("docs/operations.md", "sandman inject ", _OTHERS),
)

NOT_RUN_PYTHON = {
    "connect(url": "a WebSocket library of the reader's choice; test_ports and test_sockets open such URLs",
}
"""Blocks of Python by a text in them: they are compiled, not run."""

RUN_ELSEWHERE = {"docs/adapters.md": "tests/adapters/inside/examples.py"}
"""Documents whose examples need what is not installed here, and what runs them."""
