"""Packs root directories as OCI images. Knows the image format, and nothing of what is inside or where it goes."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.cluster.bed.shell import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True, slots=True)
class Layer:
    """One packed root directory: the compressed file, and the hash of what it unpacks to."""

    file: Path
    diff_id: str


def pack_layer(root: Path, target: Path) -> Layer:
    """Pack a directory; the same content gives the same bytes, so that layers are shared and caches hit."""
    plain = target.with_suffix(".tar")
    order = ["--sort=name", "--mtime=@0", "--numeric-owner", "--format=posix"]
    # Access and change times would differ at each run.
    times = "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime"
    run(["tar", *order, times, "-C", root, "-cf", plain, "."])
    diff_id = f"sha256:{_sha256(plain)}"
    run(["gzip", "-1nf", plain])  # Light: the registry is on this machine.
    packed = plain.with_suffix(".tar.gz")
    packed.replace(target)
    return Layer(target, diff_id)


def write_layout(
    directory: Path, layers: Sequence[Layer], settings: Mapping[str, object], name: str
) -> None:
    """Write an OCI layout directory that holds one image; it appears whole or not at all."""
    working = directory.with_name(f"{directory.name}.part")
    shutil.rmtree(working, ignore_errors=True)
    blobs = working / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    entry = _add_image(blobs, layers, settings)
    # The first is what skopeo looks for, the second what containerd calls the image on import.
    entry["annotations"] = {
        "org.opencontainers.image.ref.name": "1",
        "io.containerd.image.name": name,
    }
    (working / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (working / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    shutil.rmtree(directory, ignore_errors=True)
    working.rename(directory)


def write_archive(layout: Path, target: Path) -> None:
    """The same image as one file, as `ctr images import` wants it."""
    run(["tar", "-C", layout, "-cf", target, "."])


def _add_image(
    blobs: Path, layers: Sequence[Layer], settings: Mapping[str, object]
) -> dict[str, object]:
    """Write layers, configuration and manifest; returns the manifest's descriptor."""
    rootfs = {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]}
    config = {"architecture": "amd64", "os": "linux", "config": settings, "rootfs": rootfs}
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _add_json(blobs, config, _CONFIG),
        "layers": [_add_layer(blobs, layer) for layer in layers],
    }
    return _add_json(blobs, manifest, _MANIFEST)


def _add_layer(blobs: Path, layer: Layer) -> dict[str, object]:
    digest = _sha256(layer.file)
    (blobs / digest).hardlink_to(layer.file)
    return {"mediaType": _LAYER, "digest": f"sha256:{digest}", "size": layer.file.stat().st_size}


def _add_json(blobs: Path, value: Mapping[str, object], media_type: str) -> dict[str, object]:
    data = json.dumps(value, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
