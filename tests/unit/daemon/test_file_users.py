"""Files as the user they are for: its rights hold, whatever lies in the way. Points 29, 33 and 37."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from daemon import files, identity, users
from sandman import errors
from tests.unit.daemon import harness
from tests.unit.daemon.harness import ROOT, Daemon, names_in, problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as others")

UID = 1234
SECRET = "root's alone"


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of user 1234, who may go there, with root's files beside it.

    Not `tmp_path`: pytest keeps that from others.
    """
    top = Path(tempfile.mkdtemp(prefix="sandman-users-", dir="/tmp"))
    top.chmod(0o755)
    (top / "secret").write_text(SECRET)
    (top / "secret").chmod(0o600)
    (top / "closed").mkdir(0o700)
    (top / "closed" / "file").write_text(SECRET)
    (top / "shown").write_text("for all")
    (top / "home").mkdir()
    os.chown(top / "home", UID, UID)
    yield top
    shutil.rmtree(top)


WITHOUT_THE_CALLS = """
import ctypes, os, struct, sys
calls = {"x86_64": (122, 123), "aarch64": (151, 152)}[os.uname().machine]
rules = [(0x20, 0, 0, 0), (0x15, 1, 0, calls[0]), (0x15, 0, 1, calls[1]),
         (0x06, 0, 0, 0x50000 | 38), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code))
assert ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A filter that answers setfsuid and setfsgid as a kernel does that has not got them: ENOSYS."""


@pytest.fixture(scope="module")
def other_kernel(native: Path) -> Iterator[Daemon]:
    """A daemon where there is no identity for files, as on gVisor's kernel."""
    running = harness.start(
        sys.executable, "-c", WITHOUT_THE_CALLS, program=harness.serve_by(native)
    )
    assert "Seccomp:\t2" in Path(f"/proc/{running.pid}/status").read_text()
    yield running
    running.stop()


@pytest.fixture(
    params=[
        "daemon",
        pytest.param("beside", marks=pytest.mark.runtime),
        pytest.param("other_kernel", marks=pytest.mark.runtime),
    ]
)
def daemon(request: pytest.FixtureRequest) -> Daemon:
    """On a plain Python; on the runtime's, where the calls are made in C; and without those calls."""
    found: Daemon = request.getfixturevalue(request.param)
    return found


def owner(path: Path) -> int:
    return path.lstat().st_uid


def call(daemon: Daemon, method: str, tail: str, path: object, **options: str) -> object:
    """The reason of the refusal, else the JSON or the status."""
    params = {"path": str(path), "user": str(UID), **options}
    response = daemon.client.request(method, f"/v1/{tail}", params=params)
    if response.status_code >= 400:
        return problem(response)["reason"]
    kind = response.headers.get("content-type", "")
    return response.json() if kind == "application/json" else response.content


def post(daemon: Daemon, tail: str, **body: object) -> object:
    response = daemon.client.post(f"/v1/files/{tail}", content=json.dumps({"user": UID, **body}))
    return problem(response)["reason"] if response.status_code >= 400 else response.json()


def packed(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name.replace("_", "/"))
            info.size, info.uid, info.mode = len(content), 0, 0o4755
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def put_archive(daemon: Daemon, path: Path, data: bytes) -> object:
    params = {"path": str(path), "user": str(UID)}
    response = daemon.client.put("/v1/archive", params=params, content=data)
    return problem(response)["reason"] if response.status_code >= 400 else response.json()


def test_33_what_is_made_is_the_users(daemon: Daemon, home: Path) -> None:
    inside = home / "home"
    assert daemon.put(inside / "a" / "b" / "c", b"x", user=str(UID), mode="4711").status_code == 200
    assert stat.S_IMODE((inside / "a/b/c").stat().st_mode) == 0o4711
    assert post(daemon, "mkdir", path=f"{inside}/d/e", parents=True)["uid"] == UID
    answer = put_archive(daemon, inside / "f" / "g", packed(h_i=b"x"))
    assert answer["members"] == 1
    for path in ("a", "a/b", "a/b/c", "d", "d/e", "f", "f/g", "f/g/h", "f/g/h/i"):
        assert owner(inside / path) == UID, path
    # A uid without an entry is of group 0, as container runtimes have it.
    assert {(inside / path).stat().st_gid for path in ("a", "a/b/c", "d/e", "f/g/h/i")} == {0}
    assert stat.S_IMODE((inside / "f/g/h/i").stat().st_mode) == 0o4755


