"""Somebody else's injecting webhook: adds a sidecar in front, a variable to each container, nothing of ours."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandman.service import pki
from tests.cluster.bed import kubectl, reference

if TYPE_CHECKING:
    from tests.cluster.bed import Bed

SIDECAR = "other-sidecar"


def patch(pod: dict[str, Any], image: str) -> list[dict[str, Any]]:
    """What it does to a pod; asked again it finds its own work."""
    containers = pod["spec"]["containers"]
    steps: list[dict[str, Any]] = []
    variable = {"name": "OTHER", "value": "1"}
    for index, one in enumerate(containers):
        if one["name"] == SIDECAR or variable in (one.get("env") or []):
            continue
        path = f"/spec/containers/{index}/env"
        add = (
            {"path": f"{path}/-", "value": variable}
            if one.get("env")
            else {"path": path, "value": [variable]}
        )
        steps.append({"op": "add", **add})
    if all(one["name"] != SIDECAR for one in containers):
        sidecar = {
            "name": SIDECAR, "image": image, "command": ["sleep", "600"],
            "securityContext": containers[0].get("securityContext", {}),
        }  # fmt: skip
        steps.append({"op": "add", "path": "/spec/containers/0", "value": sidecar})
    return steps


class Injector:
    """Serves on this machine and is registered by URL, under a name that says when it is asked."""

    def __init__(self, bed: Bed, name: str, namespace: str) -> None:
        self._bed = bed
        self._name = name
        self._namespace = namespace

    def __enter__(self) -> Injector:
        image = reference(self._bed, "debian")

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                request = body["request"]
                steps = base64.b64encode(
                    json.dumps(patch(request["object"], image)).encode()
                ).decode()
                response = {
                    "uid": request["uid"],
                    "allowed": True,
                    "patchType": "JSONPatch",
                    "patch": steps,
                }
                answer = json.dumps({**body, "request": None, "response": response}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_arguments: object) -> None:
                pass

        now = datetime.now(UTC)
        authority = pki.make_ca("other", now, 1)
        leaf = pki.issue(authority, ("localhost",), ("127.0.0.1",), now, 1)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as directory:
            certificate, key = Path(directory) / "crt", Path(directory) / "key"
            certificate.write_bytes(leaf.certificate)
            key.write_bytes(leaf.key)
            context.load_cert_chain(certificate, key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self._register(authority.certificate)
        return self

    def _register(self, bundle: bytes) -> None:
        url = f"https://127.0.0.1:{self._server.server_port}/mutate"
        hook = {
            "name": f"{self._name}.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": url, "caBundle": base64.b64encode(bundle).decode()},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self._namespace}},
            "reinvocationPolicy": "IfNeeded", "failurePolicy": "Fail", "timeoutSeconds": 5,
        }  # fmt: skip
        document = {
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": self._name}, "webhooks": [hook],
        }  # fmt: skip
        kubectl(self._bed, "create", "-f", "-", input=json.dumps(document))

    def __exit__(self, *_exc: object) -> None:
        kubectl(
            self._bed, "delete", "mutatingwebhookconfiguration", self._name, "--ignore-not-found"
        )
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
