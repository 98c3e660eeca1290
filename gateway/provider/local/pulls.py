"""Images of registries: manifests by the client that looks entrypoints up, layers as they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from gateway.provider.local import layers
from gateway.provider.local.layers import Layer
from sandman.images import reference
from sandman.images.credentials import Credentials
from sandman.images.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandman.images.platforms import Platform


class Pull:
    """An image of a registry.

    Args:
        name: its reference.
        platform: which image of several is meant.

    Raises:
        ValueError, LookupError, OSError, httpx.HTTPError: it cannot be had.
    """

    digest: str
    layers: tuple[Layer, ...]
    configuration: Mapping[str, Any]

    def __init__(self, name: str, platform: Platform) -> None:
        self._reference = reference.parse(name)
        self._client = httpx.Client()
        try:
            self._registry = Registry(self._client, Credentials(), platform)
            whole = self._registry.read(self._reference)
            self.digest = whole.digest
            self.configuration = whole.configuration
            self.layers = tuple(
                Layer(str(one["digest"]), str(one["digest"])) for one in whole.manifest["layers"]
            )
        except BaseException:
            self._client.close()
            raise

    def read(self, layer: Layer) -> Iterator[bytes]:
        """A layer's data.

        Raises:
            ValueError: it is not what its digest says.
            LookupError, httpx.HTTPError: it cannot be had.
        """
        return layers.checked(self._registry.blob(self._reference, layer.digest), layer.digest)

    def close(self) -> None:
        """Let go of the connection."""
        self._client.close()
