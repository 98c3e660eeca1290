"""`/v1/files/…`, deletion of trees and owners: points 29, 32, 36 and 38."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from daemon import entries, files, removal
from sandman import errors
from tests.unit.daemon.harness import Daemon, head, names_in, problem
from tests.unit.daemon.test_files import ODD_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

ANY_BYTES = os.fsdecode(b"\xff\xfe\n")


def ask(daemon: Daemon, tail: str, path: object, **options: object) -> object:
    """The JSON of a GET; surrogates and all."""
    response = daemon.client.get(f"/v1/files/{tail}", params={"path": str(path), **options})
    assert response.status_code == 200, response.text
    return json.loads(response.content)


def refused(daemon: Daemon, tail: str, path: object, **options: object) -> dict[str, object]:
    return problem(daemon.client.get(f"/v1/files/{tail}", params={"path": str(path), **options}))


def say(daemon: Daemon, tail: str, **body: object):
    return daemon.client.post(f"/v1/files/{tail}", content=json.dumps(body))


def delete(daemon: Daemon, path: object, **options: str) -> object:
    response = daemon.client.delete("/v1/files", params={"path": str(path), **options})
    return response.status_code if response.status_code == 204 else problem(response)["reason"]


# --- stat and list -------------------------------------------------------------------------------


def test_38_stat_tells_each_type(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "file").chmod(0o4751)
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    os.utime(tmp_path / "file", (1, 1_000_000.25))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    found = ask(daemon, "stat", tmp_path / "file")
    assert found == {
        "path": str(tmp_path / "file"), "type": "file", "size": 5, "mode": "4751",
        "uid": os.geteuid(), "gid": os.getegid(), "mtime": 1_000_000.25,
    }  # fmt: skip
    for name, kind in (("dir", "directory"), ("fifo", "fifo"), ("socket", "socket")):
        assert ask(daemon, "stat", tmp_path / name)["type"] == kind
    assert ask(daemon, "stat", "/dev/null")["type"] == "device"
    link = ask(daemon, "stat", tmp_path / "link")
    assert (link["type"], link["target"]) == ("symlink", "file")
    followed = ask(daemon, "stat", tmp_path / "link", follow="1")
    assert (followed["type"], followed["size"]) == ("file", 5)
    assert ask(daemon, "stat", "/proc/self/status")["size"] == 0


def test_38_what_stat_refuses(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert refused(daemon, "stat", tmp_path / "no")["reason"] == "path_not_found"
    assert refused(daemon, "stat", tmp_path / "file" / "x")["reason"] == "not_a_directory"
    assert refused(daemon, "stat", tmp_path, follow="yes")["field"] == "follow"
    assert refused(daemon, "stat", "")["field"] == "path"


def test_38_list_by_name_and_to_a_depth(daemon: Daemon, tmp_path: Path) -> None:
    for name in ("b/c/d", "a", "b/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to("b")

    def shown(**options: object) -> list[str]:
        listed = ask(daemon, "list", tmp_path, **options)["entries"]
        return [entry["path"].removeprefix(f"{tmp_path}/") for entry in listed]

    assert shown() == ["a", "b", "link"]
    assert shown(depth=2) == ["a", "b", "b/c", "b/x", "link"]
    assert shown(depth=64) == ["a", "b", "b/c", "b/c/d", "b/x", "link"]
    assert ask(daemon, "list", tmp_path / "b" / "c")["entries"][0]["size"] == 0
    for depth in ("0", "65", "x", ""):
        assert refused(daemon, "list", tmp_path, depth=depth)["field"] == "depth"
    assert refused(daemon, "list", tmp_path / "a")["reason"] == "not_a_directory"
    assert refused(daemon, "list", tmp_path / "no")["reason"] == "path_not_found"
    (tmp_path / "empty").mkdir()
    assert ask(daemon, "list", tmp_path / "empty") == {"entries": []}


def test_36_list_and_stat_of_odd_names(daemon: Daemon, tmp_path: Path) -> None:
    for name in [*ODD_NAMES, ANY_BYTES]:
        (tmp_path / name).symlink_to(name[:100])
    listed = ask(daemon, "list", tmp_path)["entries"]
    assert {Path(entry["path"]).name: entry["target"] for entry in listed} == {
        name: name[:100] for name in [*ODD_NAMES, ANY_BYTES]
    }
    assert ask(daemon, "stat", tmp_path / ODD_NAMES[2])["path"].endswith("new\nline")


def test_38_a_listing_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(entries, "MAX_ENTRIES", 3)
    for name in "abc":
        (tmp_path / name).touch()
    assert len(list(entries.listing(bytes(tmp_path), 1))) == 3
    (tmp_path / "d").touch()
    with pytest.raises(errors.TooLargeError) as caught:
        list(entries.listing(bytes(tmp_path), 1))
    assert caught.value.facts == {"limit": 3}


def test_38_a_listing_survives_what_vanishes_and_what_it_may_not_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").touch()
    monkeypatch.setattr(entries.os, "scandir", refuse_at(b"/a", os.scandir))
    listing = entries.listing(bytes(tmp_path), 2)
    first = next(listing)
    assert (first["type"], first["error"]) == ("directory", "path_denied")
    (tmp_path / "b").unlink()
    assert list(listing) == []


def refuse_at(end: bytes, real: Callable[..., object]) -> Callable[..., object]:
    def call(path: bytes) -> object:
        if path.endswith(end):
            raise PermissionError(errno.EACCES, "no")
        return real(path)

    return call


# --- move and mkdir ------------------------------------------------------------------------------


def test_38_move(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    both = {"from": str(tmp_path / "a"), "to": str(tmp_path / "b")}
    found = problem(say(daemon, "move", **both))
    assert (found["reason"], found["field"]) == ("conflict", "to")
    moved = say(daemon, "move", **both, replace=True)
    assert (moved.status_code, moved.json()["path"]) == (200, str(tmp_path / "b"))
    assert (names_in(tmp_path), (tmp_path / "b").read_text()) == (["b"], "a")
    odd = {"from": str(tmp_path / "b"), "to": f"{tmp_path}/{ANY_BYTES}"}
    assert say(daemon, "move", **odd).status_code == 200
    assert names_in(tmp_path) == [ANY_BYTES]


def test_32_what_move_refuses(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "dir" / "sub").mkdir(parents=True)

    def reason(source: str, target: str, **more: object) -> tuple[object, object]:
        found = problem(
            say(daemon, "move", **{"from": f"{tmp_path}/{source}", "to": target, **more})
        )
        return found["reason"], found.get("field")

    assert reason("no", f"{tmp_path}/x") == ("path_not_found", "from")
    assert reason("a", f"{tmp_path}/no/x") == ("path_not_found", "to")
    assert reason("a", f"{tmp_path}/dir", replace=True) == ("is_a_directory", "to")
    assert reason("dir", f"{tmp_path}/a", replace=True) == ("not_a_directory", "to")
    assert reason("a", "/proc/x")[0] in {"path_denied", "path_not_found"}
    assert reason("a", "") == ("bad_request", "to")
    assert reason("a", "x", more=1) == ("bad_request", "more")
    assert problem(say(daemon, "move", to="x"))["field"] == "from"
    assert problem(daemon.client.post("/v1/files/move", content=b"[]"))["field"] == "body"


def test_38_mkdir(daemon: Daemon, tmp_path: Path) -> None:
    made = say(daemon, "mkdir", path=str(tmp_path / "a"), mode="0700")
    assert (made.json()["type"], made.json()["mode"]) == ("directory", "0700")
    assert problem(say(daemon, "mkdir", path=str(tmp_path / "a")))["reason"] == "conflict"
    deep = f"{tmp_path}/x/y/z/"
    assert problem(say(daemon, "mkdir", path=deep))["reason"] == "path_not_found"
    assert say(daemon, "mkdir", path=deep, parents=True, mode="1777").json()["mode"] == "1777"
    assert stat.S_IMODE((tmp_path / "x" / "y").stat().st_mode) == 0o755
    again = say(daemon, "mkdir", path=deep, parents=True, mode="0700")
    assert (again.status_code, again.json()["mode"]) == (200, "1777")
    (tmp_path / "file").touch()
    for path, reason in (("file", "conflict"), ("file/x", "not_a_directory")):
        given = {"path": str(tmp_path / path), "parents": True}
        assert problem(say(daemon, "mkdir", **given))["reason"] == reason
    assert problem(say(daemon, "mkdir", path="x", mode="rwx"))["field"] == "mode"
    assert problem(say(daemon, "mkdir", path="x\0"))["field"] == "path"


def test_38_two_who_make_the_same_directory(tmp_path: Path) -> None:
    assert files.make_directory(bytes(tmp_path / "a"), 0o755)
    assert not files.make_directory(bytes(tmp_path / "a"), 0o755)
    assert not files.make_directories(b"/")
    assert files.make_directories(bytes(tmp_path / "b" / "c"), 0o700)
    (tmp_path / "a").chmod(0o2775)
    assert files.make_directories(bytes(tmp_path / "a" / "b"))
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o2755


# --- refusals ------------------------------------------------------------------------------------


def test_39_each_refusal_of_the_kernel_has_its_name(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "d").mkdir()
    (tmp_path / "file").touch()

    def get(name: str) -> httpx.Response:
        return daemon.get(tmp_path / name)

    def move(source: str, target: object) -> httpx.Response:
        body = {"from": str(tmp_path / source), "to": str(target)}
        return daemon.client.post("/v1/files/move", json=body)

    def remove(name: str) -> httpx.Response:
        return daemon.client.delete("/v1/files", params={"path": f"{tmp_path}/{name}"})

    def make(name: str) -> httpx.Response:
        return daemon.client.post("/v1/files/mkdir", json={"path": str(tmp_path / name)})

    for answer, reason, name in (
        (get("loop"), "path_denied", "ELOOP"),
        (get("n" * 256), "bad_request", "ENAMETOOLONG"),
        (get("missing"), "path_not_found", "ENOENT"),
        (get("d"), "is_a_directory", "EISDIR"),
        (get("file/below"), "not_a_directory", "ENOTDIR"),
        (make("d"), "conflict", "EEXIST"),
        (move("d", tmp_path / "d" / "within"), "path_denied", "EINVAL"),
        (move("file", "/proc/elsewhere"), "path_denied", "EXDEV"),
        (remove("."), "path_denied", "EINVAL"),
        (remove(""), "is_a_directory", "ENOTEMPTY"),
    ):
        found = problem(answer)
        assert (found["reason"], found["facts"]) == (reason, {"errno": name}), found


# --- deletion ------------------------------------------------------------------------------------


def test_38_delete_a_tree(daemon: Daemon, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    for name in ("a/b/c", "d/e", "f"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    (tree / "a" / "link").symlink_to(outside)
    os.mkfifo(tree / ANY_BYTES)
    (tree / "empty").mkdir()
    assert delete(daemon, tree) == "is_a_directory"
    assert delete(daemon, tree, recursive="2") == "bad_request"
    assert delete(daemon, tree, recursive="0") == "is_a_directory"
    assert delete(daemon, tree, recursive="1") == 204
    assert names_in(tmp_path) == ["outside"]
    assert names_in(outside) == ["kept"]
    assert delete(daemon, tree, recursive="1") == "path_not_found"
    (tmp_path / "link").symlink_to(outside)
    assert delete(daemon, tmp_path / "link", recursive="1") == 204
    assert delete(daemon, "/proc/..", recursive="1") == "path_denied"
    assert names_in(outside) == ["kept"]


@pytest.mark.parametrize("name", ["d/.", "d/./", "d/..", "d/in/..", "d/.//", ".", ".."])
@pytest.mark.parametrize("recursive", ["0", "1"])
def test_38_what_has_no_name_is_not_removed(
    daemon: Daemon, tmp_path: Path, name: str, recursive: str
) -> None:
    (tmp_path / "d" / "in").mkdir(parents=True)
    assert delete(daemon, f"{tmp_path}/{name}", recursive=recursive) == "path_denied"
    assert (tmp_path / "d" / "in").is_dir()


def test_38_a_way_around_leads_to_the_same(daemon: Daemon, tmp_path: Path) -> None:
    for way in ("d/../d", "d//", "./d", "d"):
        (tmp_path / "d" / "in").mkdir(parents=True)
        assert delete(daemon, f"{tmp_path}/{way}", recursive="1") == 204
        assert names_in(tmp_path) == []


@pytest.mark.parametrize("name", ["link/", "link//", "file/"])
@pytest.mark.parametrize("recursive", ["0", "1"])
def test_38_a_slash_behind_what_is_no_directory_leads_nowhere(
    daemon: Daemon, tmp_path: Path, name: str, recursive: str
) -> None:
    (tmp_path / "d" / "in").mkdir(parents=True)
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "file").touch()
    assert delete(daemon, f"{tmp_path}/{name}", recursive=recursive) == "not_a_directory"
    assert names_in(tmp_path) == ["d", "file", "link"]
    assert (tmp_path / "d" / "in").is_dir()


def test_38_what_cannot_go_keeps_what_is_in_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(path: bytes) -> None:
        raise OSError(errno.EBUSY, "a mount")

    (tmp_path / "d" / "in").mkdir(parents=True)
    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(OSError, match="a mount"):
        removal.remove_tree(bytes(tmp_path / "d"))
    assert names_in(tmp_path / "d") == ["in"]


def test_38_a_tree_deeper_than_any_path(daemon: Daemon, tmp_path: Path) -> None:
    start = os.open(tmp_path, os.O_RDONLY)
    fd = start
    for _ in range(1500):
        os.mkdir("deep" * 10, dir_fd=fd)
        below = os.open("deep" * 10, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    assert delete(daemon, tmp_path / ("deep" * 10), recursive="1") == 204
    assert names_in(tmp_path) == []


def test_38_a_tree_of_many_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(removal, "_BATCH", 3)
    for number in range(20):
        (tmp_path / "tree" / str(number) / "a").mkdir(parents=True)
        (tmp_path / "tree" / f"f{number}").touch()
    removal.remove_tree(bytes(tmp_path / "tree"))
    assert names_in(tmp_path) == []


def test_38_a_tree_that_is_moved_away_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "tree" / "a").mkdir(parents=True)
    (tmp_path / "kept").touch()
    move = removal._move

    def moving(fd: int, name: str) -> int:
        if name == "..":
            (tmp_path / "tree" / "a").rename(tmp_path / "a")
        return move(fd, name)

    monkeypatch.setattr(removal, "_move", moving)
    with pytest.raises(OSError, match="moved"):
        removal.remove_tree(bytes(tmp_path / "tree"))
    assert (tmp_path / "kept").exists()


def test_39_a_tree_goes_while_commands_run(daemon: Daemon, tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / "tree" / str(number)).mkdir(parents=True)
    runner = threading.Thread(target=lambda: daemon.sh("sleep 0.3"))
    runner.start()
    assert delete(daemon, tmp_path / "tree", recursive="1") == 204
    runner.join()


def test_methods_of_the_new_paths(daemon: Daemon) -> None:
    for tail in ("files/stat", "files/list", "files/move", "files/mkdir", "archive"):
        assert problem(daemon.client.patch(f"/v1/{tail}"))["reason"] == "method_not_allowed"
    answer = daemon.raw(head("GET", "/v1/files/stat/x", "Connection: close"))
    assert answer.startswith(b"HTTP/1.1 404")
