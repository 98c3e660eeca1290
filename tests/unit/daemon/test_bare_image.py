"""The daemon on its own static Python, in images that hold nothing: marker `runtime`.

The daemon must need nothing of the image: here it runs in a root directory with no /proc, /dev,
/tmp, /etc, shell or libc, read-only, as root and as a user without an entry.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from daemon.runtime import interpreter, tree
from sandman import names, wire
from tests.unit.daemon import terminals
from tests.unit.daemon.harness import Daemon, head, joined, names_in, problem, wait_until
from tests.unit.daemon.shells import KINDS, Shell, shell_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root for chroot and namespaces"),
    pytest.mark.timeout(600),
]

BUSYBOX = shutil.which("busybox")


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that is mounted into pods."""
    return tree.compose(interpreter.build(), tmp_path_factory.mktemp("runtime") / "tree")


@pytest.fixture
def image(delivered: Path, tmp_path: Path) -> Path:
    """A root directory with the mount and nothing else."""
    root = tmp_path / "image"
    mount = root / names.MOUNT_PATH.strip("/")
    mount.mkdir(parents=True)
    root.chmod(0o755)
    shutil.copytree(delivered, mount, dirs_exist_ok=True, copy_function=os.link)
    return root


def run_in(start: Callable[..., Daemon], image: Path, *options: str) -> Daemon:
    """The daemon as PID 1 below `image`, which it cannot write."""
    inside = ("chroot", *options, str(image))
    read_only = (
        f'mount --bind "{image}" "{image}" && mount -o remount,ro,bind "{image}" && exec "$@"'
    )
    prefix = ("unshare", "--pid", "--fork", "--mount", "--kill-child", "sh", "-c", read_only, "sh")
    return start(*prefix, *inside, program=names.DAEMON_COMMAND)


@pytest.mark.parametrize("options", [(), ("--userspec=65534:65534",), ("--userspec=54321:12",)])
def test_12_in_an_empty_read_only_image(
    start: Callable[..., Daemon], image: Path, options: tuple[str, ...]
) -> None:
    running = run_in(start, image, *options)
    info = wire.Info.from_json(running.client.get("/v1/info").json())
    assert info.workdir == "/"
    result = running.sh("true")
    assert (result.exit_code, result.start_error) == (127, "not_found")
    assert b"no bash and no sh" in result.stderr
    assert running.exec(argv=["true"]).exit_code == 127
    found = problem(running.put("/file", b"x"))
    assert found["reason"] == "path_denied"
    assert problem(running.get("/etc/passwd"))["reason"] == "path_not_found"
    assert problem(running.post({"argv": ["x"], "user": "ann"}))["reason"] == "user_unsupported"


PYTHON = [*names.DAEMON_COMMAND[:3], "-c"]


def test_12_commands_in_an_empty_image(start: Callable[..., Daemon], image: Path) -> None:
    # The only program there is: the daemon's own interpreter.
    running = run_in(start, image)
    script = "import sys; sys.stdout.write(sys.stdin.read()); sys.exit(3)"
    result = running.exec(argv=[*PYTHON, script], stdin="in ")
    assert (result.stdout, result.exit_code) == (b"in ", 3)
    assert running.exec(argv=[*PYTHON, "import sys; print(sys.stdin.read())"]).stdout == b"\n"
    frames = running.frames(argv=[*PYTHON, "print(1)"])
    assert joined(frames, wire.STDOUT) == b"1\n"
    result = running.exec(argv=[*PYTHON, "import time; time.sleep(60)"], timeout_s=0.5)
    assert (result.timed_out, result.exit_code) == (True, 143)
    result = running.exec(argv=[*PYTHON, "import os; os._exit(7)"])
    assert result.exit_code == 7
    mask = "import signal; print(signal.pthread_sigmask(0, ()), end='')"
    assert running.exec(argv=[*PYTHON, mask]).stdout == b"set()"


def test_10_switching_users_without_a_passwd_file(
    start: Callable[..., Daemon], image: Path
) -> None:
    running = run_in(start, image)
    script = "import os; print(os.getuid(), os.getgid(), os.getgroups(), os.environ['HOME'])"
    result = running.exec(argv=[*PYTHON, script], user=4321)
    assert result.stdout == b"4321 0 [0] /\n", result


