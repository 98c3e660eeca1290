"""Sandboxes of pools and attachments to workloads as one, for what forwards calls to both.

Each is kept apart where it is swept, counted and released; a call does not care.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sandman import names

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gateway.attached import Attached
    from gateway.model import Ending, Instance
    from gateway.registry import Cancellable, Registry
    from gateway.roster import Roster


class Known(Protocol):
    """What is known of some sandboxes, and when that changes."""

    @property
    def registry(self) -> Registry | Registries:
        """The sandboxes."""

    async def wait_change(self, uid: str) -> None:
        """Return at this sandbox's next news."""


class Reader(Protocol):
    """Asks the API server."""

    async def read(self, namespace: str, name: str) -> Instance | None:
        """The sandbox as it is now."""


class Registries:
    """Two registries; uids and ids of the one are never those of the other."""

    def __init__(self, pods: Registry, attached: Registry) -> None:
        self._pods = pods
        self._attached = attached

    def get(self, uid: str) -> Instance | None:
        """See `Registry.get`."""
        return self._pods.get(uid) or self._attached.get(uid)

    def ending(self, sandbox: str) -> tuple[str | None, Ending] | None:
        """See `Registry.ending`."""
        return self._pods.ending(sandbox) or self._attached.ending(sandbox)

    def put(self, instance: Instance) -> Instance:
        """See `Registry.put`."""
        return self._of(instance.place is not None).put(instance)

    def remember(self, instance: Instance, ending: Ending) -> None:
        """See `Registry.remember`."""
        self._of(instance.place is not None).remember(instance, ending)

    def during(self, uid: str, call: Cancellable) -> AbstractContextManager[None]:
        """See `Registry.during`."""
        return self._of(self._attached.get(uid) is not None).during(uid, call)

    def _of(self, is_attached: bool) -> Registry:
        return self._attached if is_attached else self._pods


class Either:
    """What `Proxy` and `Tunnels` need of both.

    Args:
        pods: the sandboxes of pools.
        attached: the attachments.
        read_pods: asks the API server for the former.
        read_attached: for the latter.
    """

    def __init__(
        self, pods: Roster, attached: Attached, read_pods: Reader, read_attached: Reader
    ) -> None:
        self._pods = pods
        self._attached = attached
        self._read_pods = read_pods
        self._read_attached = read_attached
        self.registry = Registries(pods.registry, attached.registry)

    async def wait_change(self, uid: str) -> None:
        """See `Known.wait_change`."""
        is_attached = self._attached.registry.get(uid) is not None
        known: Known = self._attached if is_attached else self._pods
        await known.wait_change(uid)

    async def read(self, namespace: str, name: str) -> Instance | None:
        """See `Reader.read`."""
        is_attached = name.startswith(names.ATTACHMENT_PREFIX)
        return await (self._read_attached if is_attached else self._read_pods).read(namespace, name)
