"""An API server in memory behind real sockets, for the real client: it keeps state and enforces what
callers rely on.

A JSON patch is carried out whole or answered 422; a uid or resourceVersion that is not the present one
is 409; a name is made once; a quota is 403; a watch tells everything after a version, and 410 when that
is too old. Each client connects through a `Link` of its own, which a test can cut.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import math
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from sandman.service import kube
from tests.unit.service.fake_api import Answer, FakeApi, Seen, status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

Object = dict[str, Any]
KINDS = {
    "pods": "Pod", "nodes": "Node", "secrets": "Secret", "events": "Event",
    "deployments": "Deployment", "leases": "Lease", "jobs": "Job", "configmaps": "ConfigMap",
    "networkpolicies": "NetworkPolicy", "mutatingwebhookconfigurations": "MutatingWebhookConfiguration",
}  # fmt: skip


class RefusedError(Exception):
    """A call that is answered with an error."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(str(answer.body))
        self.answer = answer


def refuse(code: int, reason: str, message: str = "", **details: object) -> RefusedError:
    return RefusedError(status(code, reason, message, **details))


class Link:
    """One client's way to the server."""

    def __init__(self, server: ApiServer, nursery: trio.Nursery) -> None:
        self._server = server
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self._port = 0

    @property
    def target(self) -> kube.Target:
        return kube.Target(f"http://127.0.0.1:{self._port}")

    async def open(self) -> None:
        """Listen, on the same port as before when it was cut."""
        self._scope = trio.CancelScope()
        listeners = await trio.open_tcp_listeners(self._port, host="127.0.0.1")
        self._port = listeners[0].socket.getsockname()[1]
        self._nursery.start_soon(self._serve, listeners, self._scope)

    async def _serve(self, listeners: list[trio.SocketListener], scope: trio.CancelScope) -> None:
        with scope:
            await trio.serve_listeners(self._server.serve, listeners)

    def cut(self) -> None:
        """End every connection and refuse new ones."""
        self._scope.cancel()


