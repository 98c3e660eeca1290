"""Files and directories. Points 29 to 39."""

from __future__ import annotations

import hashlib
import os
import socket
import threading

import pytest

from sandman.errors import (
    BadRequestError,
    ConflictError,
    IsADirectoryPathError,
    NotADirectoryPathError,
    PathDeniedError,
    PathNotFoundError,
    TooLargeError,
    UserUnsupportedError,
)
from tests.conformance import container
from tests.conformance.cells import PYTHON, Box, as_root, as_user, over, over_each_image

MIB = 1 << 20
EVERY_BYTE = bytes(range(256))


def mode_of(box: Box, path: str) -> int:
    """The mode as a command sees it."""
    script = "import os, sys; print(oct(os.stat(sys.argv[1]).st_mode & 0o7777))"
    return int(box.python(script, path).stdout, 8)


@over()
def test_point_29_write_makes_parents_overwrites_and_keeps_the_mode(box: Box, place: str) -> None:
    path = f"{place}/a/b/c"
    box.files.write(path, b"first")
    assert mode_of(box, path) == 0o644
    box.exec([*PYTHON, f"import os; os.chmod({path!r}, 0o751)"], check=True)
    box.files.write(path, b"second, longer")
    box.files.write(path, b"third")
    assert box.files.read(path) == b"third"
    assert mode_of(box, path) == 0o751
    box.files.write(path, b"x", mode=0o600)
    assert mode_of(box, path) == 0o600


@over(where=as_root)
def test_point_29_a_file_for_somebody(box: Box, place: str) -> None:
    box.files.mkdir(f"{place}/open", mode=0o777)
    box.files.write(f"{place}/open/theirs", b"x", user=4321)
    assert box.files.stat(f"{place}/open/theirs").uid == 4321


@over(where=as_user)
def test_point_29_who_is_not_root_gives_nothing_away(box: Box, place: str) -> None:
    with pytest.raises(UserUnsupportedError):
        box.files.write(f"{place}/theirs", b"x", user=4321)
    assert not box.files.exists(f"{place}/theirs")


@over()
def test_point_30_a_write_that_breaks_off_leaves_what_was_there(box: Box, place: str) -> None:
    box.files.write(f"{place}/file", b"old")
    head = (
        f"PUT /v1/files?path={place}/file HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {container.TOKEN}\r\nContent-Length: 1000000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", box.container.port), timeout=30) as sock:
        sock.sendall(head.encode() + b"x" * 500_000)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass
    assert box.files.read(f"{place}/file") == b"old"
    assert [entry.path for entry in box.files.list(place)] == [f"{place}/file"]


@over()
def test_point_30_a_wrong_digest_leaves_what_was_there(box: Box, place: str) -> None:
    box.files.write(f"{place}/file", b"old")
    wrong = hashlib.sha256(b"other").hexdigest()
    answer = box.http.put(
        "/v1/files", params={"path": f"{place}/file", "sha256": wrong}, content=b"new"
    )
    assert answer.status_code == 400
    assert box.files.read(f"{place}/file") == b"old"
    assert len(box.files.list(place)) == 1


@over_each_image()
def test_point_31_fifty_mebibytes_there_and_back(box: Box, place: str) -> None:
    data = os.urandom(MIB) * 50
    info = box.files.write(f"{place}/big", data)
    assert info.size == len(data)
    assert hashlib.sha256(box.files.read(f"{place}/big")).digest() == hashlib.sha256(data).digest()


@over()
def test_point_31_nothing_every_byte_and_what_is_no_text(box: Box, place: str) -> None:
    for data in (b"", EVERY_BYTE * 3, b"\xff\xfe\xc3", b"\0"):
        box.files.write(f"{place}/file", data)
        assert box.files.read(f"{place}/file") == data


@over()
def test_point_32_each_failure_is_its_own_and_carries_the_path(box: Box, place: str) -> None:
    box.files.write(f"{place}/file", b"x")
    with pytest.raises(PathNotFoundError, match=f"{place}/missing"):
        box.files.read(f"{place}/missing")
    with pytest.raises(IsADirectoryPathError, match=f"(?s)(?=.*{place})(?=.*directory)"):
        box.files.read(place)
    with pytest.raises(IsADirectoryPathError, match=place):
        box.files.write(place, b"x")
    for call in (box.files.read, lambda path: box.files.write(path, b"x")):
        with pytest.raises(NotADirectoryPathError, match=f"{place}/file"):
            call(f"{place}/file/below")
    with pytest.raises(PathDeniedError, match="/proc/self/mem"):
        box.files.read("/proc/self/mem")
    with pytest.raises(BadRequestError):
        box.files.read("/" + "x" * 300)


@over(where=as_user)
def test_point_33_what_the_user_may_not_the_calls_may_not(box: Box, place: str) -> None:
    with pytest.raises(PathDeniedError, match="/no-right"):
        box.files.write("/no-right", b"x")
    path = f"{place}/file"
    box.files.write(path, b"x", mode=0o444)
    box.python(f"import os; os.chmod({place!r}, 0o555)")
    with pytest.raises(PathDeniedError, match=path):
        box.files.write(path, b"y")
    with pytest.raises(PathDeniedError):
        box.files.write(f"{place}/new", b"y")
    box.python(f"import os; os.chmod({place!r}, 0o755); os.chmod({path!r}, 0)")
    with pytest.raises(PathDeniedError, match=path):
        box.files.read(path)
    assert not box.files.exists("/no-right")


