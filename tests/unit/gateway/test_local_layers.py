"""Layers into a directory: what images do, and what hostile ones try."""

from __future__ import annotations

import gzip
import os
import stat
import sys

import pytest

from gateway.provider.local import inflate
from gateway.provider.local.directories import Directories
from gateway.provider.local.inflate import plain
from gateway.provider.local.layers import Budget, apply, checked
from gateway.provider.local.trees import remove_tree
from sandman import tar
from sandman.errors import BadRequestError, PathDeniedError, TooLargeError
from tests.fakes.oci import digest, directory, entry, file, layer, link
from tests.fakes.rights import without_rights

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def tree(top) -> dict[str, str]:
    """Every file's content, every link's target, by name."""
    return {
        str(path.relative_to(top)): str(path.readlink())
        if path.is_symlink()
        else ("/" if path.is_dir() else path.read_text())
        for path in sorted(top.rglob("*"))
    }


def unpack(top, *layers: bytes, **limits) -> dict[str, str]:
    budget, directories = Budget(**limits), Directories()
    for one in layers:
        apply([one], top, budget, directories)
    directories.settle(top)
    return tree(top)


def test_layers_lie_over_each_other(tmp_path):
    first = layer(
        directory("etc"), file("etc/a", b"1"), file("etc/b", b"1"), link("lib", "usr/lib")
    )
    second = layer(file("etc/b", b"2"), file("etc/c", b"2"))
    assert unpack(tmp_path, first, second) == {
        "etc": "/", "etc/a": "1", "etc/b": "2", "etc/c": "2", "lib": "usr/lib",
    }  # fmt: skip


def test_whiteouts_take_away_what_lies_below_and_nothing_of_their_own_layer(tmp_path):
    first = layer(
        directory("d"), file("d/old", b"1"), directory("d/sub"), file("d/sub/x"), file("e", b"1")
    )
    second = layer(
        directory("d"), file("d/new", b"2"), file("d/.wh..wh..opq"), file(".wh.e"), file(".wh.never"),
        file("gone/.wh.x"), file("gone/.wh..wh..opq"),
    )  # fmt: skip
    assert unpack(tmp_path, first, second) == {"d": "/", "d/new": "2"}


@pytest.mark.parametrize("name", [".wh...", ".wh..", ".wh."])
def test_a_whiteout_of_no_name_takes_nothing_away(tmp_path, name):
    (tmp_path / "beside").write_text("x")
    top = tmp_path / "top"
    top.mkdir()
    assert unpack(top, layer(file("d/a", b"1"), file(f"d/{name}"))) == {"d": "/", "d/a": "1"}
    assert (tmp_path / "beside").exists()


def test_what_is_of_another_kind_takes_the_place(tmp_path):
    first = layer(file("a/b/c", b"1"), file("f", b"1"), link("l", "a"), file("g", b"1"))
    second = layer(
        file("a", b"2"), directory("f"), directory("l"), file("l/x", b"2"), link("g", "f")
    )
    assert unpack(tmp_path, first, second) == {"a": "2", "f": "/", "l": "/", "l/x": "2", "g": "f"}


def test_a_file_below_what_was_a_file(tmp_path):
    assert unpack(tmp_path, layer(file("a", b"1")), layer(file("a/b/c", b"2"))) == {
        "a": "/", "a/b": "/", "a/b/c": "2",
    }  # fmt: skip


@pytest.mark.parametrize("target", ["/run", "../run", "../../../run", "/../run", "loop/../../run"])
def test_links_above_a_member_are_followed_in_the_images_root(tmp_path, target):
    first = layer(
        directory("run"), directory("var"), directory("var/loop"), link("var/run", target)
    )
    found = unpack(tmp_path, first, layer(file("var/run/x", b"2"), file(".wh.nothing")))
    assert found["run/x"] == "2"


def test_links_that_lead_nowhere_are_no_way(tmp_path):
    with pytest.raises(BadRequestError, match="links without an end"):
        unpack(tmp_path, layer(link("a", "b"), link("b", "a"), file("a/x")))


@pytest.mark.parametrize("name", ["../x", "a/../../x"])
def test_a_name_that_leaves_is_refused(tmp_path, name):
    top = tmp_path / "top"
    top.mkdir()
    with pytest.raises(PathDeniedError):
        unpack(top, layer(file(name, b"x")))
    assert [*tmp_path.iterdir()] == [top]