class ApiServer(FakeApi):
    """Objects by (plural, namespace, name), and the history that watches are told."""

    def __init__(self) -> None:
        super().__init__()
        self.handler = self.handle
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.writes: list[tuple[str, str, str]] = []
        """Method, plural and name of each write that was carried out."""
        self.quota = math.inf
        """Pods there may be."""
        self.admit: Callable[[Object], None] = lambda _pod: None
        """The webhook: changes a pod that is made."""
        self.kubelet: Callable[[str, Object], None] = lambda _event, _pod: None
        """Told of each pod's ADDED, MODIFIED and DELETED."""
        self.holds_deleted = False
        """Whether a deleted pod stays, marked, until `remove`, as while it ends."""
        self.may: Callable[[Object], bool] = lambda _spec: False
        """Answers SubjectAccessReviews."""
        self.reviewed: Callable[[Object], Object] = lambda _spec: {"authenticated": False}
        """Who a token's is: the status of a TokenReview with this spec."""
        self.faults: list[Callable[[Seen], Answer | None]] = []
        """Asked first; one that answers is spent."""
        self.write_s = 0.0
        """Seconds until a creation or patch is carried out, also when its client is gone by then."""
        self.history: list[tuple[str, str, Object]] = []
        self.oldest = 0
        self._versions = itertools.count(1)
        self._version = 0
        self._changed = trio.Event()

    @contextlib.asynccontextmanager
    async def links(self, count: int) -> AsyncIterator[list[Link]]:
        """So many ways in."""
        async with trio.open_nursery() as nursery:
            made = [Link(self, nursery) for _ in range(count)]
            for link in made:
                await link.open()
            yield made
            nursery.cancel_scope.cancel()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[kube.Kube]:
        """The real client of it."""
        async with self.links(1) as [link], kube.Kube(link.target, luck=lambda: 0.0) as api:
            yield api

    # --- what a test does to it ---

    def put(self, plural: str, document: Object) -> Object:
        """Make or change an object as some controller does."""
        document = copy.deepcopy(document)
        meta = document["metadata"]
        meta.setdefault("namespace", "")
        old = self.objects.get(self._key(plural, document))
        meta.setdefault("uid", old["metadata"]["uid"] if old else str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", "2026-11-29T12:00:00Z")
        return self._store("MODIFIED" if old else "ADDED", plural, document)

    def change(self, plural: str, name: str, change: Callable[[Object], None]) -> Object:
        """Change one object in place."""
        document = copy.deepcopy(self.named(plural, name))
        change(document)
        return self._store("MODIFIED", plural, document)

    def remove(self, plural: str, name: str) -> None:
        """Take an object away."""
        document = self.objects.pop(self._key(plural, self.named(plural, name)))
        self._store("DELETED", plural, document)

    def named(self, plural: str, name: str) -> Object:
        """The one object of that name."""
        [found] = [one for key, one in self.objects.items() if (key[0], key[2]) == (plural, name)]
        return found

    def all(self, plural: str) -> list[Object]:
        return [one for key, one in self.objects.items() if key[0] == plural]

    def forget_history(self) -> None:
        """Versions so far are too old for a watch from now on."""
        self.oldest = self._version

    # --- HTTP ---

    def delay_of(self, seen: Seen) -> float:
        return self.write_s if seen.method in {"POST", "PATCH"} else self.delay_s

    def handle(self, seen: Seen) -> Answer:
        for fault in self.faults:
            if (answer := fault(seen)) is not None:
                self.faults.remove(fault)
                return answer
        try:
            return self._route(seen)
        except RefusedError as error:
            return error.answer

    def _route(self, seen: Seen) -> Answer:
        parts = seen.path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, name = parts[0], (parts[1] if len(parts) > 1 else "")
        if not name:
            return self._collection(seen, plural, namespace)
        key = (plural, namespace, name)
        if key not in self.objects:
            raise refuse(404, "NotFound", f'{plural} "{name}" not found')
        act = {"GET": self._get, "PUT": self._replace, "PATCH": self._patch, "DELETE": self._delete}
        return act[seen.method](seen, key)

    def _collection(self, seen: Seen, plural: str, namespace: str) -> Answer:
        if seen.method == "POST":
            return self._create(seen, plural, namespace)
        selects = partial(selected, plural, namespace, seen.params)
        if seen.params.get("watch") == "true":
            since = int(seen.params["resourceVersion"])
            if since < self.oldest:
                raise refuse(410, "Expired", "too old resource version")
            return Answer(chunks=self._watch(since, selects))
        items = [one for key, one in self.objects.items() if selects(key[0], one)]
        at, limit = int(seen.params.get("continue", "0")), int(seen.params["limit"])
        more = str(at + limit) if at + limit < len(items) else ""
        meta = {"resourceVersion": str(self._version), "continue": more}
        return Answer(body={"metadata": meta, "items": items[at : at + limit]})

    async def _watch(self, since: int, selects: Callable[[str, Object], bool]):
        sent = 0
        while True:
            changed = self._changed
            batch = self.history[sent:]
            sent += len(batch)
            for kind, plural, document in batch:
                version = int(document["metadata"]["resourceVersion"])
                if version > since and selects(plural, document):
                    yield json.dumps({"type": kind, "object": document}).encode() + b"\n"
            if changed is self._changed:
                await changed.wait()

    # --- verbs ---

    def _get(self, _seen: Seen, key: tuple[str, str, str]) -> Answer:
        return Answer(body=self.objects[key])

    def _create(self, seen: Seen, plural: str, namespace: str) -> Answer:
        document = seen.json
        if plural == "subjectaccessreviews":
            return Answer(201, {**document, "status": {"allowed": self.may(document["spec"])}})
        if plural == "tokenreviews":
            return Answer(201, {**document, "status": self.reviewed(document["spec"])})
        meta = document["metadata"]
        meta["namespace"] = namespace
        if (plural, namespace, meta["name"]) in self.objects:
            raise refuse(409, "AlreadyExists", f"{meta['name']} already exists")
        if plural == "pods":
            if len(self.all("pods")) >= self.quota:
                raise refuse(403, "Forbidden", "exceeded quota: sandman-pods")
            self.admit(document)
        meta.pop("resourceVersion", None)
        self.writes.append(("POST", plural, meta["name"]))
        return Answer(201, self.put(plural, document))

    def _replace(self, seen: Seen, key: tuple[str, str, str]) -> Answer:
        document = seen.json
        self._check_version(key, document["metadata"].get("resourceVersion"))
        self.writes.append(("PUT", key[0], key[2]))
        return Answer(body=self._store("MODIFIED", key[0], document))

    def _patch(self, seen: Seen, key: tuple[str, str, str]) -> Answer:
        document = copy.deepcopy(self.objects[key])
        if seen.headers["content-type"] == "application/json-patch+json":
            for operation in seen.json:
                apply(document, operation)
        else:
            self._check_version(key, seen.json.get("metadata", {}).get("resourceVersion"))
            merge(document, seen.json)
        if key[0] == "pods":
            document = resized(seen.path, self.objects[key], document)
        containers = document.get("spec", {}).get("containers") or []
        if any(" " in one.get("image", "") for one in containers):
            field = "spec.containers[0].image"
            causes = [{"reason": "FieldValueInvalid", "message": "bad image", "field": field}]
            raise refuse(422, "Invalid", "Pod is invalid: image", causes=causes)
        kind = "pods/resize" if seen.path.endswith("/resize") else key[0]
        self.writes.append(("PATCH", kind, key[2]))
        return Answer(body=self._store("MODIFIED", key[0], document))

    def _delete(self, seen: Seen, key: tuple[str, str, str]) -> Answer:
        document = self.objects[key]
        wanted = seen.json.get("preconditions") or {}
        if wanted.get("uid") not in {None, document["metadata"]["uid"]}:
            raise refuse(409, "Conflict", "the UID in the precondition does not match")
        self._check_version(key, wanted.get("resourceVersion"))
        self.writes.append(("DELETE", key[0], key[2]))
        if key[0] == "pods" and self.holds_deleted:
            marked = copy.deepcopy(document)
            marked["metadata"]["deletionTimestamp"] = "2026-11-29T12:00:00Z"
            return Answer(body=self._store("MODIFIED", "pods", marked))
        self.remove(key[0], key[2])
        return Answer(body={"kind": "Status", "status": "Success"})

    # --- inside ---

    def _check_version(self, key: tuple[str, str, str], version: str | None) -> None:
        if version not in {None, self.objects[key]["metadata"]["resourceVersion"]}:
            raise refuse(409, "Conflict", "the object has been modified")

    def _key(self, plural: str, document: Object) -> tuple[str, str, str]:
        return plural, document["metadata"].get("namespace", ""), document["metadata"]["name"]

    def _store(self, event: str, plural: str, document: Object) -> Object:
        self._version = next(self._versions)
        document["metadata"]["resourceVersion"] = str(self._version)
        document.setdefault("kind", KINDS[plural])
        if event != "DELETED":
            self.objects[self._key(plural, document)] = document
        self.history.append((event, plural, copy.deepcopy(document)))
        self._changed.set()
        self._changed = trio.Event()
        if plural == "pods":
            self.kubelet(event, document)
        return document


# --- what the API server does to documents ------------------------------------------------------


def selected(
    plural: str, namespace: str, params: dict[str, str], kind: str, document: Object
) -> bool:
    """Whether a list or watch of `plural` with these parameters shows an object."""
    meta = document["metadata"]
    if kind != plural or namespace not in {"", meta.get("namespace", "")}:
        return False
    terms = [term for term in params.get("labelSelector", "").split(",") if term]
    if not all(has_label(meta.get("labels") or {}, term) for term in terms):
        return False
    field, _, wanted = params.get("fieldSelector", "").partition("=")
    value: Any = document
    for part in field.split(".") if field else ():
        value = (value or {}).get(part)
    return not field or value == wanted


def has_label(labels: dict[str, str], term: str) -> bool:
    """Whether labels fulfil one term of a selector: `name`, `!name` or `name=value`."""
    name, equals, value = term.removeprefix("!").partition("=")
    if term.startswith("!"):
        return name not in labels
    return name in labels and (not equals or labels[name] == value)


def apply(document: Object, operation: Object) -> None:
    """One operation of a JSON patch (RFC 6902), on objects and items of lists."""
    *path, last = [
        part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
    ]
    missing = refuse(422, "Invalid", f"the path {operation['path']} is missing")
    place: Any = document
    for part in path:
        place = member(place, part)
        if place is None:
            raise missing
    kind, value = operation["op"], operation.get("value")
    if kind == "test" and member(place, last) != value:
        raise refuse(422, "Invalid", f"testing {operation['path']} failed")
    if kind in {"remove", "replace"} and member(place, last) is None:
        raise missing
    key = int(last) if isinstance(place, list) else last
    if kind == "remove":
        del place[key]
    elif kind in {"add", "replace"}:
        place[key] = value


def resized(path: str, old: Object, new: Object) -> Object:
    """A pod after a patch: its subresource `resize` changes cpu and memory, the pod itself all but them."""
    before, after = (
        [one.get("resources") or {} for one in pod["spec"]["containers"]] for pod in (old, new)
    )
    if not path.endswith("/resize"):
        if before != after:
            raise refuse(422, "Invalid", "pod updates may not change fields other than the image")
        return new
    if [qos(one) for one in before] != [qos(one) for one in after]:
        raise refuse(422, "Invalid", "Pod QOS Class may not change as a result of resizing")
    kept = copy.deepcopy(old)
    for container, resources in zip(kept["spec"]["containers"], after, strict=True):
        container["resources"] = resources
    return kept


def qos(resources: Object) -> str:
    """Of a pod of this one container."""
    limits = resources.get("limits") or {}
    requests = {**limits, **(resources.get("requests") or {})}
    if not requests:
        return "BestEffort"
    same = all(requests.get(one) == limits.get(one) for one in ("cpu", "memory"))
    return "Guaranteed" if same else "Burstable"


def member(place: Any, part: str) -> Any:
    """A field of an object or an item of a list; None where there is none."""
    if isinstance(place, list):
        return place[int(part)] if part.isdecimal() and int(part) < len(place) else None
    return place.get(part)


def merge(document: Object, patch: Object) -> None:
    """A merge patch (RFC 7386)."""
    for name, value in patch.items():
        if value is None:
            document.pop(name, None)
        elif isinstance(value, dict):
            merge(document.setdefault(name, {}), value)
        else:
            document[name] = value