def test_33_what_the_user_may_not_do_is_denied(daemon: Daemon, home: Path) -> None:
    denied = "path_denied"
    assert call(daemon, "GET", "files", home / "secret") == denied
    assert call(daemon, "GET", "files", home / "closed" / "file") == denied
    assert call(daemon, "GET", "files/list", home / "closed") == denied
    assert call(daemon, "GET", "files/stat", home / "closed" / "file") == denied
    assert call(daemon, "GET", "archive", home / "closed") == denied
    assert call(daemon, "DELETE", "files", home / "shown") == denied
    assert call(daemon, "DELETE", "files", home / "closed", recursive="1") == denied
    for path in (home / "shown", home / "new", home / "new" / "below", home / "closed" / "file"):
        assert problem(daemon.put(path, b"x", user=str(UID)))["reason"] == denied
    assert put_archive(daemon, home, packed(new=b"x")) == denied
    assert put_archive(daemon, home / "new", packed(new=b"x")) == denied
    assert put_archive(daemon, home / "closed", packed(new=b"x")) == denied
    assert post(daemon, "mkdir", path=f"{home}/new") == denied
    assert post(daemon, "mkdir", path=f"{home}/new/er", parents=True) == denied
    assert post(daemon, "move", **{"from": f"{home}/shown", "to": f"{home}/home/x"}) == denied
    assert names_in(home) == ["closed", "home", "secret", "shown"]
    assert names_in(home / "closed") == ["file"]
    assert (home / "shown").read_text() == "for all"
    assert call(daemon, "GET", "files", home / "shown") == b"for all"


def test_36_links_lead_the_user_nowhere_else(daemon: Daemon, home: Path) -> None:
    inside = home / "home"
    (inside / "file").symlink_to(home / "secret")
    (inside / "dir").symlink_to(home / "closed")
    (inside / "up").symlink_to(home)
    (inside / "shown").symlink_to(home / "shown")
    for path in ("file", "dir/file", "up/secret"):
        assert call(daemon, "GET", "files", inside / path) == "path_denied", path
        assert problem(daemon.put(inside / path, b"x", user=str(UID)))["reason"] == "path_denied"
    assert call(daemon, "GET", "archive", inside / "dir") == "path_denied"
    assert call(daemon, "GET", "files/list", inside / "dir") == "path_denied"
    assert put_archive(daemon, inside / "up", packed(new=b"x")) == "path_denied"
    assert call(daemon, "DELETE", "files", inside / "up" / "closed", recursive="1") == "path_denied"
    assert call(daemon, "GET", "files", inside / "shown") == b"for all"
    assert (home / "secret").read_text() == (home / "closed" / "file").read_text() == SECRET
    # What lies in the tar's way is replaced or refused, never followed.
    assert put_archive(daemon, inside, packed(file=b"x"))["members"] == 1
    assert (inside / "file").read_text() == "x"
    assert (home / "secret").read_text() == SECRET


def test_36_a_link_that_is_swapped_while_files_are_written(daemon: Daemon, home: Path) -> None:
    """Whoever wins the race: nothing of the user's call lands where only root may write."""
    inside = home / "home"
    (inside / "real").mkdir()
    os.chown(inside / "real", UID, UID)
    (inside / "way").symlink_to("real")
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            for target in (home / "closed", inside / "real"):
                (inside / "next").symlink_to(target)
                (inside / "next").rename(inside / "way")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        outcomes = {daemon.put(inside / "way" / "x", b"x", user=str(UID)).status_code for _ in range(100)}  # fmt: skip
    finally:
        done.set()
        swapper.join()
    assert outcomes <= {200, 403}
    assert names_in(home / "closed") == ["file"]


