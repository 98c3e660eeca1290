"""Somebody at the test cluster who reads the documents, and types what they say."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.cluster.bed import reference
from tests.cluster.install import WORKLOADS
from tests.examples import blocks, exceptions, script
from tests.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.deployed import Deployed
    from tests.examples.reader import Reader

QUICKSTART, OPERATIONS = "docs/quickstart-cluster.md", "docs/operations.md"
REMOVE = "kubectl delete "
"""So the commands of docs/operations.md begin that take Sandman away."""
SECONDS = 300


def typed(file: str) -> list[str]:
    """What a reader of this file types at a cluster."""
    return [
        command
        for block in blocks.of(blocks.ROOT / file)
        for command in block.commands
        if block.language in {"sh", "console"} and exceptions.on_the_cluster(file, command)
    ]


def run(
    sandman: Deployed, file: str, commands: list[str], place: Path, one: Reader | None = None
) -> str:
    """Type these in this directory; what they print."""
    return script.run(script.of(file, commands, one), place, _own(sandman), SECONDS)


def _own(sandman: Deployed) -> dict[str, str]:
    """What he has; see `tests.examples.reader`."""
    bed = sandman.bed
    return {
        "SANDMAN_CLUSTER_DIR": str(bed.state), "KUBECONFIG": str(bed.kubeconfig), "PATH": f"{bed.bin}:{os.environ['PATH']}",
        "OWN_REGISTRY": bed.registry, "OWN_BASE": reference(bed, "python"), "OWN_TASK": sandman.image("debian"),
        "OWN_OVERLAY": str(sandman.installation.manifests), "OWN_NAMESPACE": WORKLOADS,
        "OWN_PORT": str(free_port()), "OWN_CACHE": str(bed.cache),
    }  # fmt: skip
