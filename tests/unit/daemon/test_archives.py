"""`/v1/archive`: point 37, what is packed, and what changes meanwhile."""

from __future__ import annotations

import errno
import io
import json
import os
import socket
import stat
import subprocess
import sys
import tarfile
import threading
from typing import TYPE_CHECKING

import pytest

from daemon import archives
from daemon.exchange import CallerGoneError
from sandman import pack, tar
from tests.unit.daemon.harness import ROOT, Daemon, head, names_in, peak_kib, problem
from tests.unit.daemon.tars import MIB, get, library, put, snapshot
from tests.unit.daemon.test_directories import ANY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_the_start_of_a_daemon_does_not_pay_for_archives() -> None:
    script = "import sys, daemon.serve, daemon.application; print(*sorted(sys.modules))"
    # Without `site`, as in a sandbox; and coverage, which hooks in there, brings zlib.
    argv = [sys.executable, "-S", "-c", script]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = ended.stdout.split()
    assert "daemon.handshake" in loaded
    assert not {
        "daemon.archives",
        "daemon.files",
        "sandman.tar",
        "sandman.pack",
        "sandman.unpack",
        "tarfile",
        "zlib",
    } & set(loaded)


# --- out -----------------------------------------------------------------------------------------


def test_37_a_directory_there_and_back(daemon: Daemon, tree: Path, tmp_path: Path) -> None:
    data = get(daemon, tree)
    answer = put(daemon, tmp_path / "new" / "copy", data)
    assert answer.status_code == 200, answer.text
    told = json.loads(answer.content)
    assert (told["skipped"], told["skipped_count"]) == ([], 0)
    assert told["members"] == len(snapshot(tree))
    assert told["bytes"] == sum(p.lstat().st_size for p in tree.rglob("*") if p.is_file() and not p.is_symlink())  # fmt: skip
    copy = tmp_path / "new" / "copy"
    assert snapshot(copy) == snapshot(tree)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o750
    again = put(daemon, copy, data)
    assert again.status_code == (200 if os.geteuid() == 0 else 403)
    (copy / "read-only").chmod(0o755)


