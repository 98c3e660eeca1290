"""All that answers with a token: which part serves which path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daemon.archives import Archives
from daemon.directories import Directories
from daemon.drain import Drain
from daemon.execution import Executions
from daemon.handles import Handles
from daemon.handshake import Handshake
from daemon.processes import Processes
from daemon.routes import ANY, PORTS, Later, Routes
from daemon.runner import Runner
from daemon.state import Sandbox
from daemon.transfers import Transfers
from daemon.usage import Meter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daemon.config import Config
    from daemon.init import Reaper
    from daemon.routes import Handler


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
    files = Transfers(sandbox)
    directories = Directories(sandbox)
    archives = Archives(sandbox)
    sessions = Later(lambda: _sessions(processes))
    ports = Later(lambda: _ports(config.port))
    table: dict[str, dict[str, Handler]] = {
        "/healthz": {},
        "/v1/claim": {"POST": handshake.claim},
        "/v1/info": {"GET": handshake.info},
        "/v1/exec": {"POST": executions.run},
        "/v1/processes": {"GET": handles.list, "POST": handles.start},
        "/v1/processes/{}": {"GET": handles.get, "DELETE": handles.kill},
        "/v1/processes/{}/output": {"GET": handles.output},
        "/v1/processes/{}/stdin": {"POST": handles.stdin},
        "/v1/processes/{}/signal": {"POST": handles.signal},
        "/v1/processes/{}/terminal": {"GET": handles.terminal},
        "/v1/processes/{}/resize": {"POST": handles.resize},
        "/v1/sessions": {"GET": sessions.to("list"), "POST": sessions.to("start")},
        "/v1/sessions/{}": {"GET": sessions.to("get"), "DELETE": sessions.to("close")},
        "/v1/sessions/{}/run": {"POST": sessions.to("run")},
        "/v1/sessions/{}/input": {"POST": sessions.to("input")},
        "/v1/sessions/{}/interrupt": {"POST": sessions.to("interrupt")},
        "/v1/files": {
            "GET": files.get,
            "HEAD": files.get,
            "PUT": files.put,
            "DELETE": files.delete,
        },
        "/v1/files/stat": {"GET": directories.stat},
        "/v1/files/list": {"GET": directories.list},
        "/v1/files/move": {"POST": directories.move},
        "/v1/files/mkdir": {"POST": directories.mkdir},
        "/v1/archive": {"GET": archives.get, "PUT": archives.put},
        PORTS: {ANY: ports.to("call")},
    }
    return Routes(table, config.token_sha256, sandbox.boot_id)


def _sessions(processes: Processes) -> object:
    from daemon.sessions import Sessions  # noqa: PLC0415 - see `Later`

    return Sessions(processes)


def _ports(own_port: int) -> object:
    from daemon.ports import Ports  # noqa: PLC0415 - see `Later`

    return Ports(own_port)
