"""`/v1/files` where a file cannot simply be replaced, is bounded, or changes meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

import httpx
import pytest

from daemon import files
from tests.unit.daemon.harness import Daemon, head, names_in, problem, read_all, wait_until
from tests.unit.daemon.test_files import leftovers, needs_root


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

    def is_open(link: Path) -> bool:
        # It may be closed between the list and this.
        with contextlib.suppress(FileNotFoundError):
            return str(path) in str(link.readlink())
        return False

    assert wait_until(lambda: not any(map(is_open, Path(f"/proc/{daemon.pid}/fd").iterdir())))
