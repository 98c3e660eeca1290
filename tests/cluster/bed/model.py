"""Names, paths, addresses and versions of the test cluster: values only, nothing is run or written here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ETCD_VERSION = "v3.7.3"
KUBERNETES_VERSION = "v1.36.3"
CONTAINERD_VERSION = "v2.2.9"
RUNC_VERSION = "v1.5.3"
KUBE_ROUTER_VERSION = "v2.1.0"
KWOK_VERSION = "v0.8.0"

# 10.0.0.0/8 is split so that no address of the cluster depends on the machine's own network.
POD_CIDR = "10.244.0.0/16"
SERVICE_CIDR = "10.96.0.0/16"
KUBERNETES_SERVICE = "10.96.0.1"
CLUSTER_DNS = "10.96.0.10"  # Nobody listens there: the kubelet only wants an address to write.
NODE_IP = "10.95.0.1"
NODE_NAME = "sandman-node"

# The node's address lives on a bridge without ports: this kind of kernel has no dummy interfaces, and the
# machine's own address may be missing or change.
NODE_LINK = "sandman-node"
POD_BRIDGE = "sandman-pods"

REGISTRY = "127.0.0.1:5000"
PAUSE_IMAGE = "localhost/pause:1"
NEW_RUNC = Path("new/runc")
"""Below the binaries' directory: the runc of the runtime class `new-runc`, apart, so that it is nobody's by PATH."""


@dataclass(frozen=True, slots=True)
class Ports:
    """Of the control plane, on 127.0.0.1; a second one on the same machine has others."""

    api: int = 6443
    etcd: int = 23790
    etcd_peer: int = 23800
    controller_manager: int = 10257
    scheduler: int = 10259


class BedError(Exception):
    """The test cluster cannot do what was asked; the message is for the person who asked."""


@dataclass(frozen=True, slots=True)
class Bed:
    """Where one test cluster keeps its state, and how it is reached."""

    state: Path
    cache: Path
    registry: str = REGISTRY
    node_name: str = NODE_NAME
    node_ip: str = NODE_IP
    ports: Ports = Ports()

    @classmethod
    def from_env(cls) -> Bed:
        """The cluster of this machine; `SANDMAN_CLUSTER_DIR` moves its state elsewhere."""
        state = Path(os.environ.get("SANDMAN_CLUSTER_DIR", "/var/lib/sandman-cluster"))
        return cls(state=state, cache=Path.home() / ".cache" / "sandman")

    @property
    def api_url(self) -> str:
        """The API server."""
        return f"https://127.0.0.1:{self.ports.api}"

    @property
    def bin(self) -> Path:
        """Built binaries, kept between runs."""
        return self.cache / "bin"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "kubeconfig"

    @property
    def certs(self) -> Path:
        """Keys and certificates of the components."""
        return self.state / "certs"

    @property
    def ca(self) -> Path:
        """The certificate that signed the API server's own."""
        return self.state / "ca.crt"

    @property
    def config(self) -> Path:
        """Configuration files of the components."""
        return self.state / "config"

    @property
    def logs(self) -> Path:
        """One log a component."""
        return self.state / "logs"

    @property
    def run(self) -> Path:
        """One record a running process."""
        return self.state / "run"

    @property
    def audit_log(self) -> Path:
        """What the API server was asked, one JSON object a line."""
        return self.state / "audit.log"

    @property
    def containerd_socket(self) -> Path:
        """Where containerd listens."""
        return self.state / "containerd.sock"

    @property
    def snapshot(self) -> Path:
        """What the machine looked like before `up`; outside the state, for `down` removes that."""
        return self.cache / "before-up.json"
