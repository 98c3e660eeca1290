"""Starts a browser in a network of its own: `python alone.py PORT REPLICAS PROGRAM ARGUMENTS…`.

Chromium breaks off all that it loads whenever an interface of the machine comes or goes (ERR_NETWORK_CHANGED), and beside
these tests a whole cluster comes and goes. In its own network there is a loopback that never changes, and on it one
port, which leads to the replicas (`host:port`, separated by commas) in turns. Nothing else can be reached, so that nothing else is asked.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import signal
import socket
import struct
import sys
import threading

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
SIOCGIFFLAGS, SIOCSIFFLAGS = 0x8913, 0x8914
IFF_UP = 1

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Becomes the program."""
    port, replicas, program = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        theirs.close()
        _, [listener], _, _ = socket.recv_fds(ours, 1, 1)
        relay(socket.socket(fileno=listener), replicas)
    if libc.unshare(CLONE_NEWNET) != 0:
        sys.exit(f"no network of its own: {os.strerror(ctypes.get_errno())}")
    loopback_up()
    with socket.create_server(("127.0.0.1", port)) as server:
        socket.send_fds(theirs, [b"x"], [server.fileno()])
    os.execv(program[0], program)


def loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        told = fcntl.ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack("16sh14x", told)[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def relay(server: socket.socket, replicas: list[str]) -> None:
    """Until the browser is gone, and this with it."""
    for replica in itertools.cycle(replicas):
        host, _, port = replica.rpartition(":")
        caller, _ = server.accept()
        try:
            called = socket.create_connection((host, int(port)))
        except OSError:  # the gateway was stopped
            caller.close()
            continue
        for one, other in ((caller, called), (called, caller)):
            threading.Thread(target=pump, args=(one, other), daemon=True).start()


def pump(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        one.close()
        other.close()


if __name__ == "__main__":
    main()