def test_33_files_as_a_user_without_a_passwd_file(
    start: Callable[..., Daemon], image: Path
) -> None:
    """By the system calls of the static runtime, as PID 1, with nothing in the image to help."""
    (image / "home").mkdir()
    os.chown(image / "home", 4321, 0)
    (image / "secret").write_text("root's")
    (image / "secret").chmod(0o600)
    (image / "home" / "link").symlink_to("/secret")
    prefix = ("unshare", "--pid", "--fork", "--mount", "--kill-child", "chroot", str(image))
    running = start(*prefix, program=names.DAEMON_COMMAND)
    assert running.put("/home/a/b", b"x", user="4321").status_code == 200
    assert {(image / path).stat().st_uid for path in ("home/a", "home/a/b")} == {4321}
    tar = running.client.get("/v1/archive", params={"path": "/home/a", "user": "4321"}).content
    params = {"path": "/home/c", "user": "4321"}
    assert running.client.put("/v1/archive", params=params, content=tar).status_code == 200
    assert (image / "home" / "c" / "b").stat().st_uid == 4321
    for path in ("/secret", "/home/link"):
        params = {"path": path, "user": "4321"}
        assert problem(running.client.get("/v1/files", params=params))["reason"] == "path_denied"
        assert problem(running.put(path, b"x", user="4321"))["reason"] == "path_denied"
    assert running.get("/home/link").text == "root's"


def test_a_deeply_nested_body_does_not_end_it(start: Callable[..., Daemon], image: Path) -> None:
    running = run_in(start, image)
    for text in (b"[" * 1_000_000, b'{"argv":' + b"[" * 500_000 + b"]" * 500_000 + b"}"):
        assert problem(running.client.post("/v1/exec", content=text))["reason"] == "bad_request"
    answer = running.raw(head("GET", "/v1/info", "Connection: close"))
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["running"] == 0


def test_servers_are_reached_and_missed(start: Callable[..., Daemon], image: Path) -> None:
    running = run_in(start, image)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(65536)
                sock.sendall(b"HTTP/1.1 200 OK\r\n\r\nhi")

        thread = threading.Thread(target=answer)
        thread.start()
        assert running.client.get(f"/v1/ports/{port}/").content == b"hi"
        thread.join()
    assert problem(running.client.get(f"/v1/ports/{port}/"))["reason"] == "port_closed"


@pytest.mark.skipif(BUSYBOX is None, reason="needs a static busybox")
def test_12_in_a_busybox_image(start: Callable[..., Daemon], image: Path) -> None:
    (image / "bin").mkdir()
    shutil.copy(str(BUSYBOX), image / "bin" / "busybox")
    for name in ("sh", "sleep", "cat", "env", "setsid", "true"):
        (image / "bin" / name).symlink_to("busybox")
    running = run_in(start, image)
    assert running.sh("echo $0 hi").stdout == b"sh hi\n"
    assert running.sh("cat", stdin="x").stdout == b"x"
    assert running.sh("sleep 60 & exit 4").exit_code == 4
    result = running.sh("sleep 60 & sleep 60", timeout_s=0.3)
    assert result.timed_out


def test_it_is_opaque_to_its_own_user(start: Callable[..., Daemon], image: Path) -> None:
    (image / "proc").mkdir()
    running = run_in(start, image, "--userspec=65534:65534")
    assert running.exec(argv=[*PYTHON, "print(1)"]).ok
    status = Path(f"/proc/{running.pid}/environ").stat()
    assert wait_until(lambda: Path(f"/proc/{running.pid}/environ").stat().st_uid == 0), status


