"""Objects, paths, errors, configuration: the parts of the Kubernetes client that need no server."""

from __future__ import annotations

import json
import ssl
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
import trustme
import yaml

from sandman.service import kube
from sandman.service.kube import config, errors, objects

# --- objects -------------------------------------------------------------------------------------

POD = """{"metadata":{"name":"p","namespace":"n","uid":"u","resourceVersion":"12","generateName":"p-",
"creationTimestamp":"2026-11-29T12:00:00Z","deletionTimestamp":null,"labels":{"a":"b"},
"annotations":null,"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r",
"uid":"ru","controller":true,"blockOwnerDeletion":true}],"managedFields":[{}]},
"spec":{"nodeName":"node","restartPolicy":"Never","activeDeadlineSeconds":60,"containers":[
{"name":"main","image":"i:1","workingDir":"/w","resources":{"requests":{"cpu":"100m","x.y/z":1}}}],
"volumes":[{"name":"v"}]},
"status":{"phase":"Running","podIP":"10.1.2.3","hostIP":"10.0.0.1","qosClass":"Burstable",
"startTime":"2026-11-29T12:00:01Z","conditions":[{"type":"Ready","status":"True"}],
"containerStatuses":[{"name":"main","image":"i:1","imageID":"sha256:1","containerID":"c://1",
"ready":true,"restartCount":2,"state":{"running":{"startedAt":"2026-11-29T12:00:02Z"}},
"lastState":{"terminated":{"exitCode":137,"reason":"OOMKilled","signal":0}}}]}}"""


def test_a_pod():
    pod = msgspec.json.decode(POD, type=kube.Pod)
    assert pod.metadata.creation_timestamp == datetime(2026, 11, 29, 12, tzinfo=UTC)
    assert pod.metadata.owner_references[0].block_owner_deletion
    assert (pod.metadata.label("a"), pod.metadata.label("z", "-")) == ("b", "-")
    assert (pod.metadata.annotation("a"), pod.metadata.generate_name) == ("", "p-")
    assert pod.spec.containers[0].resources.requests == {"cpu": "100m", "x.y/z": 1}
    assert (pod.status.pod_ip, pod.status.host_ip, pod.is_ready) == ("10.1.2.3", "10.0.0.1", True)
    [status] = pod.status.container_statuses
    assert (status.image_id, status.container_id, status.restart_count) == ("sha256:1", "c://1", 2)
    assert status.state.running.started_at == datetime(2026, 11, 29, 12, 0, 2, tzinfo=UTC)
    assert status.last_state.terminated.reason == "OOMKilled"


def test_a_node_and_its_images():
    node = msgspec.json.decode(
        """{"metadata":{"name":"n"},"spec":{"unschedulable":true,"taints":[{"key":"k","effect":"NoSchedule"}]},
        "status":{"images":[{"names":["a@sha256:1","a:1"],"sizeBytes":5},{"names":null}],
        "conditions":[{"type":"Ready","status":"Unknown"}],"addresses":[{"type":"InternalIP","address":"1.2.3.4"}],
        "nodeInfo":{"containerRuntimeVersion":"containerd://2.2.9"},"allocatable":{"cpu":"2"}}}""",
        type=kube.Node,
    )
    assert node.spec.unschedulable
    assert not node.is_ready
    assert node.status.images[0].names == ["a@sha256:1", "a:1"]
    assert node.status.node_info.container_runtime_version == "containerd://2.2.9"


def test_a_secret_is_bytes_and_does_not_show_them():
    secret = msgspec.json.decode(
        '{"metadata":{"name":"s"},"data":{"k":"aGVsbG8="}}', type=kube.Secret
    )
    assert secret.data == {"k": b"hello"}
    assert "hello" not in repr(secret)
    assert "aGVs" not in repr(secret)
    assert json.loads(msgspec.json.encode(secret))["data"] == {"k": "aGVsbG8="}


def test_defaults_are_not_written():
    assert msgspec.json.encode(kube.Pod()) == b"{}"
    lease = kube.Lease(spec=kube.LeaseSpec(holder_identity="h", lease_transitions=0))
    assert json.loads(msgspec.json.encode(lease)) == {
        "spec": {"holderIdentity": "h", "leaseTransitions": 0}
    }


def test_a_deployment_keeps_its_template_raw():
    body = '{"metadata":{"name":"d"},"spec":{"replicas":3,"template":{"spec":{"x":[1]}}},"status":{"readyReplicas":2}}'
    deployment = msgspec.json.decode(body, type=kube.Deployment)
    assert deployment.spec.template == {"spec": {"x": [1]}}
    assert deployment.status.ready_replicas == 2


def test_micro_time_always_has_six_digits():
    assert (
        kube.micro_time(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02T03:04:05.000000Z"
    )
    east = timezone(timedelta(hours=2))
    assert kube.micro_time(datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=east)) == (
        "2026-01-02T01:04:05.000006Z"
    )


# --- paths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("resource", "name", "options", "path"),
    [
        (kube.PODS, None, {}, "/api/v1/pods"),
        (kube.PODS, None, {"namespace": "n"}, "/api/v1/namespaces/n/pods"),
        (kube.PODS, "p", {"namespace": "n", "subresource": "resize"},
         "/api/v1/namespaces/n/pods/p/resize"),
        (kube.NODES, "a/b ?", {}, "/api/v1/nodes/a%2Fb%20%3F"),
        (kube.DEPLOYMENTS, "d", {"namespace": "n", "subresource": "scale"},
         "/apis/apps/v1/namespaces/n/deployments/d/scale"),
        (kube.LEASES, "l", {"namespace": "n"}, "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"),
        (kube.MUTATING_WEBHOOKS, "m", {},
         "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/m"),
    ],
)  # fmt: skip
def test_paths(resource, name, options, path):
    assert resource.path(name, **options) == path


