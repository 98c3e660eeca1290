"""Composition root: builds the parts, starts the threads, ends with SIGTERM."""

# ruff: noqa: PTH
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from daemon import config, init, kernel, launch, log, stop, users
from daemon.drain import Drain
from daemon.execution import Executions
from daemon.handshake import Handshake
from daemon.processes import Processes
from daemon.routes import Routes
from daemon.server import Server, listen
from daemon.state import Sandbox
from daemon.transfers import Transfers
from daemon.usage import Meter

if TYPE_CHECKING:
    from daemon.routes import Table


def serve() -> int:
    """Run the daemon until it is told to end; the exit code.

    Raises:
        ConfigError: a setting is missing or malformed.
    """
    settings = config.Config.from_env(os.environ)
    kernel.fill_standard_descriptors()
    kernel.hide_descriptors()
    init.block_signals()
    sock = listen(settings.port)
    environment = config.command_environment(os.environb)
    if b"HOME" not in environment:
        environment[b"HOME"] = launch.user_environment(users.find(os.geteuid()))[b"HOME"]
    sandbox = Sandbox(environment, _workdir())
    reaper = init.Reaper()
    routes = Routes(build(sandbox, reaper), settings.token_sha256, sandbox.boot_id)
    Server(sock, routes.handle).start()
    log.line(f"boot {sandbox.boot_id} listens on port {sock.getsockname()[1]}")
    kernel.harden()
    kernel.adopt_orphans()
    init.reset_signals()
    reaper.start()
    init.serve_signals(reaper)
    return _end()


def build(sandbox: Sandbox, reaper: init.Reaper) -> Table:
    """All that answers, by path and method."""
    processes = Processes(sandbox, reaper, Meter())
    handshake = Handshake(sandbox, processes)
    executions = Executions(processes, Drain())
    files = Transfers(sandbox)
    return {
        "/v1/claim": {"POST": handshake.claim},
        "/v1/info": {"GET": handshake.info},
        "/v1/exec": {"POST": executions.run},
        "/v1/files": {
            "GET": files.get,
            "HEAD": files.get,
            "PUT": files.put,
            "DELETE": files.delete,
        },
    }


def _workdir() -> bytes:
    try:
        return os.getcwdb()
    except OSError:
        return b"/"


def _end() -> int:
    """As PID 1 the kernel ends all others with us, at once; else that is our own duty."""
    if os.getpid() == 1:
        os._exit(0)
    stop.kill_everything()
    return 0