def test_copy_makes_a_tree_that_runs(delivered: Path, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    python, *options = names.DAEMON_COMMAND
    argv = [str(delivered / "bin" / Path(python).name), *options[:2], str(delivered / "app")]
    for _ in range(2):
        done = subprocess.run(
            [*argv, "copy", str(volume)], capture_output=True, text=True, env={}, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "copied" in done.stderr
    assert names_in(volume) == names_in(delivered)
    for path in volume.rglob("*"):
        assert path.stat().st_mode & 0o777 == 0o555
    again = [str(volume / "bin" / "python3"), *options[:2], str(volume / "app"), "dance"]
    assert subprocess.run(again, capture_output=True, env={}, check=False).returncode == 2


def test_27_a_session_needs_a_shell(start: Callable[..., Daemon], image: Path) -> None:
    daemon = run_in(start, image)
    refused = problem(daemon.client.post("/v1/sessions", json={}))
    assert (refused["reason"], refused["field"]) == ("path_not_found", "shell")
    assert "no bash and no sh" in str(refused["detail"])


@pytest.mark.skipif(BUSYBOX is None, reason="needs busybox")
def test_27_a_session_needs_a_terminal(start: Callable[..., Daemon], image: Path) -> None:
    (image / "bin").mkdir()
    shutil.copy(str(BUSYBOX), image / "bin" / "sh")
    daemon = run_in(start, image)
    refused = problem(daemon.client.post("/v1/sessions", json={}))
    assert refused["reason"] == "path_not_found"
    assert "/dev/ptmx" in str(refused["detail"])


@pytest.mark.parametrize("kind", KINDS)
def test_27_sessions_by_the_static_python(
    start: Callable[..., Daemon], delivered: Path, tmp_path: Path, kind: str
) -> None:
    mount = names.DAEMON_COMMAND[0].removesuffix("/bin/python3")
    daemon = start(program=tuple(p.replace(mount, str(delivered)) for p in names.DAEMON_COMMAND))
    with Shell(daemon, shell=shell_of(kind, tmp_path)) as shell:
        assert shell.out("x=1; test -t 1 && echo tty") == "tty\n"
        assert shell.run("sleep 60", timeout_s=0.2).exit_code == 130
        assert shell.out("echo $x") == "1\n"
    if kind == "busybox":
        return  # others may not look into this test's directory, where it has its name
    with Shell(daemon, shell=kind, user=65534, cwd="/") as shell:
        assert shell.out("id -u; test -t 1 && echo tty") == "65534\ntty\n"
        assert shell.run("sleep 60", timeout_s=0.2).exit_code == 130


def test_without_terminals_it_is_told(start: Callable[..., Daemon], image: Path) -> None:
    running = run_in(start, image)
    body = {"argv": [*PYTHON, "pass"], "terminal": {}}
    found = problem(running.client.post("/v1/processes", json=body))
    assert (found["reason"], found["field"]) == ("terminal_unsupported", "terminal")


@pytest.mark.parametrize("user", [None, 65534])
def test_a_terminal_by_the_static_daemon(
    start: Callable[..., Daemon], delivered: Path, user: int | None
) -> None:
    python, *options, _, verb = names.DAEMON_COMMAND
    program = (str(delivered / python.removeprefix(f"{names.MOUNT_PATH}/")), *options)
    running = start(program=(*program, str(delivered / "app"), verb))
    script = "stty size; echo ok > /dev/tty; read x; echo got $x; exit 3"
    exec_id = terminals.begin(running, shell=script, terminal={"rows": 5}, user=user)
    with terminals.Screen(running, exec_id, "?exclusive=1") as screen:
        screen.expect(rb"5 80\r\nok\r\n")
        screen.type(b"it\n")
        assert screen.finish().exit_code == 3
    assert screen.data.endswith(b"got it\r\n")


@pytest.mark.skipif(BUSYBOX is None, reason="needs busybox")
@pytest.mark.parametrize("options", [(), ("--userspec=65534:65534",)])
def test_27_a_session_as_pid_1_in_an_image_of_busybox(
    start: Callable[..., Daemon], image: Path, options: tuple[str, ...]
) -> None:
    (image / "bin").mkdir()
    for name in ("sh", "cat", "id", "sleep", "stty", "setsid"):
        shutil.copy(str(BUSYBOX), image / "bin" / name)
    for name in ("proc", "dev", "dev/pts"):
        (image / name).mkdir()
    for name in ("dev/null", "dev/tty"):
        (image / name).touch()
    (image / "dev/ptmx").symlink_to("pts/ptmx")
    # As a container runtime does it.
    script = (
        f'mount --bind "{image}" "{image}" && mount -t proc proc "{image}/proc" && '
        f'mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "{image}/dev/pts" && '
        f'mount --bind /dev/null "{image}/dev/null" && mount --bind /dev/tty "{image}/dev/tty" && '
        f'mount -o remount,ro,bind "{image}" && exec "$@"'
    )
    prefix = ("unshare", "--pid", "--fork", "--mount", "--kill-child", "sh", "-c", script, "sh")
    daemon = start(*prefix, "chroot", *options, str(image), program=names.DAEMON_COMMAND)
    with Shell(daemon) as shell:
        assert shell.info.shell == "/bin/sh"
        uid = "65534" if options else "0"
        assert shell.out("x=1; id -u; stty size </dev/tty") == f"{uid}\n24 80\n"
        late = shell.run("setsid sleep 60 & echo so far; sleep 61", timeout_s=0.5)
        assert (late.exit_code, late.output, late.timed_out) == (130, b"so far\n", True)
        talk = shell.run("cat", interactive=True, timeout_s=0.1)
        assert talk.state == "running"
        assert shell.input("x\n", expect=["x\n"], timeout_s=20).output == b"x\n"
        assert shell.interrupt().state == "idle"
        assert shell.out("echo $x") == "1\n"
        ended = shell.run("echo bye; exit 3")
        assert (ended.state, ended.exit_code, ended.output) == ("ended", 3, b"bye\n")