@pytest.mark.parametrize(
    ("resource", "name", "namespace"),
    [(kube.NODES, "n", "x"), (kube.PODS, "p", None), (kube.PODS, "", "x")],
)
def test_paths_that_would_mean_something_else(resource, name, namespace):
    with pytest.raises(ValueError, match=r"namespace|empty"):
        resource.path(name, namespace=namespace)


# --- errors --------------------------------------------------------------------------------------


def test_the_servers_wish_to_wait_is_found_in_header_and_body():
    body = b'{"kind":"Status","reason":"TooManyRequests","details":{"retryAfterSeconds":4}}'
    assert errors.from_answer(429, body).retry_after == 4
    assert errors.from_answer(429, body, "7").retry_after == 7
    assert errors.from_answer(429, b"", "Wed, 21 Oct").retry_after is None
    assert errors.parse_retry_after("-1") is None
    assert errors.parse_retry_after("9" * 400) == errors.MAX_RETRY_AFTER_S


def test_errors_read_well():
    assert str(errors.from_answer(404, b'{"reason":"NotFound","message":"no p"}')) == (
        "404 NotFound: no p"
    )
    assert str(kube.UnavailableError("cut")) == "UnavailableError: cut"
    assert str(errors.from_answer(418, b"")) == "418: HTTP status 418"


def test_an_error_in_a_watch_has_its_code_in_the_object():
    status = objects.Status(code=410, reason="Expired", message="too old")
    assert isinstance(errors.from_status(status), kube.GoneError)


# --- configuration -------------------------------------------------------------------------------


@pytest.fixture
def account(tmp_path):
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("sandman-system")
    return tmp_path


@pytest.mark.parametrize(
    ("host", "url"), [("10.0.0.1", "https://10.0.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")]
)
def test_inside_of_a_cluster(account, host, url):
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"}
    target = config.load(environ=environ, account=account)
    assert (target.base_url, target.namespace, target.read_token()) == (
        url, "sandman-system", "first",
    )  # fmt: skip
    assert target.ssl.verify_mode is ssl.CERT_REQUIRED
    (account / "token").write_text("second")
    assert target.read_token() == "second"
    assert "first" not in repr(target)
    (account / "namespace").unlink()
    assert config.load(environ=environ, account=account).namespace == "default"


def kubeconfig(path, **cluster):
    ca = trustme.CA()
    leaf = ca.issue_cert("me")
    ca.cert_pem.write_to_path(str(path / "ca.pem"))
    leaf.cert_chain_pems[0].write_to_path(str(path / "me.pem"))
    leaf.private_key_pem.write_to_path(str(path / "me.key"))
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [
            {"name": "c", "cluster": {"server": "https://[::1]:6443/", "certificate-authority": "ca.pem"}},
            {"name": "plain", "cluster": {"server": "http://127.0.0.1:8001", **cluster}},
            {"name": "loose", "cluster": {
                "server": "https://h:1", "insecure-skip-tls-verify": True, "tls-server-name": "name"}},
        ],
        "users": [
            {"name": "cert", "user": {"client-certificate": "me.pem", "client-key": "me.key"}},
            {"name": "token", "user": {"token": "abc"}},
        ],
        "contexts": [
            {"name": "one", "context": {"cluster": "c", "user": "cert", "namespace": "ns"}},
            {"name": "two", "context": {"cluster": "plain", "user": "token"}},
            {"name": "three", "context": {"cluster": "loose", "user": "token"}},
        ],
    }  # fmt: skip
    file = path / "config"
    file.write_text(yaml.safe_dump(document))
    return str(file)


def test_a_kubeconfig(tmp_path):
    file = kubeconfig(tmp_path)
    one = config.load(kubeconfig=file)
    assert (one.base_url, one.namespace, one.read_token()) == ("https://[::1]:6443", "ns", "")
    assert one.ssl.verify_mode is ssl.CERT_REQUIRED
    two = config.load("two", kubeconfig=file)
    assert (two.base_url, two.namespace, two.ssl) == ("http://127.0.0.1:8001", "default", None)
    assert two.read_token() == "abc"
    three = config.load("three", kubeconfig=file)
    assert three.ssl.verify_mode is ssl.CERT_NONE
    assert three.server_name == "name"


def test_a_kubeconfig_that_is_not_there(tmp_path):
    with pytest.raises(kube.ConfigurationError):
        config.load(kubeconfig=str(tmp_path / "none"))
    with pytest.raises(kube.ConfigurationError):
        config.load("four", kubeconfig=kubeconfig(tmp_path))


def test_outside_of_a_cluster_the_account_is_not_looked_at(tmp_path, monkeypatch):
    file = kubeconfig(tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    target = config.load(environ=environ, account=tmp_path / "none", kubeconfig=file)
    assert target.namespace == "ns"


def test_a_token_is_read_once_a_minute():
    now = 0.0
    reads = []

    def read() -> str:
        reads.append(now)
        if now == 60:
            raise OSError("gone for a moment")
        return f"t{len(reads)}"

    cache = config.TokenCache(read, lambda: now)
    assert [cache.current(), cache.current()] == ["t1", "t1"]
    now = 59.9
    assert cache.current() == "t1"
    now = 60
    assert cache.current() == "t1"  # the last good one
    now = 120
    assert cache.current() == "t3"
    cache.forget()
    assert cache.current() == "t4"


def test_a_first_token_that_cannot_be_read_is_an_error():
    def read() -> str:
        raise OSError("no token")

    with pytest.raises(OSError, match="no token"):
        config.TokenCache(read, lambda: 0.0).current()
