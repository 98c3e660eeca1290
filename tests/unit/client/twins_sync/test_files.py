# Written by scripts/unasync.py from tests/unit/client/twins_async/test_files.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Files: every byte, both ways, one at a time."""

from __future__ import annotations

import hashlib
import io
import os
import tracemalloc

import pytest

from sandman import errors
from sandman.sync import Client, FileInfo
from tests.unit.client.fake_gateway import TOKEN, FakeGateway, answer, cut, drop, drop_after

ALL = bytes(range(256))


def test_bytes_there_and_back(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        for data in (ALL * 4000, b"", b"a\r\n\0"):
            digest = hashlib.sha256(data).hexdigest()
            info = box.files.write("new/dir/f", data)
            assert info == FileInfo("new/dir/f", len(data), digest, 0o644)
            assert gateway.requests[-1].query["sha256"] == digest
            assert gateway.requests[-1].headers["content-length"] == str(len(data))
            assert box.files.read("new/dir/f") == data
        box.files.write("t", "häl\r\n")
        assert box.files.read_text("t") == "häl\r\n"
        box.files.write("t", b"\xff")
        assert box.files.read_text("t", errors="replace") == "\ufffd"
        with pytest.raises(UnicodeDecodeError):
            box.files.read_text("t")


def test_sources_of_all_kinds(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        file = io.BytesIO(b"xx" + ALL * 2000)
        file.seek(2)
        for given in (file, [ALL * 1000, b"", ALL * 1000], bytearray(ALL * 2000)):
            box.files.write("f", given)
            assert box.files.read("f") == ALL * 2000
        pipe = type("Pipe", (), {"read": io.BytesIO(ALL * 2000).read})()
        box.files.write("f", pipe)
        assert box.files.read("f") == ALL * 2000
        with pytest.raises(TypeError, match="binary mode"):
            box.files.write("f", ["text"])  # type: ignore[list-item]


def test_modes(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        assert (box.files.write("f", b"", mode=0o4755)).mode == 0o4755
        assert gateway.requests[-1].query["mode"] == "4755"
        assert (box.files.write("f", b"x")).mode == 0o4755


def test_no_more_is_read_than_was_asked_for(gateway: FakeGateway, tmp_path) -> None:
    """Told to the sandbox, and kept here, too: this gateway does not listen."""
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        box.files.write("f", ALL * 4)
        assert box.files.read("f", max_bytes=1024) == ALL * 4
        assert gateway.requests[-1].query["max_bytes"] == "1024"
        for call in (box.files.read, box.files.read_text):
            with pytest.raises(errors.TooLargeError, match="limit of 1023") as caught:
                call("f", max_bytes=1023)
            assert (caught.value.sandbox, caught.value.facts) == (box.id, {"limit": 1023})
        with pytest.raises(errors.TooLargeError):
            box.files.download("f", tmp_path / "f", max_bytes=1023)
        assert list(tmp_path.iterdir()) == []
        assert box.files.read("f", max_bytes=None) == ALL * 4
        assert "max_bytes" not in gateway.requests[-1].query
        parts = b""
        with box.files.stream("f") as chunks:
            for chunk in chunks:
                parts += chunk
        assert (parts, chunks.mode) == (ALL * 4, 0o644)


def test_a_local_name_may_be_as_long_as_any(gateway: FakeGateway, tmp_path) -> None:
    local = tmp_path / ("n" * 255)
    local.write_bytes(b"x")
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        box.files.upload(local, local.name)
        box.files.write("holes", bytes(1024 * 1024))
        box.files.download(local.name, local)
        box.files.download("holes", tmp_path / "holes")
    assert local.read_bytes() == b"x"
    assert (tmp_path / "holes").stat().st_size == 1024 * 1024
    assert (tmp_path / "holes").stat().st_blocks == 0


def test_odd_names(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        for name in (
            "a b",
            "-x",
            "ü",
            "a%2Fb",
            "a+b&mode=1#?",
            "new\nline",
            os.fsdecode(b"\xff"),
            "'\"",
        ):
            box.files.write(name, name.encode("utf-8", "surrogateescape"))
            assert os.fsencode(name) == box.files.read(name)
            assert gateway.requests[-1].query["path"] == name


def test_there_or_not(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        box.files.write("d/f", b"x" * 500_000)
        assert box.files.exists("d/f")
        assert box.files.exists("d")
        assert not box.files.exists("d/g")
        assert not box.files.exists("d/f/g")
        box.files.delete("d/f")
        assert not box.files.exists("d/f")
        with pytest.raises(errors.PathNotFoundError, match="d/f"):
            box.files.delete("d/f")
        with pytest.raises(errors.IsADirectoryPathError):
            box.files.read("d")
        with pytest.raises(errors.NotFoundError):
            client.attach("gone").files.exists("f")


def test_existence_that_changes_between_two_looks(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        box.files.write("f", b"x")
        gateway.plan("HEAD", answer(404))
        assert box.files.exists("f")


def test_upload_and_download(gateway: FakeGateway, tmp_path) -> None:
    local = tmp_path / "script"
    local.write_bytes(ALL * 3000)
    local.chmod(0o755)
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        info = box.files.upload(local, "bin/script")
        assert (info.mode, info.size) == (0o755, 768_000)
        assert gateway.requests[-1].headers["content-length"] == "768000"
        assert (box.files.upload(local, "bin/plain", mode=0o600)).mode == 0o600
        box.files.download("bin/script", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == ALL * 3000
        assert (tmp_path / "back").stat().st_mode & 0o777 == 0o755
        with pytest.raises(errors.PathNotFoundError):
            box.files.download("nope", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == ALL * 3000
        with pytest.raises(FileNotFoundError):
            box.files.upload(tmp_path / "nope", "x")
        with pytest.raises(FileNotFoundError) as caught:
            box.files.download("bin/script", tmp_path / "no" / "x")
        assert caught.value.filename == str(tmp_path / "no" / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "script"]


def test_a_download_that_breaks_off_leaves_nothing(gateway: FakeGateway, tmp_path) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        gateway.plan("GET", cut)
        with pytest.raises(errors.UnreachableError):
            box.files.download("f", tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_shrinks_is_not_sent(gateway: FakeGateway, tmp_path, monkeypatch) -> None:
    local = tmp_path / "f"
    local.write_bytes(b"12345")
    real = os.fstat

    def longer(descriptor: int) -> os.stat_result:
        status = list(real(descriptor))
        status[6] = 9
        return os.stat_result(status)

    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        monkeypatch.setattr("sandman._core.local_files.os.fstat", longer)
        with pytest.raises(OSError, match="shrank while it was sent: 5 of 9"):
            box.files.upload(local, "f")
        monkeypatch.undo()
        assert not box.files.exists("f")


def test_what_can_be_sent_again_is(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        for given in (b"data", io.BytesIO(b"data")):
            gateway.plan("PUT", drop, drop_after)
            box.files.write("f", given)
            assert box.files.read("f") == b"data"
        gateway.plan("PUT", drop)
        with pytest.raises(errors.OutcomeUnknownError):
            box.files.write("f", iter([b"da", b"ta"]))
        gateway.plan("GET", drop)
        assert box.files.read("f") == b"data"
        gateway.plan("DELETE", drop_after)
        with pytest.raises(errors.OutcomeUnknownError):
            box.files.delete("f")


def test_other_bytes_on_arrival_are_an_error(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        told = b'{"path": "f", "size": 1, "sha256": "00", "mode": 420}'
        gateway.plan("PUT", answer(200, told, content_type="application/json"))
        with pytest.raises(errors.InternalError, match="other bytes arrived"):
            box.files.write("f", b"x")
        gateway.plan("PUT", answer(200, b"3", content_type="application/json"))
        with pytest.raises(errors.InternalError, match="not a file"):
            box.files.write("f", b"x")


def test_50_mib_without_copies(gateway: FakeGateway) -> None:
    data = os.urandom(1024 * 1024) * 50
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        box.files.write("big", data)
        tracemalloc.start()
        try:
            back = box.files.read("big")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert back == data
    # The fake reads the file in this process too: 50 MiB of its own, and 50 while it sends.
    assert peak < 250 * 1024 * 1024
