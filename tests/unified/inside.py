"""Runs in the machine, by the daemon's own Python: daemons in groups of cgroup v2, and what they say of commands.

Prints a line `RESULT group command answer` each; `answer` is the daemon's own JSON, or empty where none came.
"""

# ruff: noqa: PTH102, PTH123
# What the daemon's own Python has is enough: `os` and `socket`.

from __future__ import annotations

import os
import socket
import sys
import time

HOME = "/.sandman"
PYTHON = f"{HOME}/bin/python3"
GROUPS = "/sys/fs/cgroup"
MEMORY_BYTES = 64 << 20
CPU = "20000 100000"
"""A fifth of a processor."""
LOOKS = 400
"""Twenty seconds of looks whether a daemon that does not answer has ended."""
TOKEN = "token"
GREEDY = "x = bytearray(200 << 20)"
BUSY = "import time; t = time.time()\\nwhile time.time() - t < 2: pass"


def python(script: str, more: str = "") -> str:
    """A command's JSON."""
    return f'{{"argv": ["{PYTHON}", "-I", "-S", "-c", "{script}"]{more}}}'


COMMANDS = {
    "true": '{"argv": ["true"]}',
    "busy": python(BUSY, ', "exec_id": "busy"'),
    "killed": '{"shell": "kill -9 $$"}',
    "greedy": python(GREEDY),
    "greedy-child": f'{{"shell": "{PYTHON} -I -S -c \'{GREEDY}\'; exit 5"}}',
    "after": '{"argv": ["true"]}',
}


def main(digest: str) -> None:
    """Three daemons, one after the other."""
    write(f"{GROUPS}/cgroup.subtree_control", "+memory +cpu")
    ask_all("node", digest)  # as in a pod that sees the node's tree
    ask_all("pod", digest, is_apart=True)  # as containerd has it
    ask_all("whole", digest, dies_whole=True)  # as kubelets have it by default


def ask_all(name: str, digest: str, *, is_apart: bool = False, dies_whole: bool = False) -> None:
    """Run the commands in a daemon of this group."""
    group = f"{GROUPS}/{name}"
    os.mkdir(group)
    write(f"{group}/memory.max", str(MEMORY_BYTES))
    write(f"{group}/cpu.max", CPU)
    write(f"{group}/memory.oom.group", str(int(dies_whole)))
    log, stderr = os.pipe()
    pid = os.fork()
    if pid == 0:
        become(group, stderr, digest, is_apart=is_apart)
    os.close(stderr)
    with open(log) as lines:
        port = int(lines.readline().split()[-1])
        for label, body in COMMANDS.items():
            print(f"RESULT {name} {label} {ask(port, body)}", flush=True)
        told = ask(port, '{"exec_ids": ["busy"]}', "/v1/evidence")
        print(f"RESULT {name} evidence {told}", flush=True)
        gone, status = end_of(pid, is_lost=not told)
        print(f"RESULT {name} daemon {status if gone else -1}", flush=True)
        if not gone:
            os.kill(pid, 9)
            os.waitpid(pid, 0)


def end_of(pid: int, *, is_lost: bool) -> tuple[int, int]:
    """How it ended, if it has: the kernel takes its time for what it kills, after it has closed its sockets."""
    for _ in range(LOOKS if is_lost else 1):
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            break
        time.sleep(0.05)
    return gone, status


def become(group: str, stderr: int, digest: str, *, is_apart: bool) -> None:
    """Be the daemon."""
    try:
        write(f"{group}/cgroup.procs", "0")
        if is_apart:
            os.unshare(os.CLONE_NEWCGROUP | os.CLONE_NEWNS)
            busybox("umount", "-l", GROUPS)
            busybox("mount", "-t", "cgroup2", "none", GROUPS)
        os.dup2(stderr, 2)
        env = {"PATH": "/bin", "SANDMAN_TOKEN_SHA256": digest, "SANDMAN_PORT": "0"}
        os.execve(PYTHON, [PYTHON, "-I", "-S", f"{HOME}/app", "serve"], env)
    finally:
        os._exit(98)


def busybox(*argv: str) -> None:
    """Run an applet."""
    pid = os.fork()
    if pid == 0:
        os.execv("/bin/busybox", ("busybox", *argv))
    if os.waitpid(pid, 0)[1]:
        raise OSError(f"{argv} failed")


def ask(port: int, body: str, path: str = "/v1/exec") -> str:
    """The daemon's answer to this command."""
    data = body.encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    answer = b""
    try:
        with socket.socket() as sock:
            sock.settimeout(60)
            sock.connect(("127.0.0.1", port))
            sock.sendall(head.encode() + data)
            while piece := sock.recv(65536):
                answer += piece
    except OSError:
        return ""
    return answer.partition(b"\r\n\r\n")[2].decode()


def write(path: str, text: str) -> None:
    """Into a file of the kernel's."""
    file = os.open(path, os.O_WRONLY)
    os.write(file, text.encode())
    os.close(file)


if __name__ == "__main__":
    main(sys.argv[1])
