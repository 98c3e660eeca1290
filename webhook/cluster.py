"""What the webhook reads and writes in the cluster: two Secrets and its own configuration.

Every write is conditional on the version that was read, so that of several replicas one wins and
the others read again.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from sandman.service.kube import errors, resources

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECRETS = resources.as_raw(resources.SECRETS)
_CONFIGURATIONS = resources.MUTATING_WEBHOOKS


class Kube(Protocol):
    """The calls that are made; `sandman.service.kube.Kube` has them."""

    async def get(
        self,
        resource: resources.Resource[dict[str, Any]],
        name: str,
        *,
        namespace: str | None = None,
    ) -> dict[str, Any]:
        """One object."""
        ...

    async def create(
        self,
        resource: resources.Resource[dict[str, Any]],
        body: object,
        *,
        namespace: str | None = None,
    ) -> dict[str, Any]:
        """Make an object, if its name is free."""
        ...

    async def replace(
        self,
        resource: resources.Resource[dict[str, Any]],
        name: str,
        body: object,
        *,
        namespace: str | None = None,
    ) -> dict[str, Any]:
        """Write a whole object, if its version is still the one in the body."""
        ...

    async def patch_json(
        self,
        resource: resources.Resource[dict[str, Any]],
        name: str,
        operations: list[dict[str, Any]],
    ) -> dict[str, Any]:
        """Apply a JSON patch."""
        ...


@dataclass(frozen=True, slots=True)
class Secret:
    """A Secret at one version: its entries, and the object to write back."""

    data: Mapping[str, bytes] = field(repr=False)
    raw: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The webhook configuration at one version: each entry's name and published bundle."""

    resource_version: str
    entries: tuple[tuple[str, bytes], ...]


class Cluster:
    """The webhook's own objects, in one namespace and cluster-wide.

    Args:
        kube: the API server.
        namespace: where the Secrets are.
        configuration: name of the MutatingWebhookConfiguration.
    """

    def __init__(self, kube: Kube, namespace: str, configuration: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._configuration = configuration

    async def read_secret(self, name: str) -> Secret:
        """The Secret as it is now; one that somebody deleted is empty, and made by the next write.

        Raises:
            KubeError: no answer.
        """
        try:
            raw = await self._kube.get(_SECRETS, name, namespace=self._namespace)
        except errors.NotFoundError:
            return Secret({}, {"metadata": {"name": name}, "type": "Opaque"})
        return Secret({key: _decoded(text) for key, text in (raw.get("data") or {}).items()}, raw)

    async def write_secret(self, secret: Secret, data: Mapping[str, bytes]) -> bool:
        """Put other entries into the Secret; False when somebody wrote it since it was read.

        Raises:
            KubeError: any other failure.
        """
        entries = {key: base64.b64encode(value).decode() for key, value in data.items()}
        body = {**secret.raw, "data": entries}
        name = secret.raw["metadata"]["name"]
        is_there = "resourceVersion" in secret.raw["metadata"]
        try:
            if is_there:
                await self._kube.replace(_SECRETS, name, body, namespace=self._namespace)
            else:
                await self._kube.create(_SECRETS, body, namespace=self._namespace)
        except (errors.ConflictError, errors.AlreadyExistsError, errors.NotFoundError):
            return False
        return True

    async def read_configuration(self) -> Configuration | None:
        """The configuration as it is now; None when it is not there.

        Raises:
            KubeError: no answer.
        """
        try:
            raw = await self._kube.get(_CONFIGURATIONS, self._configuration)
        except errors.NotFoundError:
            return None
        entries = [
            (hook["name"], _decoded(hook["clientConfig"].get("caBundle") or ""))
            for hook in raw.get("webhooks") or []
        ]
        return Configuration(raw["metadata"]["resourceVersion"], tuple(entries))

    async def publish(self, configuration: Configuration, bundle: bytes) -> bool:
        """Write the bundle into every entry; False when somebody wrote since it was read.

        Nothing else in the configuration is touched: clusters and operators add to selectors.

        Raises:
            KubeError: any other failure.
        """
        value = base64.b64encode(bundle).decode()
        version = configuration.resource_version
        operations = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
        operations += [
            {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": value}
            for index in range(len(configuration.entries))
        ]
        try:
            await self._kube.patch_json(_CONFIGURATIONS, self._configuration, operations)
        except errors.ConflictError:
            return False
        except errors.InvalidError as error:
            if error.is_patch_failure:
                return False
            raise
        return True


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
