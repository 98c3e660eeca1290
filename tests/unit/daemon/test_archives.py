"""`/v1/archive`: point 37, and the hostile on the way in."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import random
import socket
import stat
import subprocess
import sys
import tarfile
import threading
from typing import TYPE_CHECKING

import pytest

from daemon import archives
from daemon.archives import _plain
from daemon.exchange import CallerGoneError
from sandman import descent, errors, pack, tar, unpack
from tests.unit.daemon.harness import ROOT, Daemon, head, names_in, peak_kib, problem, read_all
from tests.unit.daemon.test_directories import ANY_BYTES
from tests.unit.daemon.test_files import ODD_NAMES, needs_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

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


# --- in ------------------------------------------------------------------------------------------

FILE = tar.Member(b"file", size=4)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ((tar.Member(b"/abs", size=1), b"x"), "path_denied"),
        ((tar.Member(b"../up", size=1), b"x"), "path_denied"),
        ((tar.Member(b"a/../../up", size=1), b"x"), "path_denied"),
        ((tar.Member(b"..", tar.DIRECTORY),), "path_denied"),
        ((tar.Member(b"x", records={"path": b"nul\0x"}),), "path_denied"),
        ((tar.Member(b"l", tar.SYMLINK, link=b"/tmp"), tar.Member(b"l/x", size=1), b"x"), "path_denied"),
        ((tar.Member(b"l", tar.SYMLINK, link=b".."), tar.Member(b"l/x/y", tar.DIRECTORY)), "path_denied"),
        ((tar.Member(b"l", tar.SYMLINK, link=b"l"), tar.Member(b"l/x", size=1), b"x"), "not_a_directory"),
        ((tar.Member(b"h", tar.HARDLINK, link=b"/etc/passwd"),), "path_denied"),
        ((tar.Member(b"h", tar.HARDLINK, link=b"../outside"),), "path_denied"),
        ((tar.Member(b"h", tar.HARDLINK, link=b"."),), "path_denied"),
        ((tar.Member(b"h", tar.HARDLINK, link=b"nothing"),), "path_not_found"),
        ((FILE, b"text", tar.Member(b"file/x", size=1), b"x"), "not_a_directory"),
        ((tar.Member(b"d", tar.DIRECTORY), tar.Member(b"d")), "is_a_directory"),
        ((FILE, b"text", tar.Member(b"file", tar.DIRECTORY)), "not_a_directory"),
        ((tar.Member(b"d", tar.DIRECTORY), tar.Member(b"d", tar.SYMLINK, link=b"x")), "is_a_directory"),
        ((tar.Member(b"n" * 256, size=1), b"x"), "bad_request"),
        ((tar.Member(b"d/" * 201 + b"x", size=1), b"x"), "path_denied"),
    ],
)  # fmt: skip
def test_37_hostile_members_are_refused(
    daemon: Daemon, tmp_path: Path, members: tuple[tar.Member | bytes, ...], reason: str
) -> None:
    (tmp_path / "outside").write_text("secret")
    found = problem(put(daemon, tmp_path / "in", made(*members)))
    assert found["reason"] == reason, found
    assert set(found["facts"]) >= {"members", "bytes", "last"}
    assert names_in(tmp_path) == ["in", "outside"]
    assert (tmp_path / "outside").read_text() == "secret"


def test_37_links_that_were_there_and_stay_inside_are_followed(
    daemon: Daemon, tmp_path: Path
) -> None:
    root = tmp_path / "in"
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "self").symlink_to(root)
    (root / "out").symlink_to(tmp_path)
    data = made(
        tar.Member(b"bin/", tar.DIRECTORY), tar.Member(b"bin/tool", size=4), b"text",
        tar.Member(b"self/top", size=4), b"more",
    )  # fmt: skip
    assert put(daemon, root, data).status_code == 200
    assert (root / "usr" / "bin" / "tool").read_text() == "text"
    assert (root / "top").read_text() == "more"
    assert (root / "bin").is_symlink()
    assert problem(put(daemon, root, made(tar.Member(b"out/x"))))["reason"] == "path_denied"
    assert names_in(tmp_path) == ["in"]


def test_37_what_is_skipped_on_the_way_in(daemon: Daemon, tmp_path: Path) -> None:
    data = made(
        tar.Member(b"fifo", tar.FIFO), tar.Member(b"null", tar.CHARACTER),
        tar.Member(b"disk", tar.BLOCK_DEVICE), tar.Member(b"odd", b"Z", size=3), b"abc",
        tar.Member(b".", tar.FILE, size=1), b"x", tar.Member(b"empty", tar.SYMLINK),
        tar.Member(b"link", tar.SYMLINK, link=b"x"), tar.Member(b"hard", tar.HARDLINK, link=b"link"),
        tar.Member(b"a", records={tar.SKIPPED: b"{", tar.SKIPPED_COUNT: b"7"}),
        tar.Member(b"b", records={tar.SKIPPED: b'[["x", "y"]]', tar.SKIPPED_COUNT: b"5"}),
    )  # fmt: skip
    told = put(daemon, tmp_path / "in", data).json()
    assert told["skipped_count"] == 7 + 5
    assert [name for name, _ in told["skipped"]] == ["fifo", "null", "disk", "odd", ".", "empty", "hard", "x"]  # fmt: skip
    assert names_in(tmp_path / "in") == ["a", "b", "link"]


def test_37_links_of_both_kinds(daemon: Daemon, tmp_path: Path) -> None:
    data = made(
        FILE, b"text", tar.Member(b"sub/hard", tar.HARDLINK, link=b"file"),
        tar.Member(b"soft", tar.SYMLINK, link=b"/anywhere", mtime_ns=7),
    )  # fmt: skip
    for _ in range(2):
        assert put(daemon, tmp_path / "in", data).status_code == 200
        assert (tmp_path / "in" / "sub" / "hard").read_text() == "text"
        assert str((tmp_path / "in" / "soft").readlink()) == "/anywhere"
        assert (tmp_path / "in" / "soft").lstat().st_mtime_ns == 7
    assert (tmp_path / "in" / "file").samefile(tmp_path / "in" / "sub" / "hard")
    same = made(tar.Member(b"file", tar.HARDLINK, link=b"file"))
    assert put(daemon, tmp_path / "in", same).status_code == 200
    assert (tmp_path / "in" / "file").read_text() == "text"


def test_37_directories_that_exist_keep_their_mode(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "in" / "tmp").mkdir(parents=True)
    (tmp_path / "in" / "tmp").chmod(0o1777)
    data = made(
        tar.Member(b"./", tar.DIRECTORY, mode=0o700), tar.Member(b"tmp", tar.DIRECTORY, mode=0o700),
        tar.Member(b"tmp/new", tar.DIRECTORY, mode=0o711), tar.Member(b"a/b/c"),
    )  # fmt: skip
    assert put(daemon, tmp_path / "in", data).status_code == 200
    modes = {p: stat.S_IMODE((tmp_path / "in" / p).stat().st_mode) for p in (".", "tmp", "tmp/new", "a/b")}  # fmt: skip
    assert modes == {".": 0o755, "tmp": 0o1777, "tmp/new": 0o711, "a/b": 0o755}


def test_30_a_tar_that_is_cut_short_says_how_far_it_came(daemon: Daemon, tmp_path: Path) -> None:
    data = made(tar.Member(b"one", size=4), b"text", tar.Member(b"two", size=4), b"text")
    found = problem(put(daemon, tmp_path / "a", data[:1536]))
    assert (found["reason"], found["field"]) == ("bad_request", "body")
    assert found["facts"] == {"members": 1, "bytes": 4, "last": "two"}
    assert names_in(tmp_path / "a") == ["one"]
    assert problem(put(daemon, tmp_path / "b", b""))["facts"]["members"] == 0
    without_end = problem(put(daemon, tmp_path / "c", data[: -len(tar.END)]))
    assert without_end["facts"]["members"] == 2
    assert problem(put(daemon, tmp_path / "d", b"text" * 500))["reason"] == "bad_request"


def test_30_a_caller_who_goes_away_leaves_no_half_file(daemon: Daemon, tmp_path: Path) -> None:
    data = made(tar.Member(b"big", size=1000), b"x" * 1000)[:800]
    with daemon.connect() as sock:
        target = f"/v1/archive?path={tmp_path}/in"
        sock.sendall(head("PUT", target, "Content-Length: 5000") + data)
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""
    assert names_in(tmp_path / "in") == []


def test_37_gzip_is_accepted(daemon: Daemon, tree: Path, tmp_path: Path) -> None:
    data = gzip.compress(get(daemon, tree))
    assert put(daemon, tmp_path / "in", data + bytes(512)).status_code == 200
    assert snapshot(tmp_path / "in") == snapshot(tree)
    (tmp_path / "in" / "read-only").chmod(0o755)
    assert "cut short" in problem(put(daemon, tmp_path / "b", data[:-5000]))["detail"]
    assert "broken" in problem(put(daemon, tmp_path / "b", data[:20] + b"x" * 5000))["detail"]
    pieces = (bytes([byte]) for byte in gzip.compress(b"x" * 100_000))
    assert sum(map(len, _plain(pieces))) == 100_000
    assert list(_plain(iter([gzip.compress(b"x"), b"\0", b"\0"]))) == [b"x"]


@needs_root
def test_54_a_full_disk_and_a_mounted_file(daemon: Daemon, tmp_path: Path) -> None:
    tiny = tmp_path / "tiny"
    tiny.mkdir()
    (tmp_path / "inner").write_text("old and long")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tiny], check=True)
    (tiny / "mounted").touch()
    subprocess.run(["mount", "--bind", tmp_path / "inner", tiny / "mounted"], check=True)
    try:
        assert put(daemon, tiny, made(tar.Member(b"mounted", size=3), b"new")).status_code == 200
        assert (tmp_path / "inner").read_text() == "new"
        big = tar.Member(b"big", size=2 * MIB)
        found = problem(put(daemon, tiny, made(big, b"x" * 2 * MIB)))
        assert (found["reason"], found["cause"]) == ("no_space", "sandbox")
        assert names_in(tiny) == ["mounted"]
        cut = made(tar.Member(b"mounted", size=3), b"new")[:514]
        assert problem(put(daemon, tiny, cut))["reason"] == "bad_request"
        link = made(tar.Member(b"mounted", tar.SYMLINK, link=b"x"))
        assert problem(put(daemon, tiny, link))["reason"] == "path_denied"
    finally:
        subprocess.run(["umount", tiny / "mounted"], check=True)
        subprocess.run(["umount", tiny], check=True)


def test_32_where_nothing_can_be_unpacked(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path / "file", "not_a_directory"),
        (tmp_path / "file" / "x", "not_a_directory"),
        ("/sys/nothing", "path_denied"),
    ):
        assert problem(put(daemon, path, made(FILE, b"text")))["reason"] == reason


def test_37_nothing_is_unpacked_beside_the_target_when_links_are_not_trusted(
    tmp_path: Path,
) -> None:
    policy = descent.Policy(mode_mask=0o777, trusts_links=False, max_bytes=1 << 30)
    data = made(
        tar.Member(b"a/in", tar.SYMLINK, link=b"../x"), tar.Member(b"a/up", tar.SYMLINK, link=b"../.."),
        tar.Member(b"a/winding", tar.SYMLINK, link=b"in/../.."), tar.Member(b"abs", tar.SYMLINK, link=b"/x"),
        tar.Member(b"suid", mode=0o4755),
    )  # fmt: skip
    with unpack.Unpacker(tmp_path, policy) as unpacker:
        unpacker.feed(data)
        unpacker.finish()
        assert unpacker.is_done
    assert [name for name, _ in unpacker.skips.told] == ["a/up", "a/winding", "abs"]
    assert stat.S_IMODE((tmp_path / "suid").stat().st_mode) == 0o755
    (tmp_path / "sub").mkdir()
    (tmp_path / "l").symlink_to("sub")
    with (
        unpack.Unpacker(tmp_path, policy) as unpacker,
        pytest.raises(errors.PathDeniedError, match="below a link"),
    ):
        unpacker.feed(made(tar.Member(b"l/x")))
    with (
        unpack.Unpacker(tmp_path, policy) as unpacker,
        pytest.raises(errors.TooLargeError),
    ):
        unpacker.feed(made(tar.Member(b"huge", size=1 << 40)))


def test_37_whatever_comes_is_unpacked_or_refused(tmp_path: Path) -> None:
    """Bytes turned at random: an error of ours or of the kernel's, and nothing beside the target."""
    dice = random.Random(37)
    whole = made(
        tar.Member(b"a/b", size=700, mtime_ns=5), b"x" * 700, tar.Member(b"l", tar.SYMLINK, link=b"a"),
        tar.Member(b"n" * 200, tar.HARDLINK, link=b"a/b"), tar.Member(b"a/d/", tar.DIRECTORY),
    )  # fmt: skip
    outcomes = set()
    for number in range(400):
        data = bytearray(whole)
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        for start in range(0, len(data), 512):
            if data[start + 257 : start + 262] == b"ustar" and dice.random() < 0.9:
                block = data[start : start + 148] + b"        " + data[start + 156 : start + 512]
                data[start + 148 : start + 156] = b"%06o\0 " % sum(block)
        policy = descent.Policy(mode_mask=0o777, trusts_links=number % 2 == 0)
        (tmp_path / "in" / str(number)).mkdir(parents=True)
        try:
            with unpack.Unpacker(tmp_path / "in" / str(number), policy) as unpacker:
                for start in range(0, len(data), 333):
                    unpacker.feed(bytes(data[start : start + 333]))
                unpacker.finish()
            outcomes.add("whole")
        except (errors.SandmanError, unpack.UnpackError) as error:
            outcomes.add(type(error).__name__)
    assert outcomes > {"whole", "BadRequestError"}
    assert names_in(tmp_path) == ["in"]
    assert names_in(tmp_path / "in") == sorted(map(str, range(400)))
