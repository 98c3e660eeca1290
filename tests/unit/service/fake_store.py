"""A server in memory for watches: history, compaction, pages; and a reader that applies what it is told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from sandman.service import kube
from sandman.service.kube import objects
from tests.unit.service.fake_api import pod

if TYPE_CHECKING:
    from sandman.service.kube.watch import ListRequest

Page = objects.ListOf[kube.Pod]


class Store:
    """What etcd and the watch cache are to a client: objects, a history, a compaction."""

    def __init__(self) -> None:
        self.version = 1
        self.objects: dict[str, dict] = {}
        self.history: list[tuple[int, str, dict]] = []
        self.compacted = 0
        self._uids = 0

    def change(self, name: str, what: str) -> None:
        self.version += 1
        if what == "delete" and name in self.objects:
            gone = self.objects.pop(name)
            self._log("DELETED", pod(name, version=self.version, uid=gone["metadata"]["uid"]))
        elif what == "put":
            known = self.objects.get(name)
            if known is None:
                self._uids += 1
            uid = known["metadata"]["uid"] if known else f"u{self._uids}"
            self.objects[name] = pod(name, version=self.version, uid=uid)
            self._log("MODIFIED" if known else "ADDED", self.objects[name])

    def _log(self, kind: str, item: dict) -> None:
        self.history.append((self.version, kind, item))

    def page(self, request: ListRequest, size: int, snapshots: dict[str, tuple]) -> Page:
        """A page of a consistent snapshot, as the server serves them."""
        version, items = snapshots.get(
            request.continue_, (self.version, list(self.objects.values()))
        )
        token = ""
        if len(items) > size:
            token = f"t{len(snapshots)}"
            snapshots[token] = (version, items[size:])
        body = {
            "metadata": {"resourceVersion": str(version), "continue": token},
            "items": items[:size],
        }
        return msgspec.json.decode(json.dumps(body), type=Page)

    def events_after(self, version: int) -> bytes:
        if version < self.compacted:
            return line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
        lines = [line(kind, item) for at, kind, item in self.history if at > version]
        return b"".join(lines) + line(
            "BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}}
        )

    def names(self) -> dict[str, tuple[str, str]]:
        return {
            name: (item["metadata"]["uid"], item["metadata"]["resourceVersion"])
            for name, item in self.objects.items()
        }


def line(kind: str, item: dict) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


class Reader:
    """Applies changes, and checks that they make sense."""

    def __init__(self) -> None:
        self.have: dict[str, tuple[str, str]] = {}
        self.syncs = 0

    def apply(self, change: kube.Change[kube.Pod]) -> None:
        if isinstance(change, kube.Synced):
            self.syncs += 1
            return
        meta = change.object.metadata
        value = (meta.uid, meta.resource_version)
        match change:
            case kube.Added():
                assert meta.name not in self.have
                self.have[meta.name] = value
            case kube.Modified():
                assert self.have[meta.name][0] == meta.uid
                self.have[meta.name] = value
            case kube.Deleted():
                assert self.have.pop(meta.name)[0] == meta.uid
