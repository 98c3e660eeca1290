"""Writes to the API server, counted by what is written. Pure."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING

from sandman.service.kube import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_ANSWER = "none"
"""In place of the status, where the server gave none: the write may have been carried out."""
OK = "ok"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def resource_of(path: str) -> str:
    """`pods`, `pods/resize`, `leases` …: what a path is about, as roles and audit logs name it."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "/".join(part for at, part in enumerate(parts) if at != 1)


class Counts:
    """Every attempt at a write, those that were refused too."""

    def __init__(self) -> None:
        self.writes: Counter[tuple[str, str, str]] = Counter()
        """By verb, resource and status: `ok`, an HTTP status, or `none`."""

    @contextlib.contextmanager
    def of(self, method: str, path: str) -> Iterator[None]:
        """Count the call in the block by what comes of it; reads are passed over."""
        status = NO_ANSWER
        try:
            yield
            status = OK
        except errors.KubeError as error:
            status = str(error.status or NO_ANSWER)
            raise
        finally:
            verb = _VERBS.get(method)
            if verb is not None:
                self.writes[verb, resource_of(path), status] += 1
