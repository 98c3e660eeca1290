"""`confine`: local mode's way to start this daemon, in place of a container runtime.

    gateway ──stdin: a plan, then nothing until its end──▶ keeper ──▶ process 1 of the sandbox, the daemon

The keeper leaves the machine's namespaces, and its child, which is process 1 in the new ones, changes the root and
then becomes the daemon without another program: there may be none in the image. What the daemon may need
later is loaded before. The socket that it listens on comes from outside, so that it can be reached from
there though it has no network. When stdin ends, by the gateway's will or with the gateway, the keeper kills process 1, and
the kernel all that was in its namespace.
"""

# ruff: noqa: PTH118
# ruff: noqa: PTH103, PTH118
# As all of the daemon: pathlib costs it 5 ms.

from __future__ import annotations

import fcntl
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
from contextlib import suppress

from daemon import config, kernel, log, removal, signals, users
from daemon.local import rootfs, syscalls
from sandman.errors import SandmanError
from sandman.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

OWN = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
)
KEPT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 31})
"""What container runtimes leave to root but for device nodes and the audit: chown, dac_override, fowner, fsetid,
kill, setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot, setfcap."""
ALL_IDS = 2**32 - 1
STOP_S = 3.0
"""Seconds between TERM and KILL where there is no namespace to end all that runs in it."""
EXIT_CANNOT = 70
"""The keeper's, when the sandbox could not be built; why is on stderr, in its last line."""
PLAN_MAX_BYTES = 1024 * 1024
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_LATER = (
    "encodings.idna", "encodings.latin_1", "encodings.utf_8", "subprocess", "stringprep", "zlib", "pty", "tty",
    "termios", "base64", "binascii", "hashlib", "secrets", "random", "ipaddress", "http", "urllib.parse",
    "array", "bisect", "hmac", "json", "sandman.descent", "sandman.pack", "sandman.tar", "sandman.terminal", "sandman.unpack",
)  # fmt: skip
"""What functions of the daemon and of the standard library import when they are called; a test looks for more."""


class Plan(NamedTuple):
    """What to start. `listener`: number of the socket. `env`: of the image. `root`: None: no namespaces, in the
    directory `workdir`. `shares_network`: with the machine."""

    listener: int
    token_sha256: str
    env: Mapping[str, str]
    workdir: str
    root: rootfs.Root | None
    shares_network: bool = False
    hostname: str = "sandbox"
    user: str = ""
    """Of the image: as whom its process 1 runs; "" for root."""
    scratch: str = ""
    """A directory that is this sandbox's alone, and goes with it."""
    procs: tuple[str, ...] = ()
    """Files of cgroups in which process 1 is written before anything is started by it."""


def read_plan(text: bytes) -> Plan:
    """The plan in a line of JSON.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    told: dict[str, Any] = json.loads(text)
    root = told.pop("root")
    if root is not None:
        root["kept"] = tuple(root.get("kept", ()))
        root["files"] = tuple((name, content) for name, content in root.get("files", ()))
        root["groups"] = tuple((name, place) for name, place in root.get("groups", ()))
        root = rootfs.Root(**root)
    told["procs"] = tuple(told.get("procs", ()))
    return Plan(root=root, **told)


def main() -> int:
    """Be the keeper of one sandbox; the exit code of its process 1, 128 + n when signal n ended it."""
    try:
        plan = read_plan(_line(0))
        if plan.root is not None:
            load_all()
            enter_namespaces(plan.shares_network)
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.line(f"cannot confine: {error}")
        return EXIT_CANNOT
    kernel.fill_standard_descriptors()
    keeper = os.getpid()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        _be_first(plan, reader, keeper)
    os.close(reader)
    os.close(plan.listener)
    try:
        for path in plan.procs:
            _write(path, str(child))
    except OSError as error:
        log.line(f"cannot confine: {error}")
        os.kill(child, signal.SIGKILL)
    os.write(writer, b"1")
    os.close(writer)
    code = _keep(child, is_whole=plan.root is not None)
    if plan.scratch:
        _remove(plan.scratch)
    return code


def _line(fd: int) -> bytes:
    """Up to the first newline; what follows is not taken."""
    data = bytearray()
    while not data.endswith(b"\n"):
        byte = os.read(fd, 1)
        if not byte or len(data) > PLAN_MAX_BYTES:
            raise ValueError("no plan on stdin")
        data += byte
    return bytes(data)


def _keep(child: int, *, is_whole: bool) -> int:
    """Wait for the child's end, or for stdin's, which is its end. `is_whole`: with it the kernel ends all others.

    Without a thread: after it has left its pid namespace a process cannot have another one.
    """
    end = os.pidfd_open(child)
    ready, _, _ = select.select([0, end], [], [])
    if end not in ready and not is_whole:
        _kill(child, signal.SIGTERM)
        select.select([end], [], [], STOP_S)
    if 0 in ready:
        _kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _remove(scratch: str) -> None:
    """Here, since what a sandbox made may be only its root's to remove."""
    try:
        removal.remove_tree(os.fsencode(scratch))
    except OSError as error:
        log.line(f"not all of {scratch} could be removed: {error}")


def _kill(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, number)


# --- namespaces ---


