# Written by scripts/unasync.py from tests/unit/client/twins_async/test_trees.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Directories: told, changed, and copied whole, also from a sandbox that lies."""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from sandman import errors, names, tar
from sandman._core import local_trees
from sandman.sync import Client, EntryInfo, TreeInfo
from tests.unit.client.fake_gateway import TOKEN, Action, FakeGateway, answer, cut, drop

ODD = os.fsdecode(b"\xff \n'\"")


def test_what_there_is(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        box.files.write("d/f", b"12345", mode=0o751)
        found = box.files.stat("d/f")
        assert isinstance(found, EntryInfo)
        assert (found.type, found.size, found.mode, found.target) == ("file", 5, 0o751, None)
        assert (found.uid, found.gid) == (os.getuid(), os.getgid())
        box.files.stat("d", follow=True)
        assert gateway.requests[-1].query == {"path": "d", "follow": "1"}
        assert [Path(e.path).name for e in box.files.list(".")] == ["d"]
        assert [Path(e.path).name for e in box.files.list(".", depth=2)] == ["d", "f"]
        with pytest.raises(errors.PathNotFoundError):
            box.files.stat("no")


def test_changes_that_carry_no_bytes(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        made = box.files.mkdir("d", mode=0o700)
        assert (made.type, made.mode) == ("directory", 0o700)
        with pytest.raises(errors.ConflictError):
            box.files.mkdir("d")
        box.files.mkdir("d/e", parents=True)
        box.files.write("f", b"x")
        moved = box.files.move("f", f"d/{ODD}")
        assert moved.path.endswith(ODD)
        box.files.write("f", b"y")
        with pytest.raises(errors.ConflictError):
            box.files.move("f", f"d/{ODD}")
        box.files.move("f", f"d/{ODD}", replace=True)
        box.files.delete("d", recursive=True)
        assert not box.files.exists("d")


def test_an_owner_is_asked_for(gateway: FakeGateway, tmp_path) -> None:
    (tmp_path / "f").touch()
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        box.files.write("f", b"", user="a b")
        assert gateway.requests[-1].query["user"] == "a b"
        box.files.upload(tmp_path / "f", "f", user=0)
        assert gateway.requests[-1].query["user"] == "0"
        box.files.upload_dir(tmp_path, "d", user="agent")
        assert gateway.requests[-1].query == {"path": "d", "user": "agent"}
        box.files.write("f", b"")
        assert "user" not in gateway.requests[-1].query
        for call in (
            lambda: box.files.read("f", user=7), lambda: box.files.read_text("f", user=7),
            lambda: box.files.download("f", tmp_path / "g", user=7),
            lambda: box.files.download_dir("d", tmp_path / "e", user=7), lambda: box.files.stat("f", user=7),
            lambda: box.files.list("d", user=7), lambda: box.files.exists("f", user=7),
            lambda: box.files.exists("no", user=7), lambda: box.files.delete("f", user=7),
        ):  # fmt: skip
            call()
            assert gateway.requests[-1].query["user"] == "7"
        box.files.mkdir("m", user=7)
        assert json.loads(gateway.requests[-1].body)["user"] == 7
        box.files.move("m", "n", user="agent")
        assert json.loads(gateway.requests[-1].body)["user"] == "agent"


def test_answers_that_make_no_sense(gateway: FakeGateway, tmp_path) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        for document in ([], {}, {"mode": "x"}, None):
            gateway.plan("GET", says(document))
            with pytest.raises(errors.InternalError):
                box.files.stat("f")
            gateway.plan("GET", says(document))
            with pytest.raises(errors.InternalError):
                box.files.list("f")
            gateway.plan("PUT", says(document))
            with pytest.raises(errors.InternalError):
                box.files.upload_dir(tmp_path, "f")


def says(document: object) -> Action:
    return lambda _, connection, __: connection.json(200, document)


def make_tree(root: Path) -> None:
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "sub" / "large").write_bytes(os.urandom(1_000_001))
    (root / "script").write_text("#!/bin/sh")
    (root / "script").chmod(0o755)
    (root / ODD).write_text("odd")
    (root / "link").symlink_to("sub/large")
    (root / "sub").chmod(0o700)
    os.mkfifo(root / "fifo")
    root.chmod(0o750)


def snapshot(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        content = path.read_bytes() if path.is_file() else b""
        if not stat.S_ISFIFO(mode):
            found[str(path.relative_to(root))] = (mode, content)
    return found


def test_a_directory_there_and_back(gateway: FakeGateway, tmp_path) -> None:
    local = tmp_path / "local"
    make_tree(local)
    done: list[tuple[int, int | None]] = []
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        sent = box.files.upload_dir(local, "there", progress=lambda *a: done.append(a))
        assert sent == TreeInfo(6, 1_000_013, (("f", "fifo"),), 1)
        assert gateway.requests[-1].headers["content-type"] == names.MEDIA_TAR
        assert done == sorted(done)
        assert done[-1] == (len(gateway.requests[-1].body), None)
        done.clear()
        got = box.files.download_dir("there", tmp_path / "new" / "back", progress=lambda *a: done.append(a))  # fmt: skip
        assert (got.members, got.bytes) == (6, 1_000_013)
        assert snapshot(tmp_path / "new" / "back") == snapshot(local)
        assert stat.S_IMODE((tmp_path / "new" / "back").stat().st_mode) == 0o750
        assert done[-1][0] == done[-1][1]
        box.files.download_dir("there", tmp_path / "new" / "back")
        assert snapshot(tmp_path / "new" / "back") == snapshot(local)
        with pytest.raises(errors.PathNotFoundError):
            box.files.download_dir("no", tmp_path / "no")
        assert not (tmp_path / "no").exists()
        for path, wanted in (("script", NotADirectoryError), ("no", FileNotFoundError)):
            with pytest.raises(wanted):
                box.files.upload_dir(local / path, "x")
        with pytest.raises(FileExistsError):
            box.files.download_dir("there", local / "script")


def test_an_upload_of_a_directory_is_repeated_from_its_start(
    gateway: FakeGateway, tmp_path
) -> None:
    make_tree(tmp_path / "local")
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        gateway.plan("PUT", drop)
        assert (box.files.upload_dir(tmp_path / "local", "there")).members == 6


def test_a_directory_that_breaks_off_leaves_no_half_file(gateway: FakeGateway, tmp_path) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        gateway.plan("GET", cut)
        with pytest.raises(errors.UnreachableError):
            box.files.download_dir("d", tmp_path / "d")
        half = made(tar.Member(b"a", size=1), b"x", tar.Member(b"b", size=5000), b"x" * 5000)[:3000]
        gateway.plan("GET", answer(200, half))
        with pytest.raises(errors.InternalError, match="without its end mark") as caught:
            box.files.download_dir("d", tmp_path / "d")
        assert caught.value.facts["members"] == 1
        assert caught.value.sandbox == box.id
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["a"]


def made(*members: tar.Member | bytes) -> bytes:
    parts = []
    for member in members:
        if isinstance(member, bytes):
            parts += [member, bytes(tar.padding(len(member)))]
        else:
            parts.append(tar.encode(member))
    return b"".join(parts) + tar.END


REFUSED = [
    (tar.Member(b"/abs"),),
    (tar.Member(b"../up"),),
    (tar.Member(b"a/../../up"),),
    (tar.Member(b"l", tar.SYMLINK, link=b"sub"), tar.Member(b"sub", tar.DIRECTORY), tar.Member(b"l/x")),
    (tar.Member(b"h", tar.HARDLINK, link=b"../secret"),),
    (tar.Member(b"h", tar.HARDLINK, link=b"/etc/passwd"),),
    (tar.Member(b"d/" * 300),),
]  # fmt: skip


def test_a_hostile_sandbox_writes_nothing_outside(gateway: FakeGateway, tmp_path) -> None:
    (tmp_path / "secret").write_text("secret")
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        for members in REFUSED:
            gateway.plan("GET", answer(200, made(*members)))
            with pytest.raises(errors.PathDeniedError) as caught:
                box.files.download_dir("d", tmp_path / "in")
            assert (caught.value.cause, caught.value.sandbox) == (errors.SANDBOX, box.id)
        gateway.plan("GET", answer(200, b"junk" * 1000))
        with pytest.raises(errors.InternalError, match="no tar"):
            box.files.download_dir("d", tmp_path / "in")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "secret"]


def test_a_hostile_sandbox_gets_links_devices_and_set_uid_skipped(
    gateway: FakeGateway, tmp_path
) -> None:
    data = made(
        tar.Member(b"abs", tar.SYMLINK, link=b"/etc/passwd"), tar.Member(b"up", tar.SYMLINK, link=b"../x"),
        tar.Member(b"dev", tar.CHARACTER), tar.Member(b"disk", tar.BLOCK_DEVICE),
        tar.Member(b"suid", mode=0o6755), tar.Member(b"inside", tar.SYMLINK, link=b"suid"),
        tar.Member(b"deep/l", tar.SYMLINK, link=b"../suid"), tar.Member(b"h", tar.HARDLINK, link=b"deep/l"),
    )  # fmt: skip
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        gateway.plan("GET", answer(200, data))
        info = box.files.download_dir("d", tmp_path / "in")
    assert [name for name, _ in info.skipped] == ["abs", "up", "dev", "disk", "h"]
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == ["deep", "inside", "suid"]
    assert stat.S_IMODE((tmp_path / "in" / "suid").stat().st_mode) == 0o755


def test_a_hostile_sandbox_does_not_fill_the_disk(gateway: FakeGateway, tmp_path) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        huge = made(tar.Member(b"huge", size=2**50))
        many = made(*(tar.Member(b"%d" % number) for number in range(100)))
        for data, limit in ((huge, local_trees.MAX_BYTES), (many, 10_000)):
            gateway.plan("GET", answer(200, data))
            with pytest.raises(errors.TooLargeError):
                box.files.download_dir("d", tmp_path / "in", max_bytes=limit)
        gateway.plan("GET", answer(200, many))
        assert (box.files.download_dir("d", tmp_path / "x", max_bytes=None)).members == 100


def test_what_the_local_file_system_refuses(gateway: FakeGateway, tmp_path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("n" * 256))
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        gateway.plan("GET", answer(200, stream.getvalue()))
        with pytest.raises(OSError, match="name too long") as caught:
            box.files.download_dir("d", tmp_path / "in")
    assert caught.value.filename == "n" * 256


def test_a_local_file_that_shrinks_is_filled_up(tmp_path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 1_000_000)
    sender = local_trees.Sender(tmp_path)
    sender.open()
    data = sender.read()
    os.truncate(tmp_path / "f", 500_000)
    while piece := sender.read():
        data += piece
    sender.close()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert archive.getmember("f").size == 1_000_000
        assert "became shorter" in archive.getmembers()[-1].pax_headers[tar.SKIPPED]


def test_nothing_is_read_or_written_before_it_is_open(tmp_path) -> None:
    assert local_trees.Sender(tmp_path).read() == b""
    with pytest.raises(RuntimeError):
        local_trees.Receiver(tmp_path, None, "box").feed(b"")
