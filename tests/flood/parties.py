"""The gateway, the webhook and a daemon as processes of their own, as their programs start them; what is behind the
first two is an API server in memory, and the gateway's one sandbox is in the daemon."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import ssl
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx

from gateway import tokens
from sandman import grants, names
from sandman.service import keyring
from tests.fakes.objects import deployment, node, placeholder, secret
from tests.flood.kinds import Aim
from tests.ports import free_port
from tests.unit.daemon import harness
from tests.unit.webhook.test_review import body as review

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KEY = b"k" * 32
START_S = 60.0
"""Seconds for a program to serve, on a busy machine."""

PATIENCE_S = 60.0
"""Seconds that an honest caller waits for an answer, on a machine whose two cores serve a flood and much else; how long
it took is told."""


class Honest(NamedTuple):
    """A call that goes on all the while, and what its answer has."""

    method: str
    path: str
    body: bytes | None
    holds: str


class Party(NamedTuple):
    """One of the three."""

    name: str
    pid: int
    port: int
    trust: ssl.SSLContext | None
    aim: Aim
    token: str
    """Of the honest caller."""
    honest: tuple[Honest, ...]
    log: Callable[[], list[str]]
    """Lines that it has logged."""
    lists: tuple[str, ...] = ()
    """Paths that list what there is, which must be as much after as before."""

    @property
    def url(self) -> str:
        return f"{'https' if self.trust else 'http'}://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        """The honest caller's."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return httpx.Client(
            base_url=self.url,
            headers=headers,
            verify=self.trust or False,
            timeout=PATIENCE_S,
            trust_env=False,
        )


@contextlib.contextmanager
def started(folder: Path) -> Iterator[list[Party]]:
    """All three, serving."""
    token = grants.daemon_token(KEY, names.SANDBOX_NAMESPACE, "nonce-1")
    digest = {names.ENV_TOKEN_SHA256: grants.token_digest(token)}
    with contextlib.ExitStack() as stack:
        daemon = harness.start(env=digest)
        stack.callback(daemon.stop)
        keys = {name: tokens.make_api_key(name) for name in ("honest", "flood")}
        api = stack.enter_context(_api_server(_objects(keys)))
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(json.dumps(_kubeconfig(api)))
        gateway = stack.enter_context(_gateway(folder, kubeconfig, api, daemon.port, keys))
        webhook = stack.enter_context(_webhook(folder, kubeconfig, api))
        yield [gateway, webhook, _daemon(daemon, token)]


# --- behind them ---------------------------------------------------------------------------------


def _objects(keys: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    ring = keyring.fresh("k1", KEY, b"s" * 32).to_data()
    entries = {name: tokens.api_key_entry(token, "acme") for name, token in keys.items()}
    return {
        "nodes": [node()],
        "deployments": [deployment()],
        "pods": [placeholder("p1")],
        "secrets": [
            secret(names.GATEWAY_TLS_SECRET),
            secret(names.WEBHOOK_TLS_SECRET),
            secret(names.KEYS_SECRET, **_encoded(ring)),
            secret(names.API_KEYS_SECRET, **_encoded(entries)),
        ],
        "mutatingwebhookconfigurations": [
            {
                "metadata": {"name": names.WEBHOOK_CONFIGURATION},
                "webhooks": [{"name": "pods.sandman.dev", "clientConfig": {"caBundle": ""}}],
            }
        ],
    }


def _encoded(data: Any) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in data.items()}


@contextlib.contextmanager
def _api_server(objects: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    command = [sys.executable, "-m", "tests.flood.api_server"]
    with subprocess.Popen(
        command, cwd=harness.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(objects))
            process.stdin.close()
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "flood",
        "clusters": [{"name": "flood", "cluster": {"server": url}}],
        "users": [{"name": "flood", "user": {}}],
        "contexts": [{"name": "flood", "context": {"cluster": "flood", "user": "flood"}}],
    }


