"""Composition root: builds the parts, starts the threads, serves until SIGTERM."""

# ruff: noqa: PTH109
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from daemon import init, kernel, signals
from daemon.config import Config, command_environment
from daemon.front import Front
from daemon.server import Server

if TYPE_CHECKING:
    import socket


def serve(config: Config, sock: socket.socket, asked: list[int]) -> int:
    """Serve on this socket until told to end; the exit code.

    Args:
        config: the daemon's settings.
        sock: listens.
        asked: what `signals.block_signals` returned.
    """
    kernel.hide_descriptors()
    config.port = sock.getsockname()[1]  # asked for as 0, it is any
    front = Front()
    Server(sock, front.handle).start()
    reaper = init.Reaper()
    boot_id = _open(front, config, reaper)
    signals.serve_signals(reaper.notice, asked)
    return _end(boot_id)


def _open(front: Front, config: Config, reaper: init.Reaper) -> str:
    """Load and open what needs a token; the boot id."""
    from daemon import application  # noqa: PLC0415 - the front answers meanwhile

    kernel.harden()
    kernel.adopt_orphans()
    signals.reset_signals()
    reaper.start()
    routes = application.build(config, reaper, command_environment(os.environb), workdir())
    front.open(routes.handle)
    return routes.boot_id


def workdir() -> bytes:
    """Where the image's commands run: the runtime starts us there."""
    try:
        return os.getcwdb()
    except OSError:
        return b"/"


def _end(boot_id: str) -> int:
    """As PID 1 the kernel ends all others with us, at once; else that is our own duty."""
    if os.getpid() == 1:
        os._exit(0)
    from daemon import stop  # noqa: PLC0415 - needed here alone

    stop.kill_everything(boot_id)
    return 0