def test_33_what_may_be_kept_of_a_file_that_is_replaced(daemon: Daemon, home: Path) -> None:
    inside = home / "home"
    for name in ("own", "roots"):
        (inside / name).write_text("old")
        os.chown(inside / name, 0 if name == "roots" else UID, 0)
        (inside / name).chmod(0o6777)
        assert daemon.put(inside / name, b"new", user=str(UID)).status_code == 200
        assert ((inside / name).read_text(), owner(inside / name)) == ("new", UID)
    assert stat.S_IMODE((inside / "own").stat().st_mode) == 0o6777
    # The user may replace root's file where it may write; but what ran as root is not to run as the user.
    assert stat.S_IMODE((inside / "roots").stat().st_mode) == 0o777
    (home / "shown").chmod(0o666)
    assert daemon.put(home / "shown", b"new", user=str(UID)).status_code == 200
    assert ((home / "shown").read_text(), owner(home / "shown")) == ("new", 0)


def test_33_root_on_demand_where_the_claim_names_a_user(
    start: Callable[..., Daemon], home: Path
) -> None:
    claimed = start()
    body = {"claim_id": "c", "previous_boot_id": None, "user": UID, "workdir": str(home)}
    assert claimed.client.post("/v1/claim", json=body).status_code == 200
    assert problem(claimed.get("secret"))["reason"] == "path_denied"
    assert claimed.put("home/x", b"x").status_code == 200
    assert owner(home / "home" / "x") == UID
    root = {"path": "secret", "user": "root"}
    assert claimed.client.get("/v1/files", params=root).text == SECRET
    assert claimed.put("home/y", b"x", user="0").status_code == 200
    assert owner(home / "home" / "y") == 0
    # A thread serves one connection: it is the daemon again after each call.
    assert claimed.sh("id -u", user="root").stdout == b"0\n"


def test_54_a_full_disk_and_a_mounted_file_as_the_user(daemon: Daemon, home: Path) -> None:
    tiny = home / "tiny"
    tiny.mkdir()
    options = f"size=1m,uid={UID},mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", tiny], check=True)
    (home / "inner").write_text("old")
    (tiny / "hosts").touch()
    subprocess.run(["mount", "--bind", home / "inner", tiny / "hosts"], check=True)
    try:
        found = problem(daemon.put(tiny / "a" / "x", b"x" * 2**21, user=str(UID)))
        assert found["reason"] == "no_space"
        assert put_archive(daemon, tiny, packed(x=b"x" * 2**21)) == "no_space"
        assert names_in(tiny) == ["hosts"]
        # As /etc/hosts in a pod: root's, and a mount of its own, so that it can only be written over.
        assert problem(daemon.put(tiny / "hosts", b"new", user=str(UID)))["reason"] == "path_denied"
        assert (home / "inner").read_text() == "old"
        os.chown(home / "inner", UID, UID)
        assert daemon.put(tiny / "hosts", b"new", user=str(UID)).status_code == 200
        assert (home / "inner").read_text() == "new"
        assert names_in(tiny) == ["hosts"]
    finally:
        subprocess.run(["umount", tiny / "hosts"], check=True)
        subprocess.run(["umount", tiny], check=True)


def test_33_groups_count_as_for_commands(daemon: Daemon, home: Path) -> None:
    nobody = users.find("nobody")
    shared = home / "shared"
    shared.mkdir()
    os.chown(shared, 0, nobody.gid)
    shared.chmod(0o2770)
    assert daemon.put(shared / "x", b"x", user="nobody").status_code == 200
    assert ((shared / "x").stat().st_uid, (shared / "x").stat().st_gid) == nobody[1:3]
    assert problem(daemon.put(shared / "x", b"x", user=str(UID)))["reason"] == "path_denied"
    with identity.Acting(nobody._replace(uid=UID, gid=UID, groups=(nobody.gid,)), b"/"):
        assert names_in(shared) == ["x"]
        assert os.getgroups() == [nobody.gid]
    assert 0 in os.getgroups() or os.getgroups() == []


def test_33_the_daemons_own_process_is_closed_to_the_user(daemon: Daemon, home: Path) -> None:
    """`/proc/self` is the daemon's: its memory and environment are not the user's to see."""
    link = home / "home" / "self"
    link.symlink_to("/proc/self")
    for name in ("environ", "mem", "root/../secret"):
        assert call(daemon, "GET", "files", f"{link}/{name}") in {"path_denied", "path_not_found"}
    assert b"Uid:" in call(daemon, "GET", "files", f"{link}/status")


def test_54_what_is_kept_aside_is_the_writers_alone() -> None:
    fd = files._aside()
    try:
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    finally:
        os.close(fd)


