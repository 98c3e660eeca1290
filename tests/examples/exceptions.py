"""Commands of the documents that are not run, each with the reason, or elsewhere; what they name is looked for all the same."""

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


NOT_RUN = (
    NotRun("README.md", "make test-all", "is the test run that this is a part of"),
    NotRun(
        "docs/benchmarks.md",
        r"python -m tests\.cluster\.controlled",
        "takes a cluster for itself, for an hour and more",
    ),
)

ON_THE_CLUSTER = (
    ("README.md", "make demo-cluster"),
    ("docs/operations.md", ""),
    ("docs/quickstart-cluster.md", ""),
)
"""Commands, by file and beginning, that want a cluster: tests/cluster/test_examples.py runs them, and what installs and
removes tests/cluster/test_zzz_installation.py."""


def on_the_cluster(file: str, command: str) -> bool:
    """Whether it wants one."""
    return any(file == one and command.startswith(begins) for one, begins in ON_THE_CLUSTER)


OF_ASYNCIO = "from websockets"
"""The block of Python that has this in it needs asyncio and a server; it has a test of its own."""

RUN_ELSEWHERE = {"docs/adapters.md": "tests/adapters/inside/examples.py"}
"""Documents whose examples need what is not installed here, and what runs them."""
