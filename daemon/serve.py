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
    from collections.abc import Callable, Sequence

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
        boot_id = _open(front, config, reaper, None)
        signals.serve_signals(reaper.notice, asked)
        return _end(boot_id, 0)
    code = workload.start(command)
    if code is not None:
        return code
    boot_id = _try_open(front, config, reaper, workload)
    return _end(boot_id, workload.attend(reaper.notice, asked))


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


def _try_open(front: Front, config: Config, reaper: init.Reaper, workload: Workload) -> str:
    """The same as `_open` beside a command that runs: a fault of ours must not end it."""
    try:
        return _open(front, config, reaper, workload)
    except Exception as error:  # noqa: BLE001 - whatever it is
        log.line(f"cannot serve: {type(error).__name__}: {error}")
        front.open(None)
        return NO_BOOT


def _open(front: Front, config: Config, reaper: init.Reaper, workload: Workload | None) -> str:
    """Load and open what needs a token; the boot id."""
    from daemon import application  # noqa: PLC0415 - the front answers meanwhile
    from daemon.state import Sandbox  # noqa: PLC0415

    sandbox = Sandbox(command_environment(os.environb), workdir())
    watch = lease.Watch(_expiry(sandbox.boot_id, workload))
    spared = () if workload is None else (workload.life,)
    front.open(application.build(config, reaper, sandbox, watch, spared).handle)
    return sandbox.boot_id


def workdir() -> bytes:
    """Where the image's commands run: the runtime starts us there."""
    try:
        return os.getcwdb()
    except OSError:
        return b"/"


def _expiry(boot_id: str, workload: Workload | None) -> Callable[[], None]:
    """What the end of the lease does."""

    def end_sandbox() -> None:
        log.line("not reached for as long as the lease allows: the sandbox ends")
        os._exit(_end(boot_id, names.EXIT_EXPIRED))

    def end_commands() -> None:
        from daemon import stop  # noqa: PLC0415 - needed here alone

        # The pod is its owner's: what Sandman started in it goes, and nothing else.
        log.line("not reached for as long as the lease allows: its commands end")
        stop.kill_everything(boot_id, spared=workload.pid if workload else 0)

    return end_sandbox if workload is None else end_commands


def _end(boot_id: str, code: int) -> int:
    """As PID 1 the kernel ends all others with us, at once; else that is our own duty."""
    if os.getpid() == 1:
        os._exit(code)
    from daemon import stop  # noqa: PLC0415 - needed here alone

    stop.kill_everything(boot_id)
    return code
