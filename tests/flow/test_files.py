"""Files and directories from the client through the real gateway to the real daemon: points 36 to 38."""

from __future__ import annotations

import os
import shutil
from urllib.parse import quote

import pytest

from sandman import errors
from sandman.client import Client
from tests.unit.client.twins_async.test_trees import ODD, make_tree, snapshot

# httpx leaves the generators of a body that is not read to its end to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")


async def test_37_a_directory_there_and_back(bed, tmp_path):
    made = await bed.allocate()
    local, there = tmp_path / "local", tmp_path / "there"
    make_tree(local)
    async with Client(bed.url, made["token"], ca=bed.trust) as client:
        files = client.attach(made["id"]).files
        sent = await files.upload_dir(local, there)
        assert (sent.members, sent.bytes, sent.skipped) == (6, 1_000_013, (("fifo", "fifo"),))
        assert snapshot(there) == snapshot(local)
        os.mkfifo(there / ODD.replace(" ", "x"))
        (there / "out").symlink_to("/etc/passwd")
        got = await files.download_dir(there, tmp_path / "back")
        assert sorted(got.skipped) == [
            ("out", "link out of the directory"), (ODD.replace(" ", "x"), "fifo"),
        ]  # fmt: skip
        assert snapshot(tmp_path / "back") == snapshot(local)
        with pytest.raises(errors.TooLargeError):
            await files.download_dir(there, tmp_path / "more", max_bytes=100_000)
        with pytest.raises(errors.NotADirectoryPathError):
            await files.download_dir(there / "script", tmp_path / "more")
        # Each of these left the connection, and the daemon, in order.
        assert (await files.stat(there)).type == "directory"


async def test_38_what_there_is_and_what_is_made_of_it(bed, tmp_path):
    made = await bed.allocate()
    async with Client(bed.url, made["token"], ca=bed.trust) as client:
        files = client.attach(made["id"]).files
        root = tmp_path / ODD
        await files.mkdir(root / "a" / "b", parents=True, mode=0o700)
        await files.write(root / "f", b"12345")
        await files.move(root / "f", root / "a" / "g+%20")
        listed = await files.list(root, depth=3)
        assert [entry.path for entry in listed] == [
            str(root / "a"), str(root / "a" / "b"), str(root / "a" / "g+%20"),
        ]  # fmt: skip
        assert [entry.type for entry in listed] == ["directory", "directory", "file"]
        (root / "link").symlink_to(ODD)
        found = await files.stat(root / "link")
        assert (found.type, found.target) == ("symlink", ODD)
        with pytest.raises(errors.PathNotFoundError):
            await files.stat(root / "link", follow=True)
        with pytest.raises(errors.ConflictError):
            await files.move(root / "link", root / "a")
        with pytest.raises(errors.IsADirectoryPathError):
            await files.delete(root)
        await files.delete(root, recursive=True)
        assert not await files.exists(root)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as others")
async def test_33_a_file_and_a_directory_as_somebody(bed, tmp_path):
    made = await bed.allocate()
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "f").touch()
    async with Client(bed.url, made["token"], ca=bed.trust) as client:
        files = client.attach(made["id"]).files
        with pytest.raises(errors.PathDeniedError):  # pytest keeps its directories to itself
            await files.write(tmp_path / "f", b"", user=1234)
        top = await files.mkdir(f"/tmp/flow-{os.getpid()}", user=1234)
        try:
            await files.write(f"{top.path}/f", b"f", user=1234, mode=0o600)
            found = await files.stat(f"{top.path}/f", user=1234)
            assert (found.uid, found.mode) == (1234, 0o600)
            with pytest.raises(errors.PathDeniedError):
                await files.read(f"{top.path}/f", user=4321)
            assert await files.read(f"{top.path}/f", user="root") == b"f"
            await files.upload_dir(tmp_path / "local", f"{top.path}/d", user="1234")
            await files.move(f"{top.path}/d", f"{top.path}/e", user=1234)
            assert [e.uid for e in await files.list(top.path, depth=2, user=1234)] == [1234] * 3
            with pytest.raises(errors.UserUnsupportedError):
                await files.write(f"{top.path}/f", b"", user="no-such-user")
            with pytest.raises(errors.PathDeniedError):
                await files.delete(top.path, recursive=True, user=4321)
            await files.delete(top.path, recursive=True, user=1234)
        finally:
            shutil.rmtree(top.path, ignore_errors=True)


async def test_36_any_bytes_in_a_name_and_none_in_a_path(bed, tmp_path):
    """In the query `%ff` is a byte of a name; in the path of a call it is a fault of the caller's."""
    made = await bed.allocate()
    base = f"/v1/sandboxes/{made['id']}"
    name = os.fsencode(tmp_path) + b"/%25 \xff\n+&"
    quoted = quote(name, safe="")
    answer = await bed.client.put(
        f"{base}/files?path={quoted}", content=b"x", headers=bed.as_("acme")
    )
    assert answer.status_code == 200, answer.text
    assert [os.fsencode(path) for path in tmp_path.iterdir()] == [name]
    async with Client(bed.url, made["token"], ca=bed.trust) as client:
        files = client.attach(made["id"]).files
        assert await files.read(os.fsdecode(name)) == b"x"
        (found,) = await files.list(tmp_path)
        assert os.fsencode(found.path) == name
        long = tmp_path / ("n" * 255)
        await files.write(long, b"y")
        assert await files.read(long) == b"y"
    for path, reason in (
        (f"{base}/files%ff?path=x", "bad_request"),
        (f"{base}/processes/%ff", "bad_request"),
        ("/v1/sandboxes/%ff/files?path=x", "bad_request"),
        (f"{base}/files?path=%f", "bad_request"),
        (f"{base}/files?path=%zz", "bad_request"),
        (f"{base}/files?path=x&user=%ff", "user_unsupported"),
        (f"{base}/files?path=x&%ff=1", "bad_request"),
    ):
        answer = await bed.client.get(path, headers=bed.as_("acme"))
        assert answer.headers.get("content-type") == "application/problem+json", (path, answer)
        assert answer.json()["reason"] == reason, (path, answer.text)


async def test_only_exact_paths_are_forwarded(bed):
    made = await bed.allocate()
    for tail in ("files/other", "files/stat/x", "archive/x", "files//stat", "claim"):
        answer = await bed.client.get(
            f"/v1/sandboxes/{made['id']}/{tail}", params={"path": "/"}, headers=bed.as_("acme")
        )
        assert answer.status_code == 404, tail
    for tail in ("files/stat", "files/list", "archive"):
        answer = await bed.client.post(
            f"/v1/sandboxes/{made['id']}/{tail}", headers=bed.as_("acme")
        )
        assert answer.status_code == 405, tail


async def test_30_a_condition_that_the_daemon_does_not_heed_is_refused_there(bed, tmp_path):
    """Were it left out on the way, half a file would be written over a whole one."""
    made = await bed.allocate()
    (tmp_path / "file").write_bytes(b"0123456789")
    url, path = f"/v1/sandboxes/{made['id']}/files", {"path": str(tmp_path / "file")}
    for name, value in (("Content-Range", "bytes 2-3/10"), ("If-None-Match", "*")):
        headers = {**bed.as_("acme"), name: value}
        answer = await bed.client.put(url, params=path, content=b"XY", headers=headers)
        assert (answer.status_code, answer.json()["field"]) == (400, name.lower())
    headers = {**bed.as_("acme"), "Range": "bytes=2-3", "If-Range": '"x"'}
    answer = await bed.client.get(url, params=path, headers=headers)
    assert (answer.status_code, answer.content) == (200, b"0123456789")
