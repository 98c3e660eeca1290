"""The keys in force: kept fresh by watching two Secrets and a ConfigMap, so that a revoked key ends within
seconds (a mounted Secret would take a minute and more)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import structlog
import trio

from gateway import callers, tokens
from sandman import names
from sandman.service import keyring, kube

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gateway.callers import Callers
    from gateway.tokens import ApiKey

log = structlog.get_logger()

K = TypeVar("K", kube.Secret, kube.ConfigMap)


class WatchedCredentials:
    """Implements `auth.Credentials`.

    Args:
        api: the API server.
        namespace: where both Secrets and the ConfigMap are.
    """

    def __init__(self, api: kube.Kube, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._api_keys: Mapping[str, ApiKey] = {}
        self._callers = callers.NOBODY
        self._keyring: keyring.Keyring | None = None
        self.ready = trio.Event()
        """Set once the signing keys are there: the webhook makes them at its first start."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change of any of it."""
        self._unread = {names.API_KEYS_SECRET, names.CALLERS_CONFIG}
        self.told = trio.Event()
        """Set once API keys and callers were read: until then that one is not among them says nothing."""

    def __repr__(self) -> str:
        return (
            f"<WatchedCredentials api_keys={len(self._api_keys)} rules={len(self._callers.rules)}"
            f" {self._keyring!r}>"
        )

    @property
    def api_keys(self) -> Mapping[str, ApiKey]:
        """API keys by id."""
        return self._api_keys

    @property
    def callers(self) -> Callers:
        """Callers whom others vouch for."""
        return self._callers

    @property
    def daemon_keys(self) -> Mapping[str, bytes]:
        """Keys that daemon tokens are derived from, by id."""
        return self._keyring.daemon if self._keyring else {}

    @property
    def sandbox_keys(self) -> Mapping[str, bytes]:
        """Keys that sign sandbox tokens, by id."""
        return self._keyring.sandbox if self._keyring else {}

    @property
    def current_key(self) -> str:
        """Id of the key that signs new sandbox tokens; empty before `ready`."""
        return self._keyring.current if self._keyring else ""

    async def run(self) -> None:
        """Watch until cancelled."""
        async with trio.open_nursery() as nursery:
            for name in (names.API_KEYS_SECRET, names.KEYS_SECRET):
                nursery.start_soon(self._watch, kube.SECRETS, name, self.take)
            nursery.start_soon(self._watch, kube.CONFIG_MAPS, names.CALLERS_CONFIG, self.take_rules)

    async def _watch(
        self,
        resource: kube.Resource[K],
        name: str,
        take: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        send, receive = trio.open_memory_channel[kube.Change[K]](0)
        # The field selector makes this a list of one, which RBAC grants by resource name.
        reflector = kube.Reflector(
            self._api,
            resource,
            namespace=self._namespace,
            field_selector=f"metadata.name={name}",
        )
        async with receive, trio.open_nursery() as nursery:
            nursery.start_soon(reflector.run, send)
            async for change in receive:
                if isinstance(change, kube.Synced):
                    self._unread.discard(name)
                    if not self._unread:
                        self.told.set()
                else:
                    gone = isinstance(change, kube.Deleted)
                    take(name, {} if gone else change.object.data or {})

    def take(self, name: str, data: Mapping[str, bytes]) -> None:
        """A Secret as it is now."""
        if name == names.API_KEYS_SECRET:
            self._api_keys, bad = tokens.parse_api_keys(data)
            if bad:
                log.warning("API keys cannot be read", secret=name, entries=bad)
            self.on_change()
            return
        try:
            self._keyring = keyring.parse(data)
        except keyring.KeyringError as error:
            # Keys that worked stay: without them every sandbox would be out of reach.
            log.warning("signing keys cannot be read", secret=name, error=str(error))
        else:
            self.ready.set()
            self.on_change()

    def take_rules(self, name: str, data: Mapping[str, str]) -> None:
        """The ConfigMap as it is now."""
        self._callers, bad = callers.parse(data)
        if bad:
            log.warning("callers cannot be read", config_map=name, entries=bad)
        self.on_change()
