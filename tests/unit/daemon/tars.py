"""Tars, and calls of `/v1/archive`, for tests."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from typing import TYPE_CHECKING

import pytest

from sandman import tar
from tests.unit.daemon.test_directories import ANY_BYTES
from tests.unit.daemon.test_files import ODD_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.daemon.harness import Daemon

MIB = 1024 * 1024


def get(daemon: Daemon, path: object) -> bytes:
    response = daemon.client.get("/v1/archive", params={"path": str(path)})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-tar"
    return response.content


def put(daemon: Daemon, path: object, content: bytes | Iterator[bytes], **options: str):
    return daemon.client.put("/v1/archive", params={"path": str(path), **options}, content=content)


def library(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {info.name: info for info in archive.getmembers()}


def made(*members: tar.Member | bytes) -> bytes:
    """A tar of these; bytes are the content of the member before."""
    parts = []
    for member in members:
        if isinstance(member, bytes):
            parts += [member, bytes(tar.padding(len(member)))]
        else:
            parts.append(tar.encode(member))
    return b"".join(parts) + tar.END


def snapshot(root: Path) -> dict[str, tuple[object, ...]]:
    """All that a copy must keep."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        mode = stat.S_IMODE(status.st_mode) if not path.is_symlink() else 0
        found[str(path.relative_to(root))] = (stat.S_IFMT(status.st_mode), mode, status.st_mtime_ns, content)  # fmt: skip
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A bit of everything that a copy keeps."""
    root = tmp_path / "tree"
    (root / "empty").mkdir(parents=True)
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "sub" / "script").write_bytes(b"#!/bin/sh\r\n\0\xff")
    (root / "sub" / "script").chmod(0o4755)
    (root / "sub" / "deep" / "large").write_bytes(os.urandom(300_001))
    (root / "sub" / "deep").chmod(0o1777)
    (root / "zero").touch()
    (root / "link").symlink_to("sub/script")
    (root / "outside").symlink_to("/etc/passwd")
    (root / "dangling").symlink_to("nowhere")
    for number, name in enumerate([*ODD_NAMES, ANY_BYTES]):
        (root / name).write_text(str(number))
        os.utime(root / name, ns=(1, 10**18 + number))
    (root / "read-only").mkdir()
    (root / "read-only" / "file").touch()
    (root / "read-only").chmod(0o555)
    os.utime(root / "sub", ns=(1, 5 * 10**17 + 1))
    root.chmod(0o750)
    yield root
    (root / "read-only").chmod(0o755)