def test_an_absolute_name_is_the_images(tmp_path):
    assert unpack(tmp_path, layer(file("/etc/x", b"1"))) == {"etc": "/", "etc/x": "1"}


def test_through_no_link_does_anything_lie_outside(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    top = tmp_path / "top"
    top.mkdir()
    unpack(
        top,
        layer(link("out", str(outside)), file("out/x", b"1"), file("out/.wh.secret")),
        layer(file("out/.wh..wh..opq"), directory("out/sub", mode=0o777)),
    )
    assert tree(outside) == {"secret": "s"}
    with pytest.raises(PathDeniedError):
        unpack(top, layer(link("hard", "../outside/secret", tar.HARDLINK)))
    assert not (top / "hard").exists()


def test_a_hard_link_through_a_link_is_the_images_file(tmp_path):
    (tmp_path / "passwd").write_text("outside")
    top = tmp_path / "top"
    top.mkdir()
    found = unpack(
        top,
        layer(
            file("etc/passwd", b"inside"), link("e", "/etc"), link("copy", "e/passwd", tar.HARDLINK)
        ),
    )
    assert found["copy"] == "inside"


def test_devices_and_pipes_are_left_out(tmp_path):
    kinds = (tar.CHARACTER, tar.BLOCK_DEVICE, tar.FIFO)
    members = [entry(f"dev/{kind.decode()}", kind) for kind in kinds]
    assert unpack(tmp_path, layer(*members)) == {"dev": "/"}


def test_modes_and_owners_are_the_images(tmp_path):
    unpack(
        tmp_path,
        layer(
            directory("closed", mode=0o555, uid=1000, gid=1001),
            file("closed/x", b"1", mode=0o4755, uid=1000, gid=1001),
            link("closed/l", "x"),
            file("odd", b"", uid=2**40),
        ),
    )
    closed, file_ = (tmp_path / "closed").stat(), (tmp_path / "closed/x").stat()
    assert (stat.S_IMODE(closed.st_mode), stat.S_IMODE(file_.st_mode)) == (0o555, 0o4755)
    owner = (1000, 1001) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    assert (closed.st_uid, closed.st_gid) == owner == (file_.st_uid, file_.st_gid)


def test_an_image_is_bounded_in_bytes_and_files(tmp_path):
    bomb = gzip.compress(layer(file("zeros", bytes(50_000_000))), mtime=0)
    assert len(bomb) < 100_000
    with pytest.raises(TooLargeError, match="larger"):
        unpack(tmp_path, bomb, most_bytes=1_000_000)
    many = layer(*[file(f"f{n}") for n in range(20)])
    with pytest.raises(TooLargeError, match="more files"):
        unpack(tmp_path, many, most_members=10)
    assert not any(path.stat().st_size for path in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (gzip.compress(layer(file("a", b"1")))[:-20], "in the middle"),
        (b"\x1f\x8b" + b"\xff" * 50, "is broken"),
        (zstd.compress(layer(file("a", b"1")))[:-20], "in the middle"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 50, "is broken"),
    ],
    ids=["cut", "broken", "zstd cut", "zstd broken"],
)
def test_what_cannot_be_read_is_said(data, why):
    with pytest.raises(ValueError, match=why):
        list(plain([data]))


def test_a_layer_in_pieces_and_with_something_behind_its_end():
    data = layer(file("a", b"1"))
    zipped = gzip.compress(data)
    pieces = [zipped[n : n + 7] for n in range(0, len(zipped), 7)]
    assert b"".join(plain([*pieces, b"behind"])) == data
    assert b"".join(plain([])) == b""


SKIPPED = b"\x5d\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"index"
"""A frame of zstd's for whoever knows it."""


def gzips(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("squeeze", "between"),
    [(gzips, b""), (zstd.compress, b""), (zstd.compress, SKIPPED)],
    ids=["eStargz", "zstd", "zstd:chunked"],
)
@pytest.mark.parametrize("step", [1, 3, 1 << 20])
def test_a_layer_of_many_members_is_one_tar(squeeze, between, step):
    data = layer(file("a", b"1" * 5000), file("b", os.urandom(5000)))
    parts = [squeeze(data[n : n + 700]) for n in range(0, len(data), 700)]
    whole = between + between.join(parts) + between
    pieces = [whole[n : n + step] for n in range(0, len(whole), step)]
    assert b"".join(plain(pieces)) == data
    assert b"".join(plain([*pieces, bytes(3), bytes(700)])) == data


