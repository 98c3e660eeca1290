"""Images as files: layers, OCI layouts, what `docker save` writes; sound ones and broken ones."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

from sandman import tar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

CONFIGURATION = {
    "os": "linux",
    "architecture": "amd64",
    "config": {"Env": ["GREETING=hello", "odd"], "WorkingDir": "/work", "User": ""},
}


def file(name: str, data: bytes = b"", **more: Any) -> tuple[tar.Member, bytes]:
    """A file of a layer."""
    return tar.Member(name.encode(), size=len(data), **more), data


def entry(name: str, kind: bytes, **more: Any) -> tuple[tar.Member, bytes]:
    """Another member."""
    return tar.Member(name.encode(), kind=kind, **more), b""


def directory(name: str, mode: int = 0o755, **more: Any) -> tuple[tar.Member, bytes]:
    """A directory of a layer."""
    return entry(name, tar.DIRECTORY, mode=mode, **more)


def link(name: str, target: str, kind: bytes = tar.SYMLINK) -> tuple[tar.Member, bytes]:
    """A link of a layer."""
    return entry(name, kind, link=target.encode())


def layer(*members: tuple[tar.Member, bytes]) -> bytes:
    """A layer's tar."""
    parts = [tar.encode(member) + data + bytes(tar.padding(len(data))) for member, data in members]
    return b"".join(parts) + tar.END


def digest(data: bytes) -> str:
    """Its sha256."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Layout:
    """The blobs of an image, and its index."""

    def __init__(
        self, layers: Iterable[bytes], configuration: Mapping[str, Any] = CONFIGURATION
    ) -> None:
        self.files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
        zipped = [gzip.compress(one, mtime=0) for one in layers]
        self.manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"digest": self.put(json.dumps(configuration).encode())},
            "layers": [{"digest": self.put(one)} for one in zipped],
        }
        self.index([{"digest": self.put(json.dumps(self.manifest).encode())}])

    def put(self, data: bytes) -> str:
        """A blob; its digest."""
        name = digest(data)
        self.files[f"blobs/{name.replace(':', '/')}"] = data
        return name

    def index(self, manifests: list[Mapping[str, Any]]) -> None:
        """What the layout has."""
        self.files["index.json"] = json.dumps({"manifests": manifests}).encode()

    def write(self, path: Path) -> Path:
        """As one file."""
        return archive(path, self.files)


def archive(path: Path, files: Mapping[str, bytes], links: Mapping[str, str] = {}) -> Path:
    """A tar of these files."""
    with tarfile.open(path, "w") as whole:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            whole.addfile(member, io.BytesIO(data))
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            whole.addfile(member)
    return path


def saved(path: Path, layers: Mapping[str, bytes], **more: Any) -> Path:
    """What `docker save` writes."""
    told = {"Config": "config.json", "Layers": list(layers), **more}
    files = {"config.json": json.dumps(CONFIGURATION).encode(), **layers}
    return archive(path, {**files, "manifest.json": json.dumps([told]).encode()})