@over(where=as_user)
def test_point_33_a_file_without_the_write_bit_is_not_overwritten(box: Box, place: str) -> None:
    path = f"{place}/file"
    box.files.write(path, b"x", mode=0o444)
    with pytest.raises(PathDeniedError, match=path):
        box.files.write(path, b"y")
    assert box.files.read(path) == b"x"


@over()
def test_point_33_relative_paths_start_at_the_working_directory(box: Box, place: str) -> None:
    depth = box.cell.image.workdir.strip("/").count("/") + 1 if box.cell.image.workdir != "/" else 0
    relative = "../" * depth + f"{place}/file".lstrip("/")
    box.files.write(relative, b"x")
    assert box.files.read(f"{place}/file") == b"x"
    assert box.files.read(relative) == b"x"


@pytest.mark.parametrize("name", ["debian-0", "musl-0", "readonly-0"])
def test_point_33_permissions_are_those_of_the_sandboxs_user(fresh, name: str) -> None:
    box = fresh(name)
    box.exec([*PYTHON, "import os; os.mkdir('/volume/roots', 0o700); os.mkdir('/volume/theirs')"])
    box.exec([*PYTHON, "import os; os.chown('/volume/theirs', 65534, 65534)"])
    box.files.write("/volume/roots/file", b"secret", mode=0o600)
    claim = {"claim_id": "c1", "user": "nobody"}
    assert box.http.post("/v1/claim", json=claim).status_code == 200
    assert box.python("import os; print(os.getuid())").stdout == b"65534\n"
    box.files.write("/volume/theirs/file", b"x")
    assert box.files.stat("/volume/theirs/file").uid == 65534
    with pytest.raises(PathDeniedError):
        box.files.read("/volume/roots/file")
    with pytest.raises(PathDeniedError):
        box.files.write("/volume/roots/new", b"x")


@over()
def test_point_34_text_keeps_its_line_ends_and_must_be_text(box: Box, place: str) -> None:
    box.files.write(f"{place}/text", "a\r\nb\nü\r")
    assert box.files.read_text(f"{place}/text") == "a\r\nb\nü\r"
    box.files.write(f"{place}/text", b"\xff\r\n")
    with pytest.raises(UnicodeDecodeError):
        box.files.read_text(f"{place}/text")
    assert box.files.read_text(f"{place}/text", errors="replace") == "\ufffd\r\n"


@over()
def test_point_35_a_part_of_a_file_is_cut_at_the_source(box: Box, place: str) -> None:
    box.files.write(f"{place}/file", EVERY_BYTE)
    cases = {
        "bytes=0-9": EVERY_BYTE[:10],
        "bytes=250-": EVERY_BYTE[250:],
        "bytes=-3": b"\xfd\xfe\xff",
    }
    for asked, data in cases.items():
        answer = box.http.get(
            "/v1/files", params={"path": f"{place}/file"}, headers={"Range": asked}
        )
        assert (answer.status_code, answer.content) == (206, data)


@over()
def test_point_35_a_cap_is_kept_before_anything_is_sent(box: Box, place: str) -> None:
    box.files.write(f"{place}/file", EVERY_BYTE)
    assert box.files.read(f"{place}/file", max_bytes=256) == EVERY_BYTE
    for path, most in ((f"{place}/file", 255), ("/proc/self/maps", 9)):
        with pytest.raises(TooLargeError, match=f"limit of {most} "):
            box.files.read(path, max_bytes=most)


ODD_NAMES = [
    "with two  spaces", "'quotes\"", "line\nbreak", "ünï😀", "-n", "--help", "$HOME", "a%20b", "a+b", "a&b=c",
    "#", "?", "~", "*", "\\", "tab\t", "x" * 255, "\udcff\udcfe", "."  * 3,
]  # fmt: skip


@over()
def test_point_36_odd_names(box: Box, place: str) -> None:
    for name in ODD_NAMES:
        box.files.write(f"{place}/{name}", name.encode("utf-8", "surrogateescape"))
    seen = box.python(
        "import os, sys; sys.stdout.write(ascii(sorted(os.listdir(sys.argv[1]))))", place
    )
    assert seen.stdout_text == ascii(sorted(ODD_NAMES))
    assert {entry.path for entry in box.files.list(place)} == {f"{place}/{n}" for n in ODD_NAMES}
    for name in ODD_NAMES:
        data = name.encode("utf-8", "surrogateescape")
        assert box.files.read(f"{place}//.///{name}") == data
        box.files.delete(f"{place}/{name}")
    assert box.files.list(place) == []