def enter_namespaces(shares_network: bool) -> None:
    """Leave the machine's namespaces, with this process's own user as root in the new ones; the machine's
    root takes all users along.

    Raises:
        OSError: the kernel or its administrator does not allow it.
    """
    uid, gid = os.geteuid(), os.getegid()
    go, told = os.pipe(), os.pipe()
    helper = os.fork()
    if helper == 0:
        os._exit(_map_ids(os.getppid(), uid, gid, go[0], told[1]))
    os.close(told[1])
    try:
        syscalls.unshare(OWN | (0 if shares_network else syscalls.CLONE_NEWNET))
        os.write(go[1], b"1")
        trouble = os.read(told[0], 200)
    finally:
        for fd in (*go, told[0]):
            os.close(fd)
        os.waitpid(helper, 0)
    if trouble:
        raise OSError(f"users cannot be mapped: {trouble.decode('utf-8', 'replace')}")
    os.setgid(0)
    os.setuid(0)


def _map_ids(pid: int, uid: int, gid: int, go: int, told: int) -> int:
    """Of a process that has left: to be done from outside. The helper's exit code."""
    if os.read(go, 1) != b"1":
        return 1
    try:
        is_root = uid == 0
        if not is_root:
            _write(f"/proc/{pid}/setgroups", "deny")
        _write(f"/proc/{pid}/uid_map", f"0 0 {ALL_IDS}" if is_root else f"0 {uid} 1")
        _write(f"/proc/{pid}/gid_map", f"0 0 {ALL_IDS}" if is_root else f"0 {gid} 1")
    except OSError as error:
        os.write(told, str(error).encode())
        return 1
    return 0


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock.fileno(), _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


# --- process 1 ---


def _be_first(plan: Plan, started: int, keeper: int) -> None:
    """The child's whole life."""
    code = EXIT_CANNOT
    try:
        if plan.root is None:
            os.setsid()
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        if plan.root is None and os.getppid() != keeper:
            os._exit(code)
        if os.read(started, 1) != b"1":
            os._exit(code)  # its keeper is gone
        os.close(started)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        code = _become_daemon(plan)
    except (OSError, ValueError) as error:
        log.line(f"cannot confine: {error}")
    finally:
        sys.stderr.flush()
        os._exit(code)


def _become_daemon(plan: Plan) -> int:
    sock = socket.socket(fileno=plan.listener)
    if plan.root is not None:
        if not plan.shares_network:
            _bring_up_loopback()
        socket.sethostname(plan.hostname)
        os.umask(0o022)
        # The keeper's own root is not to change.
        syscalls.unshare(syscalls.CLONE_NEWNS)
        rootfs.enter(plan.root)
        _become(plan.user)
        syscalls.keep_capabilities(KEPT_CAPABILITIES)
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl_by = syscalls.prctl
    os.environ.clear()
    os.environ.update(plan.env)
    _enter_workdir(plan.workdir)
    asked = signals.block_signals()
    from daemon.serve import serve  # noqa: PLC0415 - loaded before, where there is another root now

    return serve(config.Config(plan.token_sha256), sock, asked)


def _become(name: str) -> None:
    """The image's user, `name` or `uid`, with `:group` or without; users are those of the image.

    Raises:
        OSError: there is no such user here: where this machine gives its own user alone, none but root.
    """
    if not name:
        return
    wanted, _, group = name.partition(":")
    try:
        user = users.find(int(wanted) if wanted.isdigit() else wanted)
        gid = (int(group) if group.isdigit() else users.group_id(group)) if group else user.gid
        os.setgroups(user.groups)
        os.setgid(gid)
        os.setuid(user.uid)
    except (OSError, ValueError, SandmanError) as error:
        raise OSError(f"the image's user {name} cannot be had here: {error}") from error


def _enter_workdir(path: str) -> None:
    """As container runtimes do, it is made where the image lacks it."""
    try:
        os.makedirs(path, exist_ok=True)
        os.chdir(path)
    except OSError:
        os.chdir("/")


def load_all() -> None:
    """Load whatever the daemon loads later: from the sandbox's root this Python's files are not seen."""
    for name in _LATER:
        importlib.import_module(name)
    package = sys.modules["daemon"]
    for name in sorted(_modules(package.__path__)):
        importlib.import_module(f"daemon.{name}")


def _modules(paths: Iterable[str]) -> set[str]:
    import pkgutil  # noqa: PLC0415 - needed here alone

    return {
        found.name
        for found in pkgutil.iter_modules(paths)
        if not found.ispkg and not found.name.startswith("__")
    }


# --- what this machine can do ---


def probe(place: str) -> int:
    """Tell on stdout, as JSON, what this machine allows, by trying it: why not, "" where it does.

    Args:
        place: an empty directory of the file system where sandboxes are to be.
    """
    found = {
        "namespaces": _tries(_try_namespaces),
        "network": _tries(_try_network),
        "overlay": _tries(lambda: _try_overlay(place)),
    }
    print(json.dumps(found))  # noqa: T201 - it is the answer
    return 0


def _tries(trial: Callable[[], None]) -> str:
    """In a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            trial()
        except OSError as error:
            os.write(writer, (str(error) or type(error).__name__).encode()[:500])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode("utf-8", "replace")
    os.waitpid(child, 0)
    return text


def _try_namespaces() -> None:
    enter_namespaces(shares_network=True)
    child = os.fork()
    if child == 0:
        try:
            syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
            syscalls.mount("proc", "/proc", "proc")
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError("/proc cannot be mounted in new namespaces")


def _try_network() -> None:
    enter_namespaces(shares_network=False)
    _bring_up_loopback()


def _try_overlay(place: str) -> None:
    parts = [os.path.join(place, name) for name in ("lower", "upper", "work", "root")]
    for part in parts:
        os.makedirs(part, exist_ok=True)
    enter_namespaces(shares_network=True)
    rootfs.mount_overlay(parts[3], parts[0], parts[1], parts[2])
