"""The command line of each component. Pure: takes the bed, returns what to start and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.cluster.bed import model
from tests.cluster.bed.certificates import kubeconfig_path

if TYPE_CHECKING:
    from tests.cluster.bed.model import Bed


@dataclass(frozen=True, slots=True)
class Component:
    """One long-running process; `health` is the URL that answers 200 once it serves."""

    name: str
    command: list[str]
    health: str | None = None
    patience: float = 10.0  # Seconds to end by itself before it is killed.


# Started in this order, stopped in the reverse one: an API server that outlives its etcd never recovers.
ORDER = (
    "registry",
    "etcd",
    "apiserver",
    "containerd",
    "controller-manager",
    "scheduler",
    "kubelet",
    "kube-proxy",
    "kube-router",
)


def component(bed: Bed, name: str) -> Component:
    """One component of `ORDER` by name."""
    makers = {
        "registry": _registry,
        "etcd": _etcd,
        "apiserver": _apiserver,
        "containerd": _containerd,
        "controller-manager": _controller_manager,
        "scheduler": _scheduler,
        "kubelet": _kubelet,
        "kube-proxy": _kube_proxy,
        "kube-router": _kube_router,
    }
    return makers[name](bed)


def _flags(**values: object) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]


def _registry(bed: Bed) -> Component:
    command = ["/usr/bin/docker-registry", "serve", str(bed.config / "registry.yml")]
    return Component("registry", command, f"http://{bed.registry}/v2/", patience=3.0)


def _etcd(bed: Bed) -> Component:
    client, peer = f"http://127.0.0.1:{bed.ports.etcd}", f"http://127.0.0.1:{bed.ports.etcd_peer}"
    flags = _flags(
        name="default",
        data_dir=bed.state / "etcd",
        listen_client_urls=client,
        advertise_client_urls=client,
        listen_peer_urls=peer,
        initial_advertise_peer_urls=peer,
        initial_cluster=f"default={peer}",
        quota_backend_bytes=8_000_000_000,
        log_level="warn",
    )
    # Nothing here must survive a power cut, and the disk's fsync is most of a write's time.
    return Component(
        "etcd", [str(bed.bin / "etcd"), *flags, "--unsafe-no-fsync"], f"{client}/health"
    )


def _apiserver(bed: Bed) -> Component:
    flags = _flags(
        etcd_servers=f"http://127.0.0.1:{bed.ports.etcd}",
        secure_port=bed.ports.api,
        advertise_address=bed.node_ip,
        service_cluster_ip_range=model.SERVICE_CIDR,
        authorization_mode="Node,RBAC",
        enable_admission_plugins="NodeRestriction,PodSecurity",
        allow_privileged="true",
        enable_aggregator_routing="true",
        max_requests_inflight=2000,
        max_mutating_requests_inflight=1000,
        shutdown_delay_duration="0s",
        **_apiserver_files(bed),
        **_apiserver_proxy(bed),
    )
    command = [str(bed.bin / "kube-apiserver"), *flags]
    # Told to end it waits a minute for open watches; nothing of it is kept, so it need not.
    return Component("apiserver", command, f"{bed.api_url}/readyz", patience=2.0)


def _apiserver_files(bed: Bed) -> dict[str, object]:
    certs = bed.certs
    return {
        "client_ca_file": bed.ca,
        "tls_cert_file": certs / "apiserver.crt",
        "tls_private_key_file": certs / "apiserver.key",
        "kubelet_certificate_authority": bed.ca,
        "kubelet_client_certificate": certs / "apiserver-kubelet.crt",
        "kubelet_client_key": certs / "apiserver-kubelet.key",
        "kubelet_preferred_address_types": "InternalIP",  # The node's name does not resolve.
        "service_account_issuer": "https://kubernetes.default.svc.cluster.local",
        "service_account_key_file": certs / "service-accounts.key",
        "service_account_signing_key_file": certs / "service-accounts.key",
        "audit_policy_file": bed.config / "audit-policy.yml",
        "audit_log_path": bed.audit_log,
        # In megabytes: a scale run must find its first line still there when it counts the writes.
        "audit_log_maxsize": 4000,
    }


def _apiserver_proxy(bed: Bed) -> dict[str, object]:
    """How it shows itself to extension servers; without these, other components log errors forever."""
    return {
        "requestheader_client_ca_file": bed.certs / "front-proxy-ca.crt",
        "requestheader_allowed_names": "front-proxy-client",
        "requestheader_username_headers": "X-Remote-User",
        "requestheader_group_headers": "X-Remote-Group",
        "requestheader_extra_headers_prefix": "X-Remote-Extra-",
        "proxy_client_cert_file": bed.certs / "front-proxy.crt",
        "proxy_client_key_file": bed.certs / "front-proxy.key",
    }


def _containerd(bed: Bed) -> Component:
    return Component(
        "containerd", [str(bed.bin / "containerd"), "--config", str(bed.config / "containerd.toml")]
    )


def _controller_manager(bed: Bed) -> Component:
    kubeconfig = kubeconfig_path(bed, "controller-manager")
    flags = _flags(
        kubeconfig=kubeconfig,
        authentication_kubeconfig=kubeconfig,
        authorization_kubeconfig=kubeconfig,
        bind_address="127.0.0.1",
        secure_port=bed.ports.controller_manager,
        leader_elect="false",
        use_service_account_credentials="true",
        service_account_private_key_file=bed.certs / "service-accounts.key",
        root_ca_file=bed.ca,
        cluster_signing_cert_file=bed.certs / "ca.crt",
        cluster_signing_key_file=bed.certs / "ca.key",
        kube_api_qps=1000,
        kube_api_burst=2000,
        concurrent_replicaset_syncs=20,
    )
    command = [str(bed.bin / "kube-controller-manager"), *flags]
    health = f"https://127.0.0.1:{bed.ports.controller_manager}/healthz"
    return Component("controller-manager", command, health)


def _scheduler(bed: Bed) -> Component:
    kubeconfig = kubeconfig_path(bed, "scheduler")
    flags = _flags(
        config=bed.config / "scheduler.yml",
        authentication_kubeconfig=kubeconfig,
        authorization_kubeconfig=kubeconfig,
        bind_address="127.0.0.1",
        secure_port=bed.ports.scheduler,
    )
    health = f"https://127.0.0.1:{bed.ports.scheduler}/healthz"
    return Component("scheduler", [str(bed.bin / "kube-scheduler"), *flags], health)


def _kubelet(bed: Bed) -> Component:
    flags = _flags(
        config=bed.config / "kubelet.yml",
        kubeconfig=kubeconfig_path(bed, "kubelet"),
        root_dir=bed.state / "kubelet",
        cert_dir=bed.certs,
        hostname_override=bed.node_name,
        node_ip=bed.node_ip,
    )
    return Component(
        "kubelet", [str(bed.bin / "kubelet"), *flags], "http://127.0.0.1:10248/healthz"
    )


def _kube_proxy(bed: Bed) -> Component:
    flags = _flags(
        kubeconfig=kubeconfig_path(bed, "kube-proxy"),
        proxy_mode="iptables",
        cluster_cidr=model.POD_CIDR,
        hostname_override=bed.node_name,
        bind_address="127.0.0.1",
        iptables_localhost_nodeports="true",  # A NodePort must answer on 127.0.0.1.
        iptables_min_sync_period="200ms",
        # Zero leaves the machine's connection tracking limits as they are.
        conntrack_max_per_core=0,
        conntrack_tcp_timeout_established="0s",
        conntrack_tcp_timeout_close_wait="0s",
        oom_score_adj=0,
    )
    return Component(
        "kube-proxy", [str(bed.bin / "kube-proxy"), *flags], "http://127.0.0.1:10256/livez"
    )


def _kube_router(bed: Bed) -> Component:
    flags = _flags(
        kubeconfig=kubeconfig_path(bed, "kube-router"),
        hostname_override=bed.node_name,
        run_firewall="true",  # NetworkPolicy; the rest of its work is kube-proxy's and the bridge plugin's.
        run_router="false",
        run_service_proxy="false",
        run_loadbalancer="false",
        service_cluster_ip_range=model.SERVICE_CIDR,
        service_node_port_range="30000-32767",
        health_port=20244,
        metrics_port=0,
    )
    return Component(
        "kube-router", [str(bed.bin / "kube-router"), *flags], "http://127.0.0.1:20244/healthz"
    )
