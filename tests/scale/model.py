"""Names, ports and paths of the scale bed, and what others are told of it. Values only."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.cluster.bed.model import Bed, Ports

ROOT = Path(__file__).resolve().parents[2]
# Apart from the test cluster's, so that both can be there at once; below 30000, where node ports begin.
PORTS = Ports(api=26443, etcd=23791, etcd_peer=23801, controller_manager=20257, scheduler=20259)
WEBHOOK_PORT = 28250
GATEWAY_PORT = 28443
"""Of the first gateway; the next ones follow."""
METRICS_PORT = 28543
"""Of the first gateway's whole metrics, likewise."""
DAEMON_PORT = 28763
"""Of every hollow daemon, at its pod's address."""
GATEWAYS = 2
TENANTS = ("north", "south", "east")
"""With a key each; weights 3, 1 and 1."""
WEIGHTS = {"north": 3.0, "south": 1.0, "east": 1.0}
CONTROL_PLANE = ("etcd", "apiserver", "controller-manager", "scheduler")
TARGET = ROOT / "build" / "scale" / "target.json"
"""Where whoever makes load finds the bed."""


@dataclass(frozen=True, slots=True)
class Target:
    """How the bed is reached. The file that it is written to is gone with the bed; `loadtest` reads it, too."""

    base_urls: list[str]
    """Of the gateways; any of them takes any call."""
    metrics: list[str]
    """Where each gateway tells its metrics, without a key."""
    ca: str
    """File with the authority that signed the gateways' certificates."""
    tenants: dict[str, dict[str, Any]]
    """Key and weight of each."""
    pool: str
    pods: int
    """Placeholders that were there when it came up."""
    pids: dict[str, int]
    """By name: for whoever looks at memory and processor."""
    api_server: dict[str, str]
    kubeconfig: str
    state: str

    def write(self, path: Path = TARGET) -> None:
        """For the bed's owner alone: it has keys."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path = TARGET) -> Target:
        """What is there.

        Raises:
            FileNotFoundError: the bed is not up.
        """
        values: dict[str, Any] = json.loads(path.read_text())
        return cls(**values)


def bed() -> Bed:
    """The scale bed's control plane; `SANDMAN_SCALE_DIR` moves its state elsewhere."""
    state = Path(os.environ.get("SANDMAN_SCALE_DIR", "/var/lib/sandman-scale"))
    return Bed(state=state, cache=Path.home() / ".cache" / "sandman", ports=PORTS)