def test_37_the_system_s_tar_reads_it(daemon: Daemon, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    subprocess.run(
        ["tar", "-xpf", "-", "-C", tmp_path / "out"], input=get(daemon, tree), check=True
    )
    assert snapshot(tmp_path / "out") == snapshot(tree)
    (tmp_path / "out" / "read-only").chmod(0o755)
    packed = subprocess.run(["tar", "-cf", "-", "-C", tree, "."], capture_output=True, check=True)
    assert put(daemon, tmp_path / "in", packed.stdout).status_code == 200
    wanted = {name: (kind, mode, content) for name, (kind, mode, _, content) in snapshot(tree).items()}  # fmt: skip
    found = {name: (kind, mode, content) for name, (kind, mode, _, content) in snapshot(tmp_path / "in").items()}  # fmt: skip
    assert found == wanted
    (tmp_path / "in" / "read-only").chmod(0o755)


def test_37_special_files_are_skipped_and_told(daemon: Daemon, tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    os.mkfifo(root / ANY_BYTES)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
    (root / "file").touch()
    data = get(daemon, root)
    assert sorted(library(data)) == [".", "file"]
    last = library(data)["."].pax_headers
    told = sorted(json.loads(last[tar.SKIPPED]))
    assert told == [["socket", "socket"], [ANY_BYTES, "fifo"]]
    assert last[tar.SKIPPED_COUNT] == "2"
    answer = json.loads(put(daemon, tmp_path / "copy", data).content)
    assert (sorted(answer["skipped"]), answer["skipped_count"]) == (told, 2)
    assert names_in(tmp_path / "copy") == ["file"]


def test_37_only_directories_are_archived(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)

    def reason(path: object, **options: str) -> object:
        answer = daemon.client.get("/v1/archive", params={"path": str(path), **options})
        return problem(answer)["reason"]

    assert reason(tmp_path / "file") == "not_a_directory"
    assert reason(tmp_path / "no") == "path_not_found"
    assert reason(tmp_path, more="1") == "bad_request"
    assert "file" in library(get(daemon, tmp_path / "link"))
    old = daemon.raw(head("GET", f"/v1/archive?path={tmp_path}").replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert b"needs HTTP/1.1" in old


def test_36_files_whose_size_the_kernel_does_not_know(daemon: Daemon) -> None:
    infos = library(get(daemon, "/proc/self/net"))
    assert infos["dev"].size > 0
    data = get(daemon, "/proc/sys/kernel/random")
    assert library(data)["boot_id"].size == 37


def test_31_fifty_mebibytes_and_more_in_constant_memory(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    fresh = start()
    root = tmp_path / "tree"
    root.mkdir()
    block = os.urandom(MIB)
    with (root / "large").open("wb") as file:
        for _ in range(50):
            file.write(block)
    with (root / "sparse").open("wb") as file:
        file.truncate(200 * MIB)
    assert get(fresh, tmp_path / "tree" / "..")  # what it imports and allocates once
    before = peak_kib(fresh)
    with fresh.client.stream("GET", "/v1/archive", params={"path": str(root)}) as response:
        assert put(fresh, tmp_path / "copy", response.iter_raw(MIB)).json()["bytes"] == 250 * MIB
    assert (tmp_path / "copy" / "large").read_bytes() == block * 50
    assert (tmp_path / "copy" / "sparse").stat().st_size == 200 * MIB
    assert peak_kib(fresh) - before < 8 * 1024


def test_37_a_file_that_shrinks_leaves_a_whole_tar(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, size in (("a", 300_000), ("b", 10)):
        (tmp_path / name).write_bytes(b"x" * size)
    packer = pack.Packer(tmp_path)
    monkeypatch.setattr(archives, "_CHUNK_BYTES", 100_000)
    caller = Caller()
    for part in packer.parts():
        if isinstance(part, bytes):
            caller.send(b"%x\r\n%b\r\n" % (len(part), part))
        else:
            os.truncate(tmp_path / "a", 150_000)
            archives._send_file(caller, part, packer.skips)  # type: ignore[arg-type]
    packer.close()
    packer.close()
    data = caller.body()
    assert {name: info.size for name, info in library(data).items()} == {".": 0, "a": 300_000, "b": 10}  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.extractfile("a").read() == b"x" * 150_000 + bytes(150_000)
    assert packer.skips.told == [("a", "became shorter while it was read: filled up with zeros")]
    assert packer.skips.count == 1


class Caller:
    """An exchange whose other side is this test."""

    def __init__(self) -> None:
        self.sock, self._far = socket.socketpair()
        self._pieces: list[bytes] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self.sock.setblocking(False)
        self.waits = 0

    def _read(self) -> None:
        while data := self._far.recv(65536):
            self._pieces.append(data)

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                self.wait_writable()

    def wait_writable(self) -> None:
        self.waits += 1

    def body(self) -> bytes:
        self.sock.close()
        self._thread.join()
        self._far.close()
        from daemon.http1 import ChunkedDecoder  # noqa: PLC0415

        return b"".join(ChunkedDecoder().feed(b"".join(self._pieces) + b"0\r\n\r\n"))


def test_37_where_sendfile_cannot_and_where_nobody_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(b"x" * 1000)
    caller = Caller()

    def refuse(number: int) -> None:
        def call(*_: object) -> int:
            raise OSError(number, "no")

        monkeypatch.setattr(archives.os, "sendfile", call)

    with (tmp_path / "x").open("rb", buffering=0) as file:
        refuse(errno.EINVAL)
        caller.send(b"3e8\r\n")
        assert archives._sendfile(caller, file.fileno(), 1000) == 0  # type: ignore[arg-type]
        assert archives._sendfile(caller, file.fileno(), 5) == 5  # type: ignore[arg-type]
        caller.send(b"\r\n")
        refuse(errno.EPIPE)
        with pytest.raises(CallerGoneError):
            archives._sendfile(caller, file.fileno(), 5)  # type: ignore[arg-type]
        refuse(errno.EIO)
    assert archives._sendfile(caller, file_closed(tmp_path), 5) == 5  # type: ignore[arg-type]
    assert caller.body() == b"x" * 1000


def file_closed(tmp_path: Path) -> int:
    """A descriptor that cannot be read: of a directory."""
    return os.open(tmp_path, os.O_RDONLY)


def test_37_a_caller_who_goes_away_ends_it(daemon: Daemon, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with daemon.connect() as sock:
        sock.sendall(head("GET", f"/v1/archive?path={tmp_path}"))
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")
    assert daemon.client.get("/v1/info").status_code == 200


# --- what changes while it is packed -------------------------------------------------------------


def packed(packer: pack.Packer) -> bytes:
    data = b""
    for part in packer.parts():
        pieces = [part] if isinstance(part, bytes) else pack.read_part(part, packer.skips, 65536)
        data += b"".join(pieces)
    packer.close()
    return data


def test_37_what_vanishes_and_what_may_not_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("gone", "denied", "kept"):
        (tmp_path / name).touch()
    (tmp_path / "closed").mkdir(0o711)
    (tmp_path / "swapped").touch()
    real_open, real_scandir = os.open, os.scandir

    def opened(path: object, *args: object, **kwargs: object) -> int:
        if path == "gone":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        if path == "denied":
            raise PermissionError(errno.EACCES, "Permission denied")
        if path == "swapped":
            return real_open("/dev/null", os.O_RDONLY)
        return real_open(path, *args, **kwargs)

    def scanned(fd: int) -> object:
        if stat.S_IMODE(os.fstat(fd).st_mode) == 0o711:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_scandir(fd)

    monkeypatch.setattr(pack.os, "open", opened)
    monkeypatch.setattr(pack.os, "scandir", scanned)
    packer = pack.Packer(tmp_path)
    data = packed(packer)
    assert sorted(library(data)) == [".", "closed", "kept"]
    assert dict(packer.skips.told) == {
        "denied": "permission denied", "closed/": "permission denied",
        "swapped": "changed while it was read",
    }  # fmt: skip


def test_37_files_that_grow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pack, "_SMALL_BYTES", 10)
    (tmp_path / "grew").write_bytes(b"x" * 5)
    monkeypatch.setattr(pack, "_read_small", lambda fd: None)
    packer = pack.Packer(tmp_path)
    assert sorted(library(packed(packer))) == ["."]
    assert packer.skips.told == [("grew", "longer than its size says")]
    real = os.fstat
    sizes = iter([5])

    def fstat(fd: int) -> os.stat_result:
        found = real(fd)
        if stat.S_ISREG(found.st_mode):
            return os.stat_result((*found[:6], next(sizes, 20), *found[7:]), {"st_mtime_ns": 0})  # type: ignore[arg-type]
        return found

    (tmp_path / "grew").write_bytes(b"x" * 20)
    monkeypatch.setattr(pack.os, "fstat", fstat)
    assert library(packed(pack.Packer(tmp_path)))["grew"].size == 20


def test_37_too_deep_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pack, "MAX_DEPTH", 2)
    monkeypatch.setattr(pack, "_FLUSH_BYTES", 100)
    (tmp_path / "1" / "2" / "3").mkdir(parents=True)
    packer = pack.Packer(tmp_path)
    assert sorted(library(packed(packer))) == [".", "1", "1/2"]
    assert packer.skips.told == [("1/2/3/", "below more than 2 directories")]


def test_37_many_skips_are_counted_and_some_told() -> None:
    skips = pack.Skips()
    for number in range(1000):
        skips.add(str(number), "fifo")
    assert (skips.count, len(skips.told)) == (1000, pack.MAX_TOLD)
