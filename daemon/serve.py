"""Composition root: listens, builds the rest, serves until SIGTERM."""

# ruff: noqa: PTH109
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import os

from daemon import init, kernel, log
from daemon.config import Config, command_environment
from daemon.front import Front
from daemon.server import Server, listen


def serve() -> int:
    """Run the daemon until it is told to end; the exit code.

    Raises:
        ConfigError: a setting is missing or malformed.
        OSError: the port cannot be had.
    """
    config = Config.from_env(os.environ)
    kernel.fill_standard_descriptors()
    kernel.hide_descriptors()
    init.block_signals()
    sock = listen(config.port)
    front = Front()
    Server(sock, front.handle).start()
    log.line(f"listens on port {sock.getsockname()[1]}")
    reaper = _open(front, config)
    init.serve_signals(reaper)
    return _end()


def _open(front: Front, config: Config) -> init.Reaper:
    """Load and open what needs a token."""
    from daemon import application  # noqa: PLC0415 - the front answers meanwhile

    kernel.harden()
    kernel.adopt_orphans()
    init.reset_signals()
    reaper = init.Reaper()
    reaper.start()
    routes = application.build(config, reaper, command_environment(os.environb), _workdir())
    front.open(routes.handle)
    return reaper


def _workdir() -> bytes:
    try:
        return os.getcwdb()
    except OSError:
        return b"/"


def _end() -> int:
    """As PID 1 the kernel ends all others with us, at once; else that is our own duty."""
    if os.getpid() == 1:
        os._exit(0)
    from daemon import stop  # noqa: PLC0415 - needed here alone

    stop.kill_everything()
    return 0
