"""What a name of an image stands for on this machine.

    host                                the machine's own root
    a name that the operator gave       a directory, or an archive (OCI layout, `docker save`)
    any other                           an image of a registry

Callers give names, never paths: what they can reach is what the operator has named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import secrets
import socket
import tarfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import httpx
import trio

from gateway.model import Ending
from gateway.provider.local.archives import Archive
from gateway.provider.local.directories import Directories
from gateway.provider.local.layers import Budget, apply
from gateway.provider.local.trees import remove_tree
from gateway.references import canonical
from sandman.errors import SandmanError
from sandman.images import platforms
from sandman.unpack import UnpackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gateway.provider.local.layers import Layer

HOST = "host"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""What the kernel calls them, and what images do."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


class ImageError(Exception):
    """There is no such image; `kind` is one of `endings.pull_kind`."""

    def __init__(self, reason: str, kind: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.kind = kind

    def ending(self, image: str) -> Ending:
        """What becomes of a sandbox that was to run in it."""
        return Ending(self.reason, f"image {image}: {self}", facts={"pull": self.kind})


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """An image that is there. `directory`: None for the machine's own root."""

    directory: Path | None
    digest: str
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    workdir: str = "/"
    user: str = ""


OWN = Image(None, "host")


BROKEN = (
    OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, RecursionError,
    tarfile.TarError, zlib.error, httpx.HTTPError, httpx.InvalidURL, SandmanError, UnpackError,
)  # fmt: skip
"""What an image that somebody broke, or that cannot be had, may come to."""


class Source(Protocol):
    """Where an image comes from, opened."""

    digest: str
    """Of its manifest, or of its configuration where it has none."""
    layers: tuple[Layer, ...]
    configuration: Mapping[str, Any]

    def read(self, layer: Layer) -> Iterator[bytes]:
        """A layer's data, checked against its digest."""

    def close(self) -> None:
        """Let go of it."""


class Images:
    """Finds images, and keeps what is unpacked.

    Args:
        named: directories and archives by the names that callers use.
        kept: directory of unpacked images.
        pull: opens an image of a registry by its name; None: there are none.
    """

    def __init__(
        self,
        named: Mapping[str, Path],
        kept: Path,
        pull: Callable[[str], Source] | None = None,
    ) -> None:
        self._named = {canonical(name): path for name, path in named.items()}
        self._kept = kept
        self._pull = pull
        self._locks: dict[str, trio.Lock] = {}

    def names(self) -> tuple[str, ...]:
        """Those that are here."""
        return (HOST, *self._named)

    def knows(self, name: str) -> bool:
        """Whether it is one of those."""
        return canonical(name) in {canonical(HOST), *self._named}

    def tidy(self) -> None:
        """Take away what a gateway that was killed had unpacked by half; for who has these files alone."""
        for left in self._kept.glob(".*"):
            remove_tree(left)

    async def get(self, name: str) -> Image:
        """The image of this name, fetched and unpacked when it is not here.

        Raises:
            ImageError: there is none, or it cannot be had.
        """
        full = canonical(name)
        if full == canonical(HOST):
            return OWN
        async with self._locks.setdefault(full, trio.Lock()):
            try:
                return await trio.to_thread.run_sync(self._open, name, self._named.get(full))
            except BROKEN as error:
                raise self._explained(error, full) from error

    def _open(self, name: str, path: Path | None) -> Image:
        if path is None:
            if self._pull is None:
                raise ImageError("image_not_found", "missing", self._not_here())
            return self._unpacked(self._pull(name))
        if path.resolve() == Path("/"):
            return OWN
        if path.is_dir():
            return Image(path.resolve(), "directory")
        return self._unpacked(Archive(path, platform()))

    def _not_here(self) -> str:
        known = ", ".join(self.names())
        return f"no image is named so; there are: {known} (more by sandman serve --local --image NAME=PATH)"

    def _explained(self, error: Exception, name: str) -> ImageError:
        if isinstance(error, httpx.RequestError):
            return _unanswered(error, name, self._not_here())
        return _explained(error)

    def _unpacked(self, source: Source) -> Image:
        with contextlib.closing(source):
            place = self._kept / source.digest.replace(":", "-")
            if not _DIGEST.fullmatch(source.digest):
                raise ValueError(f"a digest of an unknown kind: {source.digest[:80]}")
            if not place.is_dir():
                self._unpack(source, place)
            return _image(place, source)

    def _unpack(self, source: Source, place: Path) -> None:
        """All layers, and the name only when they are there."""
        self._kept.mkdir(mode=0o711, parents=True, exist_ok=True)
        partial = self._kept / f".{secrets.token_hex(8)}"
        partial.mkdir(mode=0o755)
        budget, directories = Budget(), Directories()
        try:
            for layer in source.layers:
                apply(source.read(layer), partial, budget, directories)
            directories.settle(partial)
            _move(partial, place)
        except BaseException:
            remove_tree(partial)
            raise


def _move(partial: Path, place: Path) -> None:
    """There is its place; another name of the same image may have been there a moment before."""
    try:
        partial.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        remove_tree(partial)


def platform() -> platforms.Platform:
    """Of this machine."""
    machine = os.uname().machine
    return platforms.Platform(architecture=_ARCHITECTURES.get(machine, machine))


def _image(place: Path, source: Source) -> Image:
    told = source.configuration.get("config") or {}
    pairs = (str(one).partition("=") for one in told.get("Env") or ())
    return Image(
        place,
        source.digest,
        {key: value for key, equals, value in pairs if key and equals and "\0" not in value},
        str(told.get("WorkingDir") or "/"),
        str(told.get("User") or ""),
    )


def _explained(error: Exception) -> ImageError:
    if isinstance(error, ImageError):
        return error
    reason = error.error if isinstance(error, UnpackError) else error
    text = str(error) or type(error).__name__
    if isinstance(reason, OSError) and reason.errno in {errno.ENOSPC, errno.EDQUOT}:
        return ImageError("image_pull", "disk", text)
    if isinstance(error, httpx.HTTPError):
        return ImageError("image_pull", "network", text)
    if isinstance(error, tarfile.TarError):
        text = "it is neither an OCI layout nor what `docker save` writes"
    elif isinstance(reason, OSError) and reason.strerror:
        # Where it is, is the operator's business.
        text = reason.strerror
    if isinstance(error, LookupError):
        return ImageError("image_not_found", "missing", text)
    return ImageError("image_not_found", "invalid", text)


def _unanswered(error: httpx.RequestError, name: str, not_here: str) -> ImageError:
    """A registry that nobody knows is a misspelt name, as on a cluster; any other may answer later, and so may one that
    this one sends to."""
    asked = error.request.url.netloc.decode()
    is_its_own = canonical(f"{asked}/x").partition("/")[0] == name.partition("/")[0]
    told = f"{not_here}; its registry {asked} cannot be asked"
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, socket.gaierror):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return ImageError("image_pull", "network", f"{told}: {str(error) or type(error).__name__}")
    if cause.errno == socket.EAI_NONAME and is_its_own:
        return ImageError("image_not_found", "host", f"{told}: there is none of that name")
    return ImageError("image_pull", "network", f"{told}: {cause.strerror}")