@over()
def test_point_36_links_and_files_whose_size_the_kernel_does_not_know(box: Box, place: str) -> None:
    box.files.write(f"{place}/file", b"data")
    box.python(f"import os; os.symlink('file', {place + '/link'!r})")
    assert box.files.read(f"{place}/link") == b"data"
    box.files.write(f"{place}/link", b"through")
    assert box.files.read(f"{place}/file") == b"through"
    assert box.files.stat(f"{place}/link").type == "symlink"
    assert b"VmHWM" in box.files.read("/proc/self/status")
    assert box.files.read("/etc/hosts") == b"127.0.0.1\tlocalhost\n"


@over(where=as_root)
def test_point_36_a_file_that_is_bound_into_the_container_is_overwritten(box: Box) -> None:
    old = box.files.read("/etc/hosts")
    try:
        box.files.write("/etc/hosts", b"10.0.0.1 other\n")
        assert box.python("print(open('/etc/hosts').read(), end='')").stdout == b"10.0.0.1 other\n"
    finally:
        box.files.write("/etc/hosts", old)


@over()
def test_point_37_a_directory_there_and_back_without_tar(box: Box, place: str, tmp_path) -> None:
    here = tmp_path / "here"
    (here / "empty").mkdir(parents=True)
    (here / "deep/er").mkdir(parents=True)
    (here / "deep/er/run").write_bytes(EVERY_BYTE)
    (here / "deep/er/run").chmod(0o755)
    (here / "deep/secret").write_bytes(b"")
    (here / "deep/secret").chmod(0o600)
    (here / "link").symlink_to("deep/er/run")
    os.mkfifo(here / "fifo")
    sent = box.files.upload_dir(here, f"{place}/there")
    assert [path for path, _ in sent.skipped] == ["fifo"]
    box.python(f"import os; os.mkfifo({place + '/there/another'!r})")
    got = box.files.download_dir(f"{place}/there", tmp_path / "back")
    assert [path for path, _ in got.skipped] == ["another"]
    assert _tree(tmp_path / "back") == _tree(here) - {("fifo", "other")}


def _tree(root) -> set[tuple[object, ...]]:
    found: set[tuple[object, ...]] = set()
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found.add((name, "link", str(path.readlink())))
        elif path.is_dir():
            found.add((name, "directory", path.stat().st_mode))
        elif path.is_file():
            found.add((name, "file", path.stat().st_mode, path.read_bytes()))
        else:
            found.add((name, "other"))
    return found


@over()
def test_point_37_nothing_leaves_the_target_here(box: Box, place: str, tmp_path) -> None:
    script = (
        "import os, sys; os.chdir(sys.argv[1]); os.symlink('/etc', 'out'); os.symlink('../..', 'up');"
        "open('good', 'w').close()"
    )
    box.python(script, place)
    box.files.download_dir(place, tmp_path / "back")
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["good"]


@over()
def test_point_38_list_stat_exists_move_remove_mkdir(box: Box, place: str) -> None:
    made = box.files.mkdir(f"{place}/a/b", parents=True)
    assert made.type == "directory"
    box.files.write(f"{place}/a/b/file", b"12345")
    info = box.files.stat(f"{place}/a/b/file")
    assert (info.type, info.size, info.uid) == ("file", 5, box.cell.uid)
    assert [e.path[len(place) :] for e in box.files.list(place)] == ["/a"]
    assert [e.path[len(place) :] for e in box.files.list(place, depth=3)] == [
        "/a", "/a/b", "/a/b/file",
    ]  # fmt: skip
    box.files.write(f"{place}/other", b"")
    with pytest.raises(ConflictError):
        box.files.move(f"{place}/a/b/file", f"{place}/other")
    box.files.move(f"{place}/a/b/file", f"{place}/other", replace=True)
    assert box.files.read(f"{place}/other") == b"12345"
    assert not box.files.exists(f"{place}/a/b/file")
    with pytest.raises(IsADirectoryPathError, match="not empty"):
        box.files.delete(f"{place}/a")
    box.files.delete(f"{place}/a", recursive=True)
    assert not box.files.exists(f"{place}/a")
    with pytest.raises(PathNotFoundError):
        box.files.delete(f"{place}/a")


@over()
def test_point_39_files_move_while_a_command_runs(box: Box, place: str) -> None:
    process = box.sandbox.start([*PYTHON, "import time; time.sleep(600)"])
    faults: list[Exception] = []

    def work(number: int) -> None:
        try:
            for turn in range(5):
                path = f"{place}/{number}"
                data = f"{number} {turn} ".encode() * 1000
                box.files.write(path, data)
                assert box.files.read(path) == data
        except Exception as error:  # noqa: BLE001 - told by the test's own thread
            faults.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert process.refresh().state == "running"
    process.kill()
    process.wait()


@over()
def test_point_39_a_hundred_small_files_in_one_call(box: Box, place: str, tmp_path) -> None:
    for number in range(100):
        (tmp_path / f"{number}.txt").write_text(str(number))
    box.files.upload_dir(tmp_path, f"{place}/many")
    script = "import os, sys; print(sum(int(open(sys.argv[1] + '/' + n).read()) for n in os.listdir(sys.argv[1])))"
    assert box.python(script, f"{place}/many").stdout == b"4950\n"
