"""The control: what the API server itself takes. A bare loop of the claim's patch, and pods made one by one.

No gateway takes part, so that what is above this floor is Sandman's own. Threads, without Locust.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from loadtest import target
from loadtest.histogram import Histogram
from loadtest.session import Session
from loadtest.summary import numbers
from sandman import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from loadtest.target import ApiServer

CONNECTIONS = 16
MOST = 2_000
"""Placeholders that are taken at most; pods made, a tenth of it."""
LIFE_S = 600.0
"""After which what was claimed and not deleted ends by itself."""
RUNNING_S = 60.0
LOOK_S = 0.01
MEDIA_PATCH = "application/json-patch+json"
GATEWAY_ACCOUNT = f"system:serviceaccount:{names.SYSTEM_NAMESPACE}:sandman-gateway"
"""Policies let Sandman's own accounts alone claim: the caller must be allowed to impersonate this one."""


class FloorError(Exception):
    """The API server refused; the text says what."""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and leave nothing."""
    parser = argparse.ArgumentParser(prog="python -m loadtest floor")
    parser.add_argument("--target", required=True, type=Path)
    parser.add_argument("--n", type=int, default=300, help="placeholders that are claimed")
    parser.add_argument("--pods", type=int, default=20, help="pods that are made one by one")
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--namespace", default=names.SANDBOX_NAMESPACE)
    parser.add_argument("--mine", action="append", default=[])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    found = target.read(given.target)
    target.check(found, given.mine)
    if found.api_server is None:
        raise target.TargetError(f"{given.target} has no api_server")
    target.check_host(found.api_server.url, given.mine)
    if not (0 < given.n <= MOST and 0 <= given.pods <= MOST // 10):
        raise target.TargetError(f"--n is 1 to {MOST}, --pods 0 to {MOST // 10}")
    floor = Floor(found.api_server, given.namespace, found.pool)
    told = {}
    for name in ("claims", "pods"):
        is_claims = name == "claims"
        told[name] = (
            floor.claims(given.n, given.connections) if is_claims else floor.pods(given.pods)
        )
        sys.stdout.write(f"{name}: {json.dumps(told[name])}\n")
        sys.stdout.flush()
    if given.out:
        given.out.write_text(json.dumps(told, indent=1) + "\n")
    return 0


class Floor:
    """One API server, and a namespace of sandboxes in it."""

    def __init__(self, server: ApiServer, namespace: str, pool: str | None) -> None:
        self._server, self._trust, self._pool = server, server.trust(), pool
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._deployments = f"/apis/apps/v1/namespaces/{namespace}/deployments"

    def _session(self, *, is_gateway: bool) -> Session:
        headers = self._server.headers()
        if is_gateway:
            headers["Impersonate-User"] = GATEWAY_ACCOUNT
        return Session(self._server.url, self._trust, headers)

    def claims(self, count: int, connections: int) -> dict[str, Any]:
        """Claim so many free placeholders as a gateway does, and delete them."""
        free = self._free(count)
        if len(free) < count:
            raise FloorError(f"{len(free)} placeholders are free, not {count}")
        whole, lock, source = Histogram(), threading.Lock(), iter(free)
        # Nobody else's: what refused us was another's by then.
        mine: list[dict[str, Any]] = []

        def loop(session: Session) -> int:
            refused = 0
            while True:
                with lock:
                    if (pod := next(source, None)) is None:
                        return refused
                began = time.perf_counter()
                status = self._claim(session, pod)
                took = (time.perf_counter() - began) * 1e3
                with lock:
                    if status == 200:
                        mine.append(pod)
                        whole.add(took)
                    refused += status != 200

        sessions = [self._session(is_gateway=True) for _ in range(connections)]
        try:
            for session in sessions:
                session.call("GET", "/version")
            began = time.perf_counter()
            with ThreadPoolExecutor(connections) as threads:
                refused = sum(threads.map(loop, sessions))
            seconds = time.perf_counter() - began
        finally:
            for pod in mine:
                self._delete(sessions[0], pod["metadata"]["name"], pod["metadata"]["uid"])
        rate = round(len(mine) / seconds, 1)
        return {**numbers(whole), "refused": refused, "connections": connections, "per_s": rate}

    def pods(self, count: int) -> dict[str, Any]:
        """Make so many pods of the pool's template, each when the one before runs, and delete them."""
        session, whole = self._session(is_gateway=False), Histogram()
        if not count:
            return numbers(whole)
        template = self._template(session)
        for number in range(count):
            name = f"load-floor-{time.time_ns():x}-{number}"
            began = time.perf_counter()
            pod = {"metadata": {"name": name}, "spec": template}
            made = _checked(session, "POST", self._path, pod)
            try:
                self._until_running(session, name)
                whole.add((time.perf_counter() - began) * 1e3)
            finally:
                self._delete(session, name, made["metadata"]["uid"])
        return numbers(whole)

    def _free(self, count: int) -> list[dict[str, Any]]:
        labels = {names.LABEL_STATE: names.STATE_FREE, names.LABEL_POOL: self._pool}
        selector = ",".join(f"{key}={value}" for key, value in labels.items() if value)
        path = f"{self._path}?labelSelector={quote(selector, safe='')}"
        listed = _checked(self._session(is_gateway=False), "GET", path)["items"]
        running = [
            pod
            for pod in listed
            if pod.get("status", {}).get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]
        return running[:count]

    def _claim(self, session: Session, pod: Mapping[str, Any]) -> int:
        body = json.dumps(claim(pod, time.time())).encode()
        path = f"{self._path}/{pod['metadata']['name']}"
        return session.call("PATCH", path, body=body, headers={"Content-Type": MEDIA_PATCH}).status

    def _template(self, session: Session) -> dict[str, Any]:
        listed = _checked(session, "GET", self._deployments)["items"]
        for one in listed:
            label = one["metadata"].get("labels", {}).get(names.LABEL_POOL)
            if label is not None and self._pool in {None, label}:
                spec: dict[str, Any] = one["spec"]["template"]["spec"]
                return spec
        raise FloorError(f"there is no pool {self._pool}")

    def _until_running(self, session: Session, name: str) -> None:
        until = time.monotonic() + RUNNING_S
        while time.monotonic() < until:
            status = _checked(session, "GET", f"{self._path}/{name}").get("status", {})
            if status.get("phase") == "Running":
                return
            time.sleep(LOOK_S)
        raise FloorError(f"{name} did not run within {RUNNING_S:g} s")

    def _delete(self, session: Session, name: str, uid: str) -> None:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        session.call("DELETE", f"{self._path}/{name}", body=body)


