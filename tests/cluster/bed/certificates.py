"""Keys, certificates and kubeconfig files of the cluster, made anew at each `up` with openssl."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.cluster.bed import model
from tests.cluster.bed.shell import run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.bed.model import Bed

# Thirty days: a test cluster that runs for longer was forgotten.
_NEW = [
    "openssl",
    "req",
    "-x509",
    "-newkey",
    "ec",
    "-pkeyopt",
    "ec_paramgen_curve:P-256",
    "-nodes",
    "-days",
    "30",
]


@dataclass(frozen=True, slots=True)
class Subject:
    """Who a certificate speaks for: Kubernetes reads user and group out of CN and O."""

    file: str
    user: str
    group: str = ""
    names: str = ""  # Only servers have subject alternative names.
    authority: str = "ca"

    @property
    def line(self) -> str:
        """The subject as openssl wants it."""
        return (f"/O={self.group}" if self.group else "") + f"/CN={self.user}"


_API_NAMES = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
_API_NAMES.append("kubernetes.default.svc.cluster.local")
_API_ADDRESSES = ["127.0.0.1", model.NODE_IP, model.KUBERNETES_SERVICE]
_API_SAN = ",".join(
    [f"DNS:{name}" for name in _API_NAMES] + [f"IP:{address}" for address in _API_ADDRESSES]
)

SERVERS = (
    Subject("apiserver", "kube-apiserver", names=_API_SAN),
    Subject(
        "kubelet-server",
        model.NODE_NAME,
        names=f"DNS:{model.NODE_NAME},IP:{model.NODE_IP},IP:127.0.0.1",
    ),
)
CLIENTS = (
    Subject("admin", "sandman-admin", "system:masters"),
    Subject("apiserver-kubelet", "kube-apiserver-kubelet", "system:masters"),
    Subject("controller-manager", "system:kube-controller-manager"),
    Subject("scheduler", "system:kube-scheduler"),
    Subject("kube-proxy", "system:kube-proxy"),
    # kube-router has no role of its own in Kubernetes; a test cluster need not write one.
    Subject("kube-router", "kube-router", "system:masters"),
    Subject("kubelet", f"system:node:{model.NODE_NAME}", "system:nodes"),
)
# Who holds a certificate of the second authority may speak for anybody: the API server alone has one.
AUTHORITIES = ("ca", "front-proxy-ca")
PROXY = Subject("front-proxy", "front-proxy-client", authority="front-proxy-ca")
_KUBECONFIGS = ("controller-manager", "scheduler", "kube-proxy", "kube-router", "kubelet")


def make(bed: Bed) -> None:
    """Write everything that the components need to know each other by."""
    bed.certs.mkdir(parents=True, mode=0o700)
    for name in AUTHORITIES:
        _make_authority(bed, name)
    shutil.copy(bed.certs / "ca.crt", bed.ca)
    run(["openssl", "genrsa", "-out", bed.certs / "service-accounts.key", "2048"])
    for subject in (*SERVERS, *CLIENTS, PROXY):
        _sign(bed, subject)
    for name in _KUBECONFIGS:
        kubeconfig_path(bed, name).write_text(_kubeconfig(bed, name))
    bed.kubeconfig.touch(mode=0o600)
    bed.kubeconfig.write_text(_kubeconfig(bed, "admin"))


def kubeconfig_path(bed: Bed, name: str) -> Path:
    """Where a component finds its kubeconfig."""
    return bed.certs / f"{name}.kubeconfig"


def _make_authority(bed: Bed, name: str) -> None:
    files = ["-keyout", bed.certs / f"{name}.key", "-out", bed.certs / f"{name}.crt"]
    run([*_NEW, *files, "-subj", f"/CN=sandman-test-cluster-{name}"])


def _sign(bed: Bed, subject: Subject) -> None:
    """One openssl call makes key and certificate together (-CA with -x509, openssl 3)."""
    path, authority = bed.certs / subject.file, bed.certs / subject.authority
    files = ["-keyout", f"{path}.key", "-out", f"{path}.crt"]
    signer = ["-CA", f"{authority}.crt", "-CAkey", f"{authority}.key"]
    usage = "serverAuth" if subject.names else "clientAuth"
    extensions = [f"extendedKeyUsage={usage}", "basicConstraints=critical,CA:FALSE"]
    if subject.names:
        extensions.append(f"subjectAltName={subject.names}")
    additions = [word for extension in extensions for word in ("-addext", extension)]
    run([*_NEW, *files, *signer, "-subj", subject.line, *additions])


def _kubeconfig(bed: Bed, name: str) -> str:
    """A kubeconfig is YAML, and JSON is YAML: no library needed."""
    user = {
        "client-certificate": f"{bed.certs / name}.crt",
        "client-key": f"{bed.certs / name}.key",
    }
    value = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "sandman",
                "cluster": {"server": bed.api_url, "certificate-authority": str(bed.ca)},
            }
        ],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": "sandman", "context": {"cluster": "sandman", "user": name}}],
        "current-context": "sandman",
    }
    return json.dumps(value, indent=2)
