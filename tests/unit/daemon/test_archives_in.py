"""`/v1/archive`: what is unpacked, and the hostile on the way in."""

from __future__ import annotations

import gzip
import itertools
import os
import random
import socket
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from daemon.archives import _plain
from sandman import descent, errors, tar, unpack
from tests.unit.daemon.harness import Daemon, head, names_in, problem, read_all
from tests.unit.daemon.tars import MIB, get, made, put, snapshot
from tests.unit.daemon.test_files import needs_root

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize("piece", [1, 7, 4096])
def test_37_gzip_of_several_members_is_one_tar(daemon: Daemon, tmp_path: Path, piece: int) -> None:
    """As pigz, bgzip and lazily pulled images have it (RFC 1952 2.2)."""
    content = os.urandom(3000)
    whole = made(tar.Member(b"file", size=len(content)), content)
    cuts = [0, 100, 100, 512, 2000, len(whole)]
    data = b"".join(gzip.compress(whole[a:b]) for a, b in itertools.pairwise(cuts)) + b"\0" * 512
    pieces = (data[n : n + piece] for n in range(0, len(data), piece))
    answer = put(daemon, tmp_path / "out", pieces)
    assert answer.status_code == 200, answer.text
    assert (tmp_path / "out" / "file").read_bytes() == content
    cut = put(
        daemon, tmp_path / "cut", gzip.compress(whole[:512]) + gzip.compress(whole[512:])[:-9]
    )
    assert problem(cut)["detail"] == "the gzipped tar is cut short"
