"""The tree as an OCI image, for image volumes and for the init container that copies itself."""

import os
import re
import tempfile
from pathlib import Path

from daemon.runtime import cpython, recipe, shell

CONTAINERFILE = recipe.HERE.parent / "Containerfile"
# Plain overlay and chroot isolation work where the builder itself is a container.
BUILDAH = ("buildah", "--storage-driver", "overlay")
TOOLS = {"buildah": "buildah"}


def is_loopback(reference: str) -> bool:
    """Whether the registry is on this machine, where plain HTTP is usual and safe."""
    host = r"(?:127\.\d+\.\d+\.\d+|localhost|\[::1\])"
    return re.match(rf"(?:docker://)?{host}(?::\d+)?/", reference) is not None


def epoch() -> int:
    """The time that all in an image has, in seconds since 1970: SOURCE_DATE_EPOCH, or none."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def build(tree: Path, tag: str) -> None:
    """Make the image from a finished tree; the same tree gives the same digest."""
    cpython.install(cpython.missing_packages(TOOLS))
    options = ["--isolation", "chroot", "--timestamp", str(epoch()), "--layers=false"]
    shell.read([*BUILDAH, "bud", *options, "--file", CONTAINERFILE, "--tag", tag, tree])


def push(tag: str, reference: str) -> str:
    """Push to a registry; return the digest, by which pods should name the image."""
    destination = reference if "://" in reference else f"docker://{reference}"
    verify = "false" if is_loopback(reference) else "true"
    with tempfile.TemporaryDirectory() as scratch:
        digest = Path(scratch) / "digest"
        push = [*BUILDAH, "push", f"--tls-verify={verify}"]
        shell.read([*push, "--digestfile", digest, tag, destination])
        return digest.read_text().strip()
