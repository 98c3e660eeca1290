"""Images in a file: the tar of an OCI layout, or what `docker save` writes. Nothing of it is unpacked but layers."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING, Any

from gateway.provider.local import layers
from gateway.provider.local.inflate import CHUNK_BYTES
from gateway.provider.local.layers import Layer
from sandman.images import platforms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

DOCUMENT_MAX_BYTES = 4 * 1024 * 1024
"""Of an index, a manifest or a configuration: as registries have it."""
MEMBERS_MAX = 100_000
"""Of the archive itself, which has a few for each layer."""
DEPTH_MAX = 4
"""Indexes within indexes."""


class Archive:
    """An image in a file.

    Args:
        path: the file.
        platform: which image of several is meant.

    Raises:
        OSError, ValueError, LookupError, tarfile.TarError: it is none, or has none for this platform.
    """

    def __init__(self, path: Path, platform: platforms.Platform) -> None:
        self._tar = tarfile.open(path)  # noqa: SIM115 - closed by `close`
        try:
            self._members = self._index()
            self._platform = platform
            self._open()
        except BaseException:
            self._tar.close()
            raise

    digest: str
    layers: tuple[Layer, ...]
    configuration: Mapping[str, Any]

    def close(self) -> None:
        """Let go of the file."""
        self._tar.close()

    def read(self, layer: Layer) -> Iterator[bytes]:
        """A layer's data, as it lies there.

        Raises:
            ValueError: it is not there, or not what its digest says.
        """
        data = self._pieces(layer.name)
        return layers.checked(data, layer.digest) if layer.digest else data

    def _index(self) -> dict[str, tarfile.TarInfo]:
        found: dict[str, tarfile.TarInfo] = {}
        for member in self._tar:
            found[member.name.removeprefix("./")] = member
            if len(found) > MEMBERS_MAX:
                raise ValueError("it has more parts than an image has")
        return found

    def _open(self) -> None:
        if "index.json" in self._members:
            self._open_layout()
        elif "manifest.json" in self._members:
            self._open_saved()
        else:
            raise ValueError("it is neither an OCI layout nor what `docker save` writes")

    def _open_layout(self) -> None:
        entry, document = self._resolve(self._document("index.json"), DEPTH_MAX)
        self.digest = str(entry["digest"])
        # What has neither is no image, or of a kind that is too old.
        self.configuration = self._blob_document(str(document["config"]["digest"]))
        self.layers = tuple(
            Layer(_blob(str(one["digest"])), str(one["digest"])) for one in document["layers"]
        )

    def _resolve(
        self, index: Mapping[str, Any], depth: int
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """The entry that is meant, and its manifest."""
        entries = index.get("manifests") or []
        entry = entries[0] if len(entries) == 1 else platforms.choose(entries, self._platform)
        if entry is None or depth == 0:
            raise LookupError(f"it has no image for {self._platform}")
        document = self._blob_document(str(entry["digest"]))
        if "manifests" in document:
            return self._resolve(document, depth - 1)
        return entry, document

    def _open_saved(self) -> None:
        manifests = json.loads(self._small("manifest.json"))
        if not isinstance(manifests, list) or len(manifests) != 1:
            raise ValueError("it holds several images: save one alone")
        [one] = manifests
        data = self._small(str(one["Config"]))
        self.configuration = _object(data)
        # Saved layers are named by nobody's digest; the configuration is, and names their contents.
        self.digest = layers.sha256(data)
        self.layers = tuple(Layer(str(name)) for name in one["Layers"])

    # --- parts ---

    def _document(self, name: str) -> Mapping[str, Any]:
        return _object(self._small(name))

    def _blob_document(self, digest: str) -> Mapping[str, Any]:
        data = b"".join(layers.checked([self._small(_blob(digest))], digest))
        return _object(data)

    def _small(self, name: str) -> bytes:
        member = self._members.get(name)
        if member is not None and member.size > DOCUMENT_MAX_BYTES:
            raise ValueError(f"its part {name[:200]} is over {DOCUMENT_MAX_BYTES} bytes")
        return b"".join(self._pieces(name))

    def _pieces(self, name: str) -> Iterator[bytes]:
        member = self._members.get(name)
        # A link in an archive may lead to itself, and tarfile follows it.
        file = self._tar.extractfile(member) if member is not None and member.isreg() else None
        if file is None:
            raise ValueError(f"its part {name[:200]} is not there")
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _blob(digest: str) -> str:
    name, _, value = digest.partition(":")
    return f"blobs/{name}/{value}"


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("a part of it makes no sense") from None
    if not isinstance(found, dict):
        raise ValueError("a part of it makes no sense")  # noqa: TRY004
    return found
