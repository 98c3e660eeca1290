"""`/v1/files`: points 29 to 36, 39 and 54."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.daemon.harness import Daemon, head, names_in, problem, read_all

if TYPE_CHECKING:
    from collections.abc import Callable

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")


def leftovers(directory: Path) -> list[str]:
    """Files of unfinished writes."""
    return [name for name in names_in(directory) if name.startswith(".sandman-")]


def test_29_write_makes_parents_and_tells_what_it_wrote(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.txt"
    response = daemon.put(path, b"hello")
    assert response.status_code == 200
    digest = hashlib.sha256(b"hello").hexdigest()
    expected = {"path": str(path), "size": 5, "sha256": digest, "mode": "0644"}
    assert response.json() == expected
    assert path.read_bytes() == b"hello"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755


def test_29_overwriting_keeps_the_mode_and_the_owner(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "script"
    path.write_text("a long first version")
    path.chmod(0o751)
    if os.geteuid() == 0:
        os.chown(path, 1234, 1235)
    assert daemon.put(path, b"second").json()["mode"] == "0751"
    found = path.stat()
    assert path.read_bytes() == b"second"
    assert stat.S_IMODE(found.st_mode) == 0o751
    if os.geteuid() == 0:
        assert (found.st_uid, found.st_gid) == (1234, 1235)


def test_29_mode_on_request(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "x"
    for mode in ("0755", "600", "4755"):
        assert daemon.put(path, b"x", mode=mode).status_code == 200
        assert stat.S_IMODE(path.stat().st_mode) == int(mode, 8)
    for bad in ("", "9", "77777", "u+x"):
        assert problem(daemon.put(path, b"x", mode=bad))["field"] == "mode"


def test_30_a_wrong_digest_leaves_the_old_file(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("old")
    found = problem(daemon.put(path, b"new", sha256="0" * 64))
    assert (found["reason"], found["field"]) == ("bad_request", "sha256")
    assert path.read_text() == "old"
    assert leftovers(tmp_path) == []
    right = hashlib.sha256(b"new").hexdigest()
    assert daemon.put(path, b"new", sha256=right.upper()).status_code == 200
    assert path.read_text() == "new"


def test_30_a_short_body_never_appears(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with daemon.connect() as sock:
        sock.sendall(head("PUT", f"/v1/files?path={path}", "Content-Length: 100") + b"half")
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock) == b""
    assert names_in(tmp_path) == []


def test_31_fifty_mebibytes_and_every_byte(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "big"
    data = os.urandom(1024 * 1024) * 50
    assert daemon.put(path, data).json()["size"] == len(data)
    assert daemon.get(path).content == data
    for content in (b"", bytes(range(256)), b"\xff\xfe\r\n"):
        assert daemon.put(path, content).status_code == 200
        response = daemon.get(path)
        assert response.content == content
        assert response.headers["content-length"] == str(len(content))


def test_31_without_a_length(daemon: Daemon, tmp_path: Path) -> None:
    pieces = [b"one", b"two"]
    assert daemon.put(tmp_path / "x", iter(pieces)).json()["size"] == 6
    assert (tmp_path / "x").read_bytes() == b"onetwo"


def test_32_each_failure_is_its_own(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    cases = {
        tmp_path / "missing": ("path_not_found", 404),
        tmp_path: ("is_a_directory", 409),
        tmp_path / "file" / "below": ("not_a_directory", 409),
        "/proc/self/mem": ("path_denied", 403),
        "/dev/null": ("path_denied", 403),
        "/" + "x" * 300: ("bad_request", 400),
    }
    for path, (reason, status) in cases.items():
        found = problem(daemon.get(path))
        assert (found["reason"], found["status"]) == (reason, status), path
        assert str(path)[:100] in str(found["detail"])
        assert found["field"] == "path"
    assert "directory" in str(problem(daemon.get(tmp_path))["detail"])


def test_32_each_failure_to_write(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    cases = {
        tmp_path: "is_a_directory",
        f"{tmp_path}/new/": "is_a_directory",
        tmp_path / "file" / "below": "not_a_directory",
        "/proc/nothing/here": "path_not_found",
        "/sys/nothing": "path_denied",
        tmp_path / ("x" * 256): "bad_request",
        tmp_path / "loop": "path_denied",
    }
    for path, reason in cases.items():
        found = problem(daemon.put(path, b"x"))
        assert found["reason"] == reason, (path, found)
    assert names_in(tmp_path) == ["file", "loop"]


def test_33_relative_paths_start_at_the_working_directory(
    start: Callable[..., Daemon], tmp_path: Path
) -> None:
    fresh = start(cwd=tmp_path)
    assert fresh.put("dir/file", b"x").json()["path"] == f"{tmp_path}/dir/file"
    assert fresh.get("dir/file").content == b"x"


def test_35_ranges(daemon: Daemon, tmp_path: Path) -> None:
    for size in (1000, 200_000):
        path = tmp_path / str(size)
        data = os.urandom(size)
        path.write_bytes(data)
        for asked, start, end in (
            ("bytes=0-0", 0, 1),
            ("bytes=10-19", 10, 20),
            ("bytes=990-", 990, size),
            ("bytes=-5", size - 5, size),
            (f"bytes=5-{size * 9}", 5, size),
            (f"bytes=-{size * 9}", 0, size),
        ):
            response = daemon.get(path, Range=asked)
            assert response.status_code == 206, asked
            assert response.content == data[start:end]
            assert response.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
        for ignored in ("lines=1-2", "bytes=1-2,4-5", "bytes=9-1", "bytes=", "bytes=x-1"):
            assert daemon.get(path, Range=ignored).status_code == 200
        response = daemon.get(path, Range=f"bytes={size}-")
        assert response.status_code == 416
        assert response.headers["content-range"] == f"bytes */{size}"


def test_35_head_tells_the_size_and_the_mode(daemon: Daemon, tmp_path: Path) -> None:
    for size in (0, 10, 200_000):
        path = tmp_path / str(size)
        path.write_bytes(bytes(size))
        path.chmod(0o640)
        response = daemon.client.head("/v1/files", params={"path": str(path)})
        assert response.headers["content-length"] == str(size)
        assert response.headers["sandman-mode"] == "0640"
    assert daemon.client.head("/v1/files", params={"path": "/nowhere"}).status_code == 404


ODD_NAMES = [
    "with space",
    "quo'te\"",
    "new\nline",
    "ünï",
    "-dash",
    "per%cent+plus&and=#",
    "x" * 255,
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_36_odd_names(daemon: Daemon, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert daemon.put(path, b"x").json()["path"] == str(path)
    assert names_in(tmp_path) == [name]
    assert daemon.get(path).content == b"x"
    deleted = daemon.client.delete("/v1/files", params={"path": str(path)})
    assert (deleted.status_code, deleted.content) == (204, b"")


def test_36_names_as_long_as_may_be(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 127 + "x")
    assert len(os.fsencode(path.name)) == 255
    assert daemon.put(path, b"x").status_code == 200
    assert daemon.put(path, b"xy").status_code == 200
    assert daemon.get(path).content == b"xy"
    assert problem(daemon.put(tmp_path / ("n" * 256), b"x"))["reason"] == "bad_request"
    assert names_in(tmp_path) == [path.name]


def test_36_names_that_are_no_text(daemon: Daemon, tmp_path: Path) -> None:
    target = f"/v1/files?path={tmp_path}/%FF%fe"
    request = head("PUT", target, "Content-Length: 1", "Connection: close") + b"x"
    answer = daemon.raw(request)
    assert answer.startswith(b"HTTP/1.1 200")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["path"] == f"{tmp_path}/\udcff\udcfe"
    assert names_in(tmp_path) == ["\udcff\udcfe"]


@pytest.mark.parametrize("query", ["", "path=", "path=a&path=b", "path=%0", "path=%zz", "path=a%00b",
                                   "path=x&mdoe=0644"])  # fmt: skip
def test_36_queries_that_are_refused(daemon: Daemon, query: str) -> None:
    answer = daemon.raw(head("GET", f"/v1/files?{query}", "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 400 ")


def test_36_links_are_followed_for_reading_and_writing(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("one")
    (tmp_path / "link").symlink_to("target")
    assert daemon.get(tmp_path / "link").content == b"one"
    assert daemon.get(f"{tmp_path}//./link").content == b"one"
    assert daemon.put(tmp_path / "link", b"two").status_code == 200
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "two"
    (tmp_path / "dangling").symlink_to("made")
    assert daemon.put(tmp_path / "dangling", b"three").status_code == 200
    assert (tmp_path / "made").read_text() == "three"
    daemon.client.delete("/v1/files", params={"path": str(tmp_path / "link")})
    assert (tmp_path / "target").exists()


def test_36_files_whose_size_the_kernel_does_not_know(daemon: Daemon) -> None:
    assert b"Name:" in daemon.get("/proc/self/status").content
    assert daemon.get("/etc/hosts").content == Path("/etc/hosts").read_bytes()
    large = daemon.get("/proc/kallsyms")
    assert len(large.content) > 100_000
    assert "content-length" not in large.headers
    part = daemon.get("/proc/kallsyms", Range="bytes=5-9")
    assert (part.status_code, len(part.content)) == (200, len(large.content))
    assert "accept-ranges" not in part.headers
    response = daemon.client.head("/v1/files", params={"path": "/proc/kallsyms"})
    assert response.headers["transfer-encoding"] == "chunked"
    assert daemon.get("/sys/kernel/mm/transparent_hugepage/enabled").content.endswith(b"\n")


def test_36_devices_are_written_and_not_replaced(daemon: Daemon) -> None:
    assert daemon.put("/dev/null", b"x" * 100_000).status_code == 200
    assert Path("/dev/null").is_char_device()


def test_36_a_fifo_holds_nobody(daemon: Daemon, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert problem(daemon.get(tmp_path / "fifo"))["reason"] == "path_denied"
    assert problem(daemon.put(tmp_path / "fifo", b"x"))["reason"] == "path_denied"


@pytest.mark.parametrize("name", ["new/..", "new/.", "new/../", "..", "."])
def test_32_a_directory_by_its_own_name_is_no_file(
    daemon: Daemon, tmp_path: Path, name: str
) -> None:
    assert problem(daemon.put(f"{tmp_path}/{name}", b"x"))["reason"] == "is_a_directory"
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    "header",
    [
        {"Content-Range": "bytes 2-3/10"}, {"Content-Encoding": "gzip"}, {"If-None-Match": "*"},
        {"If-Match": '"x"'}, {"If-Unmodified-Since": "Mon, 30 Nov 2026 12:00:00 GMT"},
    ],
)  # fmt: skip
def test_30_a_change_under_a_condition_that_nobody_checks_is_refused(
    daemon: Daemon, tmp_path: Path, header: dict[str, str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    for method, content in (("PUT", b"XY"), ("DELETE", b"")):
        answer = daemon.client.request(
            method, "/v1/files", params={"path": str(path)}, content=content, headers=header
        )
        refused = problem(answer)
        assert (refused["reason"], refused["field"]) == ("bad_request", next(iter(header)).lower())
    assert path.read_bytes() == b"0123456789"
    assert daemon.put(path, b"new").status_code == 200


def test_35_a_range_of_a_version_that_cannot_be_told_is_the_whole(
    daemon: Daemon, tmp_path: Path
) -> None:
    """RFC 9110 13.1.5: who goes on with a download must not get the rest of another file."""
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    answer = daemon.get(path, **{"Range": "bytes=2-4", "If-Range": '"of-the-first-half"'})
    assert (answer.status_code, answer.content) == (200, b"0123456789")
    assert daemon.get(path, Range="bytes=2-4").content == b"234"