def claim(pod: Mapping[str, Any], now: float) -> list[dict[str, Any]]:
    """The gateway's own patch for a warm claim, operation by operation (a test compares them)."""
    state = "/metadata/labels/" + escape(names.LABEL_STATE)
    labels = {names.LABEL_TENANT: "floor", names.LABEL_TIER: "warm", names.LABEL_NETWORK: "none"}
    lease = {"expires_at": round(now + LIFE_S, 3), "max_s": LIFE_S, "start_s": 0.0}
    annotations = {
        names.ANNOTATION_CLAIM: json.dumps({"id": "floor"}),
        names.ANNOTATION_LEASE: json.dumps(lease),
        names.ANNOTATION_REQUEST: json.dumps({"pool": "root"}),
        names.ANNOTATION_SAFE_TO_EVICT: "false",
    }
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod["metadata"]["uid"]},
        {"op": "test", "path": state, "value": names.STATE_FREE},
        {"op": "test", "path": "/metadata/deletionTimestamp", "value": None},
        {"op": "remove", "path": "/metadata/ownerReferences"},
        {"op": "replace", "path": state, "value": names.STATE_LEASED},
        {"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 2 * int(LIFE_S)},
        *_added("/metadata/labels/", labels),
        *_added("/metadata/annotations/", annotations),
        {"op": "add", "path": "/metadata/managedFields", "value": [{}]},
    ]


def _added(path: str, values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"op": "add", "path": path + escape(key), "value": text} for key, text in values.items()
    ]


def escape(key: str) -> str:
    """A key as a JSON pointer has it."""
    return key.replace("~", "~0").replace("/", "~1")


def _checked(session: Session, method: str, path: str, body: object = None) -> dict[str, Any]:
    answer = session.call(method, path, body=body)
    if not 200 <= answer.status < 300:
        raise FloorError(f"{method} {path}: {answer.status} {answer.body[:300]!r}")
    return answer.json()
