"""A Secret of Sandman's, read and changed by kubectl, as whoever runs it."""

from __future__ import annotations

import base64
import binascii
import json
from typing import TYPE_CHECKING

from sandman.doctor.cluster import Cluster, ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Change = Callable[[Mapping[str, bytes]], Mapping[str, bytes | None]]

TRIES = 5
"""Times that a change is made anew because somebody else's came between."""


class Kept:
    """One Secret.

    Args:
        cluster: kubectl.
        namespace: where it is.
        name: of the Secret.
    """

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self._cluster = cluster
        self._where = ("-n", namespace, "secret", name)

    def read(self) -> dict[str, bytes]:
        """Its entries.

        Raises:
            ClusterError: kubectl fails, or there is no such Secret.
        """
        return self._read()[1]

    def _read(self) -> tuple[str, dict[str, bytes]]:
        document = self._cluster.get(*self._where)
        try:
            data = {
                name: base64.b64decode(value)
                for name, value in (document.get("data") or {}).items()
            }
            return str(document["metadata"]["resourceVersion"]), data
        except (KeyError, TypeError, AttributeError, binascii.Error) as error:
            raise ClusterError(f"the Secret makes no sense: {error!r}") from None

    def change(self, decide: Change) -> None:
        """Change some of its entries, others than those stay; on the version that was read, or again.

        Args:
            decide: entries of now → those to be written; None takes one away. May be called several times.

        Raises:
            ClusterError: kubectl fails, or somebody else always comes between.
        """
        for attempt in range(TRIES):
            version, data = self._read()
            wanted = {
                name: None if value is None else base64.b64encode(value).decode()
                for name, value in decide(data).items()
            }
            if not wanted:
                return
            patch = {"metadata": {"resourceVersion": version}, "data": wanted}
            try:
                # By standard input: what is on a command line, every process of the machine can read.
                arguments = ("--type", "merge", "--patch-file", "/dev/stdin")
                self._cluster.run("patch", *self._where, *arguments, stdin=json.dumps(patch))
            except ClusterError as error:
                if "(Conflict)" not in str(error) or attempt == TRIES - 1:
                    raise
            else:
                return