def test_33_nothing_is_loaded_while_acting(start: Callable[..., Daemon], home: Path) -> None:
    """The daemon's own files may be root's alone, and still each call is good the first time."""
    hidden = Path(tempfile.mkdtemp(prefix="sandman-hidden-", dir="/tmp"))
    try:
        for part in ("daemon", "sandman"):
            shutil.copytree(ROOT / part, hidden / part, ignore=shutil.ignore_patterns("runtime", "__pycache__"))  # fmt: skip
        fresh = start(env={"PYTHONPATH": str(hidden), "PYTHONDONTWRITEBYTECODE": "1"}, cwd=hidden)
        inside = home / "home"
        assert fresh.put(inside / "x", b"x" * 100_000, user=str(UID)).status_code == 200
        assert len(call(fresh, "GET", "files", inside / "x")) == 100_000
        assert call(fresh, "GET", "files/list", inside)["entries"][0]["uid"] == UID
        import gzip  # noqa: PLC0415

        assert put_archive(fresh, inside / "d", gzip.compress(packed(a=b"a")))["members"] == 1
        assert b"ustar" in call(fresh, "GET", "archive", inside / "d")
        assert post(fresh, "move", **{"from": f"{inside}/x", "to": f"{inside}/y"})["uid"] == UID
        assert call(fresh, "DELETE", "files", inside / "d", recursive="1") == b""
        assert [line for line in fresh.lines if "Error" in line] == []
    finally:
        shutil.rmtree(hidden)


def test_10_without_the_capability_it_is_a_typed_error(
    start: Callable[..., Daemon], home: Path
) -> None:
    caged = start("setpriv", "--bounding-set", "-setuid,-setgid", "--inh-caps", "-all")
    found = problem(caged.put(home / "home" / "x", b"x", user="nobody"))
    assert (found["reason"], found["field"]) == ("user_unsupported", "user")
    assert "nobody" in str(found["detail"])
    assert caged.put(home / "home" / "x", b"x").status_code == 200
    assert owner(home / "home" / "x") == 0
    assert post(caged, "mkdir", path="/x", user="no-such-user") == "user_unsupported"


def test_10_who_is_not_root_acts_as_itself_alone(start: Callable[..., Daemon], home: Path) -> None:
    plain = start("setpriv", "--reuid", str(UID), "--regid", "0", "--clear-groups")
    assert plain.put(home / "home" / "x", b"x", user=str(UID)).status_code == 200
    assert (
        problem(plain.put(home / "home" / "x", b"x", user="root"))["reason"] == "user_unsupported"
    )
    assert problem(plain.get(home / "secret"))["reason"] == "path_denied"


def test_a_thread_that_cannot_become_the_daemon_again_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(identity.log, "line", said.append)
    reached: list[str] = []

    def work() -> None:
        with pytest.raises(SystemExit):
            serve()
        reached.append("the end")

    def serve() -> None:
        with identity.Acting(users.find(UID), b"/"):
            monkeypatch.setattr(identity, "set_fs_user", refuse)
        reached.append("another call")

    def refuse(*_: object) -> None:
        raise OSError(1, "no")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert (reached, len(said)) == (["the end"], 1)


def test_the_identity_is_the_threads_own(home: Path) -> None:
    """Another thread of the process keeps root's rights meanwhile."""
    seen: list[str] = []
    go = threading.Event()

    def read() -> None:
        go.wait()
        seen.append((home / "secret").read_text())

    other = threading.Thread(target=read)
    other.start()
    with identity.Acting(users.find(UID), b"/x"):
        go.set()
        other.join()
        with pytest.raises(PermissionError):
            (home / "secret").read_text()
    assert seen == [SECRET]


def test_29_who_is_not_root_becomes_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity.os, "geteuid", lambda: UID)
    assert identity.choose(None, None) is None
    assert identity.choose(str(UID), None) is None
    assert identity.choose(None, users.find(UID)) is None
    with pytest.raises(errors.UserUnsupportedError, match=f"uid {UID}"):
        identity.choose("root", None)


def test_where_the_system_call_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_built_in", None)
    monkeypatch.setattr(identity, "_SETGROUPS", {})
    with pytest.raises(errors.UserUnsupportedError), identity.Acting(users.find(UID), b"/"):
        pytest.fail("not reached")
