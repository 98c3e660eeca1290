"""Source distributions and wheels as trees in memory, and trees as tars for upload.

Nothing is unpacked on this machine: a tree holds regular files only, so that links, devices and
paths that lead elsewhere in a downloaded archive have no effect.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

from tests.tasks import unified

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.tasks.unified import Tree

MOST_BYTES = 64 * 1024 * 1024
"""Of an archive, unpacked. The largest in the catalog has 2 MB."""


class ArchiveError(Exception):
    """A downloaded archive is not what such an archive should be."""


def read_sdist(path: Path) -> Tree:
    """Files of a source distribution, without the one directory that holds them all."""
    with tarfile.open(path, "r:gz") as tar:
        members = [member for member in tar if member.isfile()]
        _check(path, sum(member.size for member in members), (m.name for m in members))
        files = {member.name: tar.extractfile(member).read() for member in members}  # type: ignore[union-attr]
    tops = {name.partition("/")[0] for name in files}
    if len(tops) != 1 or tops & files.keys():
        raise ArchiveError(f"{path.name} should hold one directory, not {sorted(tops)}")
    return {name.partition("/")[2]: data for name, data in files.items()}


def read_wheel(path: Path) -> Tree:
    """Files of a wheel of pure Python, as they lie in `site-packages`."""
    with zipfile.ZipFile(path) as wheel:
        infos = [info for info in wheel.infolist() if not info.is_dir()]
        _check(path, sum(info.file_size for info in infos), (i.filename for i in infos))
        return {info.filename: wheel.read(info) for info in infos}


def _check(path: Path, size: int, names: Iterable[str]) -> None:
    if size > MOST_BYTES:
        raise ArchiveError(f"{path.name} would unpack to {size} bytes, over {MOST_BYTES}")
    for name in names:
        if not unified.is_inside(name):
            raise ArchiveError(f"{path.name} holds the path {name!r}, which leads out of it")


def tar_of(tree: Tree) -> bytes:
    """A tar of the tree: the same bytes for the same tree, owned by nobody in particular."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in _directories(tree):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
        for name, data in sorted(tree.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _directories(tree: Tree) -> list[str]:
    """Every directory above a file: not every `tar` makes those that have no entry."""
    parts = (name.split("/")[:-1] for name in tree)
    return sorted({"/".join(names[:n]) for names in parts for n in range(1, len(names) + 1)})


def below(tree: Tree, directory: str) -> Tree:
    """The part of a tree that lies in a directory, under its full paths."""
    return {name: data for name, data in tree.items() if name.startswith(f"{directory}/")}