# --- the three -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _program(name: str, folder: Path, environment: dict[str, str]) -> Iterator[tuple[int, Path]]:
    """It runs; its process id, and where it writes its log. It must end well."""
    log = folder / f"{name}.log"
    clean = {key: value for key, value in os.environ.items() if not key.startswith("SANDMAN_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", name], cwd=harness.ROOT, env=clean | environment,
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        yield process.pid, log
        assert process.poll() is None, f"the {name} ended: {log.read_text()[-2000:]}"
    finally:
        process.terminate()
        code = process.wait(30)
    assert code == 0, log.read_text()[-2000:]


@contextlib.contextmanager
def _gateway(
    folder: Path, kubeconfig: Path, api: str, daemon_port: int, keys: dict[str, str]
) -> Iterator[Party]:
    port = free_port()
    settings = {
        "BIND": "127.0.0.1", "PORT": str(port), "POD_NAME": "gw-1", "POD_IP": "127.0.0.1",
        "DAEMON_PORT": str(daemon_port), "LAME_DUCK_S": "0", "GRACE_S": "2",
    }  # fmt: skip
    environment = {f"SANDMAN_GATEWAY_{name}": value for name, value in settings.items()}
    environment["KUBECONFIG"] = str(kubeconfig)
    with _program("gateway", folder, environment) as (pid, log):
        trust = _trust(
            lambda: _entry(api, names.GATEWAY_TLS_SECRET, "ca.crt"),
            f"https://127.0.0.1:{port}",
            log,
        )
        base = Party(
            "gateway",
            pid,
            port,
            trust,
            _GATEWAY_AIM,
            keys["honest"],
            (),
            lambda: log.read_text(errors="replace").splitlines(),
        )
        with base.client() as client:
            answer = client.post("/v1/sandboxes", json={"wait_s": 30})
            assert answer.status_code == 201, answer.text
            box = f"/v1/sandboxes/{answer.json()['id']}"
        echo = json.dumps({"argv": ["echo", "there"]}).encode()
        aim = _GATEWAY_AIM._replace(
            token=keys["flood"],
            posts=(*_GATEWAY_AIM.posts, (f"{box}/exec", {"argv": ["true"]})),
            paths=(*_GATEWAY_AIM.paths, box, f"{box}/processes/none", f"{box}/files"),
            sockets=(f"{box}/processes/none/terminal", f"{box}/ports/1/x"),
        )
        yield base._replace(
            aim=aim,
            honest=(
                Honest("POST", f"{box}/exec", echo, "there"),
                Honest("GET", "/v1/sandboxes", None, box.rpartition("/")[2]),
            ),
            lists=("/v1/sandboxes", "/v1/reservations"),
        )


@contextlib.contextmanager
def _webhook(folder: Path, kubeconfig: Path, api: str) -> Iterator[Party]:
    port = free_port()
    settings = {
        "HOST": "127.0.0.1", "PORT": str(port), "ADDRESSES": "127.0.0.1", "DRAIN_S": "0",
        "DAEMON_IMAGE": "registry.example/daemon:1",
    }  # fmt: skip
    environment = {f"SANDMAN_WEBHOOK_{name}": value for name, value in settings.items()}
    environment["KUBECONFIG"] = str(kubeconfig)
    with _program("webhook", folder, environment) as (pid, log):
        trust = _trust(lambda: _bundle(api), f"https://127.0.0.1:{port}", log)
        request = json.loads(review())
        posts = (("/mutate", request),)
        aim = Aim("", posts, ("/mutate", "/healthz", "/metrics"), is_strict=False)
        honest = Honest("POST", "/mutate", review(), '"JSONPatch"')
        yield Party(
            "webhook",
            pid,
            port,
            trust,
            aim,
            "",
            (honest,),
            lambda: log.read_text(errors="replace").splitlines(),
        )


def _daemon(daemon: harness.Daemon, token: str) -> Party:
    posts: tuple[tuple[str, dict[str, object]], ...] = (
        ("/v1/exec", {"argv": ["true"], "timeout_s": 1, "env": {}}),
        ("/v1/processes", {"argv": ["true"], "exec_id": "a"}),
        ("/v1/sessions", {"name": "a", "rows": 1}),
        ("/v1/files/move", {"from": "/nowhere/a", "to": "/nowhere/b"}),
        ("/v1/claim", {"claim_id": "x", "lease": {}}),
        ("/v1/probe", {"targets": []}),
    )
    paths = ("/v1/info", "/v1/processes/none", "/v1/sessions", "/healthz", "/v1/files/stat")
    echo = json.dumps({"argv": ["echo", "there"]}).encode()
    return Party(
        "daemon", daemon.pid, daemon.port, None,
        Aim(token, posts, paths, ("/v1/processes/none/terminal",), is_tls=False), token,
        (Honest("POST", "/v1/exec", echo, "there"), Honest("GET", "/v1/info", None, '"boot_id"')), lambda: daemon.lines,
        ("/v1/sessions",),
    )  # fmt: skip


_GATEWAY_AIM = Aim(
    "",
    (
        ("/v1/sandboxes", {"image": "registry.example/x:1", "wait_s": 0, "count": 1, "labels": {}}),
        ("/v1/reservations", {"pool": "root", "count": 1}),
        ("/v1/sandboxes/attach", {"namespace": "x", "pod": "y"}),
        ("/v1/runs/none/heartbeat", {"ttl_s": 60}),
        ("/v1/sandboxes/none/tokens", {"ttl_s": 60}),
        ("/v1/sandboxes/none/exec", {"argv": ["true"]}),
    ),
    (
        "/v1/sandboxes",
        "/v1/pools",
        "/v1/overview",
        "/v1/networks",
        "/v1/reservations",
        "/v1/requests/none",
        "/healthz",
    ),
)


# --- reaching them -------------------------------------------------------------------------------


def _get(api: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(api + path, timeout=10, trust_env=False).json()
    return found


def _entry(api: str, name: str, key: str) -> bytes:
    found = _get(api, f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/secrets/{name}")
    return base64.b64decode((found.get("data") or {}).get(key, ""))


def _bundle(api: str) -> bytes:
    kind = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    [hook] = _get(api, f"{kind}/{names.WEBHOOK_CONFIGURATION}")["webhooks"]
    return base64.b64decode(hook["clientConfig"]["caBundle"])


def _trust(authority: Callable[[], bytes], url: str, log: Path) -> ssl.SSLContext:
    """What verifies it, once it is ready."""
    deadline = time.monotonic() + START_S
    while True:
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        with contextlib.suppress(httpx.TransportError):
            if pem := authority():
                trust = ssl.create_default_context(cadata=pem.decode())
                answer = httpx.get(f"{url}/readyz", verify=trust, timeout=5, trust_env=False)
                if answer.status_code == 200:
                    return trust
        time.sleep(0.1)