@pytest.mark.parametrize("squeeze", [gzips, zstd.compress])
def test_what_a_layer_holds_does_not_hang_on_how_it_comes(squeeze):
    """Behind padding is nothing more of it, wherever the network cuts."""
    data = squeeze(b"first") + bytes(512) + squeeze(b"second")
    for cut in range(len(data)):
        assert b"".join(plain([data[:cut], data[cut:]])) == b"first"


def test_members_without_content_are_bounded(monkeypatch):
    monkeypatch.setattr(inflate, "MEMBERS_MAX", 10)
    assert b"".join(plain([gzips(b"") * 10])) == b""
    with pytest.raises(ValueError, match="more compressed parts"):
        list(plain([gzips(b"") * 11]))


def test_directories_that_a_name_leads_through_count(tmp_path):
    deep = layer(directory("/".join("abcdefghij")))
    with pytest.raises(TooLargeError, match="more files"):
        unpack(tmp_path, deep, most_members=9)
    other = tmp_path / "other"
    other.mkdir()
    assert len(unpack(other, deep, most_members=10)) == 10


def test_zstd_is_bounded_too(tmp_path):
    bomb = zstd.compress(layer(file("zeros", bytes(50_000_000))))
    assert len(bomb) < 100_000
    with pytest.raises(TooLargeError, match="larger"):
        unpack(tmp_path, bomb, most_bytes=1_000_000)


def test_without_the_package_zstd_is_told(monkeypatch):
    monkeypatch.setattr(inflate, "zstd", None)
    with pytest.raises(ValueError, match="install"):
        plain([zstd.compress(b"x")])


def test_a_digest_is_checked_at_the_end():
    assert list(checked([b"a", b"b"], digest(b"ab"))) == [b"a", b"b"]
    with pytest.raises(ValueError, match="not what its digest says"):
        list(checked([b"a"], digest(b"b")))
    with pytest.raises(ValueError, match="unknown kind"):
        list(checked([b"a"], "md5:1"))


CLOSED = layer(
    directory("usr", mode=0o555), directory("usr/bin", mode=0o555), file("usr/bin/a", b"1"),
    directory("none", mode=0), directory("mod", mode=0o555), directory("mod/sub", mode=0o500), file("mod/sub/x", b"1"),
)  # fmt: skip
"""Directories that their owner may not write, as Fedora's and Nix's images have them all over."""


@pytest.mark.parametrize(
    ("second", "gone", "new"),
    [
        (layer(directory("usr", mode=0o555), file("usr/bin/b", b"2")), [], {"usr/bin/b": "2"}),
        (layer(file("usr/bin/b", b"2")), [], {"usr/bin/b": "2"}),
        (layer(file("usr/bin/a", b"2")), [], {"usr/bin/a": "2"}),
        (layer(file("none/b", b"2")), [], {"none/b": "2"}),
        (layer(file("usr/bin/.wh.a")), ["usr/bin/a"], {}),
        (layer(file("usr/bin/.wh..wh..opq")), ["usr/bin/a"], {}),
        (layer(file(".wh.mod")), ["mod", "mod/sub", "mod/sub/x"], {}),
        (layer(file("mod", b"2")), ["mod/sub", "mod/sub/x"], {"mod": "2"}),
    ],
)
def test_directories_that_are_closed_are_filled_and_emptied_by_later_layers(
    tmp_path, second, gone, new
):
    whole = {"usr": "/", "usr/bin": "/", "usr/bin/a": "1", "none": "/"}
    whole |= {"mod": "/", "mod/sub": "/", "mod/sub/x": "1"}
    expected = {name: what for name, what in whole.items() if name not in gone} | new
    without_rights(lambda: unpack(tmp_path, CLOSED, second))
    (tmp_path / "none").chmod(0o700)
    assert tree(tmp_path) == expected
    assert stat.S_IMODE((tmp_path / "usr/bin").stat().st_mode) == 0o555
    without_rights(lambda: remove_tree(tmp_path))
    assert not tmp_path.exists()


def test_a_directory_is_what_the_last_layer_says(tmp_path):
    closed = layer(directory("a", mode=0o555), directory("b", mode=0o500), file("b/x", b"1"))
    unpack(tmp_path, closed, layer(directory("a", mode=0o711), file(".wh.b"), file("b/y", b"2")))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"a": 0o711, "b": 0o755}, "what was taken away says nothing of what came later"
