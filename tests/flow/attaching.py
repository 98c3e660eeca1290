"""A namespace of users with a labelled workload, and a gateway with callers who may attach to it or not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from gateway import access, detaching, tokens
from gateway.model import Identity
from gateway.routes import parse
from sandman import grants, names
from tests.fakes.objects import secret
from tests.flow.test_whole import KEY, Bed, encoded, until
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

SHOP = "shop"
ALICE = Identity("alice", ("dev",))


class Web:
    """A pod of the user's: a command with the daemon before it, as the kubelet runs it."""

    def __init__(self, nonce: str) -> None:
        self.port = free_port()
        token = grants.daemon_token(KEY, SHOP, grants.container_nonce(nonce, "app"))
        self._env = {
            **os.environ,
            names.ENV_PORT: str(self.port),
            names.ENV_TOKEN_SHA256: grants.token_digest(token),
        }
        self.process = self._start()

    def _start(self) -> subprocess.Popen:
        command = [sys.executable, "-m", "daemon", "serve", "--", "sleep", "600"]
        process = subprocess.Popen(command, env=self._env, stderr=subprocess.DEVNULL)
        for _ in range(400):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return process
            time.sleep(0.025)
        raise AssertionError("the daemon does not listen")

    def restart(self) -> None:
        self.stop()
        self.process = self._start()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


def pod(name: str, port: int, *, nonce: str = "n-web", restarts: int = 0, **labels) -> dict:
    """As the webhook and the kubelet leave it."""
    annotations = {
        names.ANNOTATION_NONCE: nonce, names.ANNOTATION_KEY_ID: "k1", names.ANNOTATION_INJECTED: "1",
        names.ANNOTATION_CONTAINERS: json.dumps({"app": port}),
    }  # fmt: skip
    status = {
        "phase": "Running", "podIP": "127.0.0.1",
        "containerStatuses": [
            {"name": "app", "imageID": "web@sha256:1", "restartCount": restarts, "state": {"running": {}}}
        ],
    }  # fmt: skip
    return {
        "metadata": {
            "name": name, "namespace": SHOP, "annotations": annotations,
            "labels": {names.LABEL_INJECT: names.INJECT_WORKLOAD, **labels},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "app", "image": "web:1"}]}, "status": status,
    }  # fmt: skip


class Shop:
    """A cluster with one workload, a gateway, and callers whom the cluster knows or not."""

    def __init__(self, one, bed: Bed, web: Web, others: dict[str, str]) -> None:
        self.client, self.gateway, self.stop = one.client, one.gateway, one.stop
        self.server, self.web, self.others = bed.server, web, others

    def as_(self, who: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.others[who]}"}

    async def attach(self, *, who: str | None = None, key: str | None = None, **body):
        headers = self.as_(who) if who else {}
        headers |= {names.HEADER_IDEMPOTENCY_KEY: key} if key else {}
        given = {"namespace": SHOP, **({} if "selector" in body else {"pod": "web-1"}), **body}
        return await self.client.post("/v1/sandboxes/attach", json=given, headers=headers)

    async def attached(self, **body) -> dict:
        answer = await self.attach(**body)
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def sh(self, box: dict, script: str) -> dict:
        answer = await self.client.post(f"/v1/sandboxes/{box['id']}/exec", json={"shell": script})
        return answer.json()

    def leases(self) -> list[str]:
        found = [one["metadata"]["name"] for one in self.server.all("leases")]
        return [name for name in found if name.startswith(names.ATTACHMENT_PREFIX)]

    def writes_to_pods(self) -> list:
        return [one for one in self.server.writes if one[1] == "pods"]


@contextlib.asynccontextmanager
async def opened(web: Web, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    """A gateway that may attach to what is in a namespace of users', which has one pod with this daemon."""
    monkeypatch.setattr(detaching, "EVERY_S", 0.1)
    monkeypatch.setattr(parse, "SPAN_LEAST_S", 0.5)
    monkeypatch.setattr(access, "VERDICT_S", 0.1)
    bed = Bed(daemon=web)
    bed.server = bed.cluster_of(web)
    bed.give_keys()
    others = {}
    entries = {"acme": tokens.api_key_entry(bed.token, "acme", identity=ALICE)}
    for tenant, identity in (("zeta", Identity("zoe")), ("plain", None), ("rival", ALICE)):
        others[tenant] = tokens.make_api_key(tenant)
        entries[tenant] = tokens.api_key_entry(others[tenant], tenant, identity=identity)
    bed.server.put("secrets", secret(names.API_KEYS_SECRET, **encoded(entries)))
    bed.server.put("pods", pod("web-1", web.port, app="web"))
    bed.server.may = lambda spec: (
        spec["user"] == "alice" and "system:authenticated" in spec["groups"]
    )
    async with bed.server.links(1) as [link], bed.replica(link, workload_namespaces=(SHOP,)) as one:
        await until(lambda: not one.gateway.not_ready())
        await until(one.gateway.attached.attachable)
        yield Shop(one, bed, web, others)
