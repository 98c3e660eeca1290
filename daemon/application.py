"""All that answers with a token: which part serves which path.

What is for files is loaded at the first call that needs it. A placeholder waits for hours without one, and the
claim of a pod just started waits for what is loaded here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daemon.drain import Drain
from daemon.execution import Executions
from daemon.handles import Handles
from daemon.handshake import Handshake
from daemon.processes import Processes
from daemon.routes import Routes
from daemon.runner import Runner
from daemon.state import Sandbox
from daemon.usage import Meter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daemon.archives import Archives
    from daemon.config import Config
    from daemon.directories import Directories
    from daemon.init import Reaper
    from daemon.routes import Table
    from daemon.transfers import Transfers


def build(
    config: Config, reaper: Reaper, environment: Mapping[bytes, bytes], workdir: bytes
) -> Routes:
    """The application of one sandbox.

    Args:
        config: the daemon's settings.
        reaper: waits for the commands.
        environment: what commands get of the daemon's own environment.
        workdir: where commands run that name no directory.
    """
    sandbox = Sandbox(environment, workdir)
    processes = Processes(sandbox, reaper, Meter())
    handshake = Handshake(sandbox, processes)
    runner = Runner(processes, Drain())
    executions = Executions(processes, runner)
    handles = Handles(processes, runner)
    table: Table = {
        "/healthz": {},
        "/v1/claim": {"POST": handshake.claim},
        "/v1/info": {"GET": handshake.info},
        "/v1/exec": {"POST": executions.run},
        "/v1/processes": {"GET": handles.list, "POST": handles.start},
        "/v1/processes/{}": {"GET": handles.get, "DELETE": handles.kill},
        "/v1/processes/{}/output": {"GET": handles.output},
        "/v1/processes/{}/stdin": {"POST": handles.stdin},
        "/v1/processes/{}/signal": {"POST": handles.signal},
        "/v1/files": {
            "GET": lambda exchange: _files(sandbox).get(exchange),
            "HEAD": lambda exchange: _files(sandbox).get(exchange),
            "PUT": lambda exchange: _files(sandbox).put(exchange),
            "DELETE": lambda exchange: _files(sandbox).delete(exchange),
        },
        "/v1/files/stat": {"GET": lambda exchange: _directories(sandbox).stat(exchange)},
        "/v1/files/list": {"GET": lambda exchange: _directories(sandbox).list(exchange)},
        "/v1/files/move": {"POST": lambda exchange: _directories(sandbox).move(exchange)},
        "/v1/files/mkdir": {"POST": lambda exchange: _directories(sandbox).mkdir(exchange)},
        "/v1/archive": {
            "GET": lambda exchange: _archives(sandbox).get(exchange),
            "PUT": lambda exchange: _archives(sandbox).put(exchange),
        },
    }
    return Routes(table, config.token_sha256, sandbox.boot_id)


# Each keeps no more than the sandbox, so one may be made for each call.


def _files(sandbox: Sandbox) -> Transfers:
    from daemon.transfers import Transfers  # noqa: PLC0415 - at the first call

    return Transfers(sandbox)


def _directories(sandbox: Sandbox) -> Directories:
    from daemon.directories import Directories  # noqa: PLC0415 - at the first call

    return Directories(sandbox)


def _archives(sandbox: Sandbox) -> Archives:
    from daemon.archives import Archives  # noqa: PLC0415 - at the first call

    return Archives(sandbox)
