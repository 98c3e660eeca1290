"""`/v1/files`: points 29 to 36, 39 and 54."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from daemon import files
from tests.unit.daemon.harness import Daemon, head, names_in, problem, read_all, wait_until

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


@pytest.fixture
def mounted(tmp_path: Path) -> object:
    """A file that is a mount of its own, as /etc/hosts is in a pod, and a tiny file system."""
    inner, target, tiny = tmp_path / "inner", tmp_path / "target", tmp_path / "tiny"
    inner.write_text("old and longer than the new one")
    target.touch()
    tiny.mkdir()
    subprocess.run(["mount", "--bind", inner, target], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tiny], check=True)
    yield tmp_path
    subprocess.run(["umount", target], check=True)
    subprocess.run(["umount", tiny], check=True)


@needs_root
def test_36_a_bind_mounted_file_is_overwritten_in_place(daemon: Daemon, mounted: Path) -> None:
    assert daemon.put(mounted / "target", b"new").status_code == 200
    assert (mounted / "inner").read_text() == "new"
    assert daemon.put(mounted / "target", b"newer", mode="0600").status_code == 200
    assert stat.S_IMODE((mounted / "inner").stat().st_mode) == 0o600
    assert leftovers(mounted) == []
    assert problem(daemon.put(mounted / "target", b"no", sha256="0" * 64))["field"] == "sha256"
    assert (mounted / "inner").read_text() == "newer"


@needs_root
def test_54_a_full_disk_is_told_and_left_as_it_was(daemon: Daemon, mounted: Path) -> None:
    tiny = mounted / "tiny"
    (tiny / "x").write_text("old")
    found = problem(daemon.put(tiny / "x", b"x" * 2 * 1024 * 1024))
    assert (found["status"], found["reason"], found["cause"]) == (507, "no_space", "sandbox")
    assert (tiny / "x").read_text() == "old"
    assert names_in(tiny) == ["x"]


@needs_root
def test_33_a_file_that_the_user_may_not_write_is_not_replaced() -> None:
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        path = Path(place) / "file"
        path.write_bytes(b"old")
        path.chmod(0o444)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(54321)  # root may write whatever its mode says
        try:
            with pytest.raises(PermissionError):
                files.Writer(os.fsencode(path), None)
        finally:
            if is_root:
                os.seteuid(0)
        assert list(Path(place).iterdir()) == [path]
        path.chmod(0o755)
        writer = files.Writer(os.fsencode(path), None)
        writer.write(b"new")
        assert (writer.commit(), path.read_bytes()) == (0o755, b"new")


def test_36_a_program_that_runs_is_replaced(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "sleep"
    shutil.copy("/bin/sleep", path)
    with subprocess.Popen([path, "60"]) as running:
        assert daemon.put(path, b"new").status_code == 200
        running.kill()
    assert path.read_bytes() == b"new"


def test_36_a_writable_file_in_a_read_only_directory(daemon: Daemon, mounted: Path) -> None:
    tiny = mounted / "tiny"
    (tiny / "x").touch()
    subprocess.run(["mount", "--bind", mounted / "inner", tiny / "x"], check=True)
    subprocess.run(["mount", "-o", "remount,ro", tiny], check=True)
    try:
        assert daemon.put(tiny / "x", b"through").status_code == 200
        assert (mounted / "inner").read_text() == "through"
        assert problem(daemon.put(tiny / "y", b"no"))["reason"] == "path_denied"
    finally:
        subprocess.run(["umount", tiny / "x"], check=True)


@needs_root
def test_54_a_full_disk_leaves_no_directories_either(daemon: Daemon, mounted: Path) -> None:
    tiny = mounted / "tiny"
    (tiny / "kept").mkdir()
    found = problem(daemon.put(tiny / "kept" / "a" / "b" / "x", b"x" * 2 * 1024 * 1024))
    assert found["reason"] == "no_space"
    assert names_in(tiny / "kept") == []
    assert problem(daemon.put(tiny / "new" / ("n" * 256) / "x", b""))["reason"] == "bad_request"
    assert names_in(tiny) == ["kept"]


def test_30_a_body_that_does_not_come_leaves_no_directories(daemon: Daemon, tmp_path: Path) -> None:
    found = problem(daemon.put(tmp_path / "a" / "b" / "c", b"x", sha256="0" * 64))
    assert found["field"] == "sha256"
    assert names_in(tmp_path) == []


def test_54_what_is_kept_in_memory_first_is_bounded(daemon: Daemon) -> None:
    block = bytes(1024 * 1024)
    found = problem(daemon.put("/dev/null", (block for _ in range(65))))
    assert (found["status"], found["facts"]) == (413, {"limit": 64 * 1024 * 1024})
    assert daemon.put("/dev/null", (block for _ in range(64))).status_code == 200


def test_32_more_than_the_caller_takes_is_refused_at_the_source(
    daemon: Daemon, tmp_path: Path
) -> None:
    for size in (10, 100_000):
        (tmp_path / "x").write_bytes(b"x" * size)

        def get(most: object, **headers: str) -> httpx.Response:
            params = {"path": str(tmp_path / "x"), "max_bytes": str(most)}
            return daemon.client.get("/v1/files", params=params, headers=headers)

        assert get(size).content == b"x" * size
        found = problem(get(size - 1))
        assert (found["status"], found["reason"], found["field"]) == (413, "too_large", "max_bytes")
        assert found["facts"] == {"limit": size - 1, "size": size}
        assert get(5, Range="bytes=2-6").content == b"x" * 5
        assert problem(get(4, Range="bytes=2-6"))["reason"] == "too_large"
        for wrong in ("", "-1", "x", "1" * 19):
            assert problem(get(wrong))["field"] == "max_bytes"


def test_32_a_size_that_nobody_knows_is_bounded_all_the_same(daemon: Daemon) -> None:
    symbols = "/proc/kallsyms"
    whole = len(daemon.get(symbols).content)
    assert whole > 200_000

    def get(most: int) -> bytes:
        data = b""
        params = {"path": symbols, "max_bytes": str(most)}
        with daemon.client.stream("GET", "/v1/files", params=params) as response:
            if response.status_code != 200:
                return b"refused"
            for piece in response.iter_raw():
                data += piece
        return data

    assert len(get(whole)) == whole
    assert get(1000) == b"refused"
    with pytest.raises(httpx.RemoteProtocolError):
        get(150_000)


def test_delete(daemon: Daemon, tmp_path: Path) -> None:
    def delete(path: Path) -> object:
        response = daemon.client.delete("/v1/files", params={"path": str(path)})
        return response.status_code if response.status_code == 204 else problem(response)["reason"]

    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "file").touch()
    assert delete(tmp_path / "dir") == "is_a_directory"
    assert delete(tmp_path / "dir" / "file") == 204
    assert delete(tmp_path / "dir") == 204
    assert delete(tmp_path / "dir") == "path_not_found"


def test_39_files_move_while_commands_run(daemon: Daemon, tmp_path: Path) -> None:
    result: list[int] = []
    script = "for i in $(seq 50); do echo $i; sleep 0.01; done"
    runner = threading.Thread(target=lambda: result.append(daemon.sh(script).exit_code))
    runner.start()
    for number in range(100):
        assert daemon.put(tmp_path / f"f{number}", b"%d" % number).status_code == 200
    assert [daemon.get(tmp_path / f"f{n}").text for n in range(100)] == [str(n) for n in range(100)]
    runner.join()
    assert result == [0]


def test_a_reader_never_sees_half_a_file(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"a" * 300_000)
    stop = threading.Event()

    def write() -> None:
        letters = [b"a" * 300_000, b"b" * 300_000]
        while not stop.is_set():
            letters.reverse()
            daemon.put(path, letters[0])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {bytes(set(daemon.get(path).content)) for _ in range(30)}
    finally:
        stop.set()
        writer.join()
    assert seen <= {b"a", b"b"}


def test_a_file_that_shrinks_breaks_the_answer_off(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    with daemon.connect() as sock:
        sock.sendall(head("GET", f"/v1/files?path={path}"))
        assert sock.recv(10).startswith(b"HTTP/1.1 2")
        os.truncate(path, 10)
        assert len(read_all(sock)) < 64 * 1024 * 1024


def test_a_caller_that_leaves_within_a_download(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    with daemon.connect() as sock:
        sock.sendall(head("GET", f"/v1/files?path={path}"))
        sock.recv(10)

    def is_closed() -> bool:
        links = Path(f"/proc/{daemon.pid}/fd").iterdir()
        return not any(str(path) in str(link.readlink()) for link in links if link.is_symlink())

    assert wait_until(is_closed)
