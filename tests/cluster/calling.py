"""Callers of the installed gateways: their tokens, the command line that makes and rotates those, and each replica
by itself."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx

import sandman as sdk
from sandman import names
from tests.cluster import faults
from tests.cluster.bed.shell import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SLOW_S = 30.0
"""Seconds that a revocation may take here: two cores run a whole cluster. What it took is printed."""


def write_rules(sandman, **entries: dict) -> None:
    """The ConfigMap has these entries and no others."""
    found = json.loads(
        faults.system(sandman, "get", "configmap", names.CALLERS_CONFIG, "-o", "json")
    )
    data: dict[str, str | None] = dict.fromkeys(found.get("data") or {})
    data |= {name: json.dumps(one) for name, one in entries.items()}
    patch = json.dumps({"data": data})
    faults.system(
        sandman, "patch", "configmap", names.CALLERS_CONFIG, "--type", "merge", "-p", patch
    )


def client_of(sandman, token: str) -> sdk.SyncClient:
    made = sandman.installation
    return sdk.SyncClient(made.url, token, ca=made.ca, server_name=made.server_name)


def cli(sandman, *arguments: str, lag_s: float | None = None) -> str:
    """`sandman …` with the cluster's kubectl; its standard output. `lag_s` is in place of `signing.LAG_S`."""
    bed = sandman.bed
    environment = os.environ | {
        "KUBECONFIG": str(bed.kubeconfig),
        "PATH": f"{bed.bin}:{os.environ['PATH']}",
    }
    changed = "" if lag_s is None else f"signing.LAG_S = {lag_s}; "
    script = f"from sandman import signing; from sandman.cli import main; {changed}main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextlib.contextmanager
def replicas(sandman, source: str | None = None) -> Iterator[list[httpx.Client]]:
    """A client to each gateway, by its pod's address; calls come from `source`, an address of this machine."""
    text = faults.system(
        sandman, "get", "pods", "-l", "app.kubernetes.io/name=sandman-gateway", "-o", "json"
    )
    addresses = [pod["status"]["podIP"] for pod in json.loads(text)["items"]]
    trust = ssl.create_default_context(cafile=str(sandman.installation.ca))
    trust.check_hostname = False  # by address; the certificate must be the gateway's all the same
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                httpx.Client(
                    base_url=f"https://{one}:{names.GATEWAY_PORT}",
                    transport=httpx.HTTPTransport(verify=trust, local_address=source),
                    timeout=20,
                )
            )
            for one in addresses
        ]


def status(client: httpx.Client, token: str, path: str = "/v1/sandboxes") -> int:
    return client.get(path, headers={"authorization": f"Bearer {token}"}).status_code


def soon(what: str, check: Callable[[], bool], limit: float = SLOW_S) -> None:
    """Ask once a second: those who ask in vain more often are told to wait."""
    wait_until(what, check, limit, interval=1.0)
