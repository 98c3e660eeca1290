"""Reads the API server's audit log: who wrote what. The one honest count of writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WRITES = {"create", "update", "patch", "delete", "deletecollection"}


@dataclass(frozen=True)
class Write:
    """One write that the API server answered with success."""

    verb: str
    user: str
    resource: str
    """With its subresource: `pods`, `pods/status`, `pods/binding`, `events` …"""
    namespace: str
    name: str
    at: float
    """When the API server had the request; seconds since the epoch."""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource} by {self.user.rpartition(':')[2]}"


class AuditLog:
    """The audit log from now on.

    Args:
        path: the file that the API server appends to.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size

    def writes(self) -> Iterator[Write]:
        """Successful writes since the last call, or since the beginning."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                if (write := _parse(line)) is not None:
                    yield write


def _parse(line: bytes) -> Write | None:
    event = json.loads(line)
    code = event.get("responseStatus", {}).get("code", 0)
    done = event.get("stage") == "ResponseComplete" and 200 <= code < 300
    if not done or event["verb"] not in WRITES or "objectRef" not in event:
        return None
    target = event["objectRef"]
    resource = target.get("resource", "")
    if target.get("subresource"):
        resource += "/" + target["subresource"]
    return Write(
        event["verb"],
        event["user"]["username"],
        resource,
        target.get("namespace", ""),
        target.get("name", ""),
        datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
    )
