"""Composition root: builds the parts, starts the threads, serves until SIGTERM."""

# ruff: noqa: PTH109
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import os

from daemon import init, kernel, lease, log, signals
from daemon.config import Config, command_environment
from daemon.front import Front
from daemon.server import Server
from sandman import names
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from daemon.guests import Guests
    from daemon.init import Reaper
    from daemon.wrap import Workload


NO_BOOT = "0" * 32
"""Where nothing could be loaded that would have a boot id: no process bears its mark."""


def serve(
    config: Config, sock: socket.socket, asked: list[int], command: Sequence[str] = ()
) -> int:
    """Serve on this socket until told to end; the exit code.

    Args:
        config: the daemon's settings.
        sock: listens.
        asked: what `signals.block_signals` returned.
        command: the pod's own command, which this daemon runs and ends with; empty: there is none.
    """
    front = Front()
    reaper = init.Reaper()
    try:
        _start_threads(config, sock, front, reaper)
        workload = _beside(reaper) if command else None
    except Exception as error:
        if not command:
            raise
        from daemon import wrap  # noqa: PLC0415 - somebody's production does not need us

        log.line(f"cannot serve: {type(error).__name__}: {error}")
        return wrap.instead(command)
    if workload is None:
        boot_id = _open(front, config, reaper)
        signals.serve_signals(reaper.notice, asked)
        return _end(boot_id, 0)
    code = workload.start(command)
    if code is not None:
        return code
    guests = _try_receive(front, config, reaper, workload)
    code = workload.attend(reaper.notice, asked)
    return _end(guests.boot_id if guests else NO_BOOT, code)


def _start_threads(config: Config, sock: socket.socket, front: Front, reaper: init.Reaper) -> None:
    kernel.hide_descriptors()
    config.port = sock.getsockname()[1]  # asked for as 0, it is any
    Server(sock, front.handle).start()
    kernel.harden()
    kernel.adopt_orphans()
    signals.reset_signals()
    reaper.start()


def _beside(reaper: init.Reaper) -> Workload:
    """The pod's own command, to be started."""
    from daemon import stop  # noqa: PLC0415 - sandboxes need none of this
    from daemon.wrap import Workload  # noqa: PLC0415

    stop.reaches_all = False  # there is somebody's production beside it
    return Workload(reaper)


def _try_receive(front: Front, config: Config, reaper: Reaper, workload: Workload) -> Guests | None:
    """Load and open what needs a token, beside a command that runs: a fault of ours must not end it."""
    try:
        from daemon.guests import Guests  # noqa: PLC0415 - sandboxes need none of it

        guests = Guests(front, config, reaper, workload, workdir())
        guests.receive()
    except Exception as error:  # noqa: BLE001 - whatever it is
        log.line(f"cannot serve: {type(error).__name__}: {error}")
        front.open(None)
        return None
    return guests


def _open(front: Front, config: Config, reaper: Reaper) -> str:
    """Load and open what needs a token; the boot id."""
    from daemon import application  # noqa: PLC0415 - the front answers meanwhile
    from daemon.state import Sandbox  # noqa: PLC0415

    sandbox = Sandbox(command_environment(os.environb), workdir())
    watch = lease.Watch(lambda: _expire(sandbox.boot_id))
    front.open(application.build(config, reaper, sandbox, watch).handle)
    return sandbox.boot_id


def workdir() -> bytes:
    """Where the image's commands run: the runtime starts us there."""
    try:
        return os.getcwdb()
    except OSError:
        return b"/"


def _expire(boot_id: str) -> None:
    """What the end of the lease does."""
    log.line("not reached for as long as the lease allows: the sandbox ends")
    os._exit(_end(boot_id, names.EXIT_EXPIRED))


def _end(boot_id: str, code: int) -> int:
    """As PID 1 the kernel ends all others with us, at once; else that is our own duty."""
    if os.getpid() == 1:
        os._exit(code)
    from daemon import stop  # noqa: PLC0415 - needed here alone

    stop.kill_everything(boot_id)
    return code
