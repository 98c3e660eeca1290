"""Sandman as it is installed on the test cluster: how tests and the benchmark reach it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import sandman
from sandman import names
from tests.cluster import install
from tests.cluster.bed import Bed, kubectl, reference

if TYPE_CHECKING:
    from tests.cluster.install import Installation

ROOT = Path(__file__).resolve().parents[2]
TOOLCHAIN = Path("~/.cache/sandman/toolchain.tar").expanduser()


@dataclass(frozen=True)
class Deployed:
    """The installed gateway, and the cluster beneath it."""

    bed: Bed
    installation: Installation

    def client(self, *, other: bool = False) -> sandman.Client:
        """A client of tenant `demo`, or of the other one."""
        made = self.installation
        return sandman.Client(
            made.url,
            made.other_token if other else made.token,
            ca=made.ca,
            server_name=made.server_name,
        )

    def sync_client(self) -> sandman.SyncClient:
        """The same for code without an event loop, of tenant `demo`."""
        made = self.installation
        return sandman.SyncClient(made.url, made.token, ca=made.ca, server_name=made.server_name)

    def image(self, name: str) -> str:
        """Reference of a test image: debian, busybox, nonroot or empty."""
        return reference(self.bed, name)

    def toolchain(self) -> Path:
        """A tar with a static Python and its whole standard library, for images without one."""
        subprocess.run(
            [sys.executable, "-m", "daemon.runtime", "toolchain", "--out", str(TOOLCHAIN)],
            check=True,
            cwd=ROOT,
        )
        return TOOLCHAIN

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl as administrator in the sandboxes' namespace."""
        return kubectl(self.bed, "-n", names.SANDBOX_NAMESPACE, *arguments)

    def leased(self, run: str | None = None) -> list[str]:
        """Names of leased pods that are not being deleted, of one run or of all."""
        selector = f"{names.LABEL_STATE}={names.STATE_LEASED}"
        selector += "" if run is None else f",{names.LABEL_RUN}={run}"
        pods = json.loads(self.kubectl("get", "pods", "-l", selector, "-o", "json"))["items"]
        return [
            pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]
        ]

    def wait_nothing_leased(self, seconds: float = 20.0) -> None:
        """Wait until every leased pod is gone.

        Raises:
            AssertionError: some stayed.
        """
        deadline = time.monotonic() + seconds
        while left := self.leased():
            assert time.monotonic() < deadline, f"{len(left)} leaked: {left[:3]} …"
            time.sleep(0.25)

    def sweep(self) -> None:
        """Delete what an interrupted session left leased; leases would keep it for hours."""
        selector = f"{names.LABEL_STATE}={names.STATE_LEASED}"
        self.kubectl("delete", "pods", "-l", selector, "--wait=false", "--grace-period=1")
        self.wait_nothing_leased(120)


def deploy(bed: Bed) -> Deployed:
    """Install what is in the work tree, or look that it is installed."""
    return Deployed(bed, install.install(bed))
