"""Bytes by the gigabyte: all of them arrive, and the daemon's memory stays what it was. Points 31 and 54.

Here 64 MiB; `make soak-files` takes 1 GiB (SANDMAN_SOAK_MIB).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from sandman import names, wire
from tests.unit.daemon import harness
from tests.unit.daemon.harness import Daemon, peak_kib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 1024 * 1024
SIZE = int(os.environ.get("SANDMAN_SOAK_MIB", "64")) * MIB
MOST_KIB = 8 * 1024
"""What a transfer of any size may add to the daemon's peak."""
BLOCK = os.urandom(MIB)

pytestmark = pytest.mark.timeout(60 + SIZE // MIB)


@pytest.fixture(params=["plain", pytest.param("own", marks=pytest.mark.runtime)])
def fresh(request: pytest.FixtureRequest, start: Callable[..., Daemon]) -> Daemon:
    """A daemon that has moved nothing yet but what it allocates once."""
    program = None
    if request.param == "own":
        program = harness.serve_by(request.getfixturevalue("native"))
    daemon = start(program=program)
    assert daemon.get("/proc/self/status").status_code == 200
    assert daemon.exec(argv=["true"]).exit_code == 0
    return daemon


def blocks() -> Iterator[bytes]:
    """The bytes to move: no two blocks are alike, so that none can be lost or take another's place."""
    for number in range(SIZE // MIB):
        yield number.to_bytes(8, "big") + BLOCK[8:]


def check_peak(daemon: Daemon, before: int) -> None:
    """It stayed within the limit."""
    added = peak_kib(daemon) - before
    print(f"{SIZE // MIB} MiB: the daemon's peak of {before} KiB grew by {added}")
    assert added < MOST_KIB


def digest_of(pieces: Iterator[bytes]) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_31_up_down_and_streamed(fresh: Daemon, tmp_path: Path, framing: str) -> None:
    path = tmp_path / "large"
    wanted, _ = digest_of(blocks())
    before = peak_kib(fresh)
    headers = {"Content-Length": str(SIZE)} if framing == "length" else {}
    params = {"path": str(path), "sha256": wanted}
    answer = fresh.client.put("/v1/files", params=params, content=blocks(), headers=headers)
    assert (answer.status_code, answer.json()["sha256"]) == (200, wanted)
    with fresh.client.stream("GET", "/v1/files", params={"path": str(path)}) as response:
        assert digest_of(response.iter_raw(MIB)) == (wanted, SIZE)
    assert streamed(fresh, path) == (wanted, SIZE)
    check_peak(fresh, before)
    path.unlink()


def streamed(daemon: Daemon, path: Path) -> tuple[str, int]:
    """The output of a command that writes the file out. Of it the daemon keeps a mebibyte or so."""
    body = f'{{"argv": ["cat", "{path}"], "output_limit": 1}}'
    headers = {"Accept": names.MEDIA_FRAMES}
    decoder = wire.FrameDecoder()
    with daemon.client.stream("POST", "/v1/exec", content=body, headers=headers) as response:
        return digest_of(
            frame.payload
            for piece in response.iter_raw(MIB)
            for frame in decoder.feed(piece)
            if frame.type == wire.STDOUT
        )


def test_31_a_directory_there_and_back(fresh: Daemon, tmp_path: Path) -> None:
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    tree.mkdir()
    with (tree / "large").open("wb") as file:
        file.writelines(blocks())
    (tree / ("n" * 255)).write_bytes(b"x" * 255)
    before = peak_kib(fresh)
    with fresh.client.stream("GET", "/v1/archive", params={"path": str(tree)}) as response:
        answer = fresh.client.put(
            "/v1/archive", params={"path": str(copy)}, content=response.iter_raw(MIB)
        )
    assert answer.json()["bytes"] == SIZE + 255
    with (copy / "large").open("rb") as file:
        assert digest_of(iter(lambda: file.read(MIB), b"")) == digest_of(blocks())
    assert (copy / ("n" * 255)).read_bytes() == b"x" * 255
    check_peak(fresh, before)
    shutil.rmtree(tree)
    shutil.rmtree(copy)


def test_54_holes_fill_neither_disk_nor_memory(fresh: Daemon, tmp_path: Path) -> None:
    """A file of holes with a page of data in its midst and at its end."""
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    tree.mkdir()
    with (tree / "sparse").open("wb") as file:
        file.seek(SIZE // 2)
        file.write(b"x" * 4096)
        file.truncate(SIZE)
    before = peak_kib(fresh)
    with fresh.client.stream("GET", "/v1/archive", params={"path": str(tree)}) as response:
        params = {"path": str(copy)}
        answer = fresh.client.put("/v1/archive", params=params, content=response.iter_raw(MIB))
    assert answer.json()["bytes"] == SIZE
    with fresh.client.stream("GET", "/v1/files", params={"path": f"{tree}/sparse"}) as response:
        answer = fresh.put(copy / "file", response.iter_raw(MIB))
    assert answer.json()["size"] == SIZE
    with (tree / "sparse").open("rb") as file:
        wanted = digest_of(iter(lambda: file.read(MIB), b""))
    for name in ("sparse", "file"):
        with (copy / name).open("rb") as file:
            assert digest_of(iter(lambda: file.read(MIB), b"")) == wanted
        assert (copy / name).stat().st_blocks * 512 <= MIB
    check_peak(fresh, before)
