"""Configuration files of the components, as text. Pure: takes the bed, returns what to write where.

Most of them are JSON, which every reader of YAML takes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.cluster.bed import model
from tests.cluster.bed.certificates import kubeconfig_path

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.bed.model import Bed

CNI_PLUGINS = "/usr/lib/cni"


def files(bed: Bed) -> dict[Path, str]:
    """Every configuration file with its content."""
    return {
        bed.config / "registry.yml": json.dumps(_registry(bed)),
        bed.config / "audit-policy.yml": json.dumps(_audit_policy()),
        bed.config / "scheduler.yml": json.dumps(_scheduler(bed)),
        bed.config / "kubelet.yml": json.dumps(_kubelet(bed)),
        bed.config / "containerd.toml": _containerd(bed),
        bed.config / "certs.d" / bed.registry / "hosts.toml": _hosts(bed),
        bed.config / "cni" / "10-sandman.conflist": json.dumps(_cni(bed)),
    }


def _registry(bed: Bed) -> dict[str, object]:
    return {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {
            "filesystem": {"rootdirectory": str(bed.cache / "registry")},
            "delete": {"enabled": True},
        },
        "http": {"addr": bed.registry},
    }


def _audit_policy() -> dict[str, object]:
    """Every request by its metadata, reads too (writes per claim are counted from it), but no probes and no schemas."""
    noise = {
        "level": "None",
        "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/openapi*", "/metrics"],
    }
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [noise, {"level": "Metadata"}],
    }


def _scheduler(bed: Bed) -> dict[str, object]:
    connection = {"kubeconfig": str(kubeconfig_path(bed, "scheduler")), "qps": 1000, "burst": 2000}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": connection,
        "leaderElection": {"leaderElect": False},
    }


def _kubelet(bed: Bed) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(bed.ca)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{bed.certs / 'kubelet-server'}.crt",
        "tlsPrivateKeyFile": f"{bed.certs / 'kubelet-server'}.key",
        "containerRuntimeEndpoint": f"unix://{bed.containerd_socket}",
        "clusterDNS": [model.CLUSTER_DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "podLogsDir": str(bed.state / "pod-logs"),
        "volumePluginDir": str(bed.state / "volume-plugins"),
        "kubeAPIQPS": 500,
        "kubeAPIBurst": 1000,
        **_kubelet_limits(),
    }


def _kubelet_limits() -> dict[str, object]:
    return {
        # Machines of this kind have cgroup v1 and no systemd.
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": ["pods"],
        "oomScoreAdj": 0,  # Lower needs CAP_SYS_RESOURCE, which a container of a developer may lack.
        "maxPods": 500,
        "podPidsLimit": 4096,
        "serializeImagePulls": False,
        # A pod of class Guaranteed with whole cpus has them alone; what is reserved, rounded up to a whole one, is for
        # all others.
        "cpuManagerPolicy": "static",
        "kubeReserved": {"cpu": "100m"},
        # The disk is shared: neither may its fill evict pods, nor the kubelet throw away images that tests rely on.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
    }


def _containerd(bed: Bed) -> str:
    """Everything below the state directory, so that `down` finds all of it."""
    state = bed.state / "containerd"
    return f"""version = 3
root = "{state}/root"
state = "{state}/state"
oom_score = 0
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
address = "{bed.containerd_socket}"

[plugins."io.containerd.internal.v1.opt"]
path = "{state}/opt"

[plugins."io.containerd.cri.v1.images"]
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{model.PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.images".registry]
config_path = "{bed.config}/certs.d"

[plugins."io.containerd.cri.v1.runtime"]
# Without CAP_SYS_RESOURCE runc may not lower a score, and every pod would fail in it.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{CNI_PLUGINS}"]
conf_dir = "{bed.config}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
Root = "{state}/runc"
# For pods with a user namespace of their own.
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.new-runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.new-runc.options]
SystemdCgroup = false
Root = "{state}/runc"
BinaryName = "{bed.bin / model.NEW_RUNC}"
"""


def _hosts(bed: Bed) -> str:
    return f'[host."http://{bed.registry}"]\ncapabilities = ["pull", "resolve"]\n'


def _cni(bed: Bed) -> dict[str, object]:
    ipam = {
        "type": "host-local",
        "dataDir": str(bed.state / "cni"),
        "ranges": [[{"subnet": model.POD_CIDR}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    # No ipMasq: one rule for the whole range (network.py) does the same without two iptables calls a pod.
    bridge = {
        "type": "bridge",
        "bridge": model.POD_BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": ipam,
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "sandman", "plugins": [bridge, portmap]}
