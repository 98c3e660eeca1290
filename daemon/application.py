"""All that answers with a token: which part serves which path.

Only what a claim needs is loaded at the start: the caller of a swap waits for it. What commands need follows once the
first claim or look has been answered; the rest is loaded at the first call that needs it, and a placeholder waits for
hours without one.
"""

from __future__ import annotations

from daemon.handshake import Handshake
from daemon.routes import ANY, PORTS, Later, Route, Routes
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from daemon.archives import Archives
    from daemon.config import Config
    from daemon.directories import Directories
    from daemon.evidence import Evidence
    from daemon.execution import Executions
    from daemon.farewell import Farewell
    from daemon.handles import Handles
    from daemon.init import Reaper
    from daemon.lasting import Lasting
    from daemon.lease import Watch
    from daemon.ports import Ports
    from daemon.probing import Probing
    from daemon.processes import Processes
    from daemon.runner import Runner
    from daemon.sessions import Sessions
    from daemon.state import Sandbox
    from daemon.transfers import Transfers


_STREAMS = ("stdout", "stderr")
_PATH = ("path", "user")
"""What every call about a path takes in its query."""


def build(
    config: Config, reaper: Reaper, sandbox: Sandbox, lease: Watch, lasting: Lasting | None = None
) -> Routes:
    """The application of one sandbox.

    Args:
        config: the daemon's settings.
        reaper: waits for the commands.
        sandbox: where and as whom commands run.
        lease: is told of each call.
        lasting: of a workload, which outlives its sandboxes.
    """
    processes = Later(lambda: _processes(sandbox, reaper, lasting))
    runner = Later(lambda: _runner(processes.made(), lasting))
    executions = Later(lambda: _executions(processes.made(), runner.made()))
    handles = Later(lambda: _handles(processes.made(), runner.made()))

    def running() -> int:
        return processes.made().running if processes.is_made else 0

    def rested_at() -> float | None:
        return processes.made().rested_at if processes.is_made else 0.0

    prepare = lambda: (executions.made(), handles.made())  # noqa: E731 - when the first answer is on its way
    handshake = Handshake(sandbox, running, rested_at, lease, prepare)
    files = Later(lambda: _files(sandbox))
    directories = Later(lambda: _directories(sandbox))
    archives = Later(lambda: _archives(sandbox))
    sessions = Later(lambda: _sessions(processes.made()))
    ports = Later(lambda: _ports(config.port))
    probing = Later(_probing)
    evidence = Later(lambda: _evidence(sandbox, processes.made()))
    table: dict[str, dict[str, Route]] = {
        "/healthz": {},
        "/v1/claim": {"POST": Route(handshake.claim)},
        "/v1/renew": {"POST": Route(handshake.renew)},
        "/v1/info": {"GET": Route(handshake.info)},
        "/v1/probe": {"POST": probing.to("probe")},
        "/v1/evidence": {"POST": evidence.to("tell")},
        "/v1/exec": {"POST": executions.to("run")},
        "/v1/processes": {"GET": handles.to("list"), "POST": handles.to("start")},
        "/v1/processes/{}": {"GET": handles.to("get", "wait_s"), "DELETE": handles.to("kill")},
        "/v1/processes/{}/output": {"GET": handles.to("output", *_STREAMS)},
        "/v1/processes/{}/stdin": {"POST": handles.to("stdin", "offset", "close")},
        "/v1/processes/{}/signal": {"POST": handles.to("signal")},
        "/v1/processes/{}/terminal": {"GET": handles.to("terminal", "stdout", "exclusive")},
        "/v1/processes/{}/resize": {"POST": handles.to("resize")},
        "/v1/sessions": {"GET": sessions.to("list"), "POST": sessions.to("start")},
        "/v1/sessions/{}": {"GET": sessions.to("get"), "DELETE": sessions.to("close", "key")},
        "/v1/sessions/{}/run": {"POST": sessions.to("run", "wait_s")},
        "/v1/sessions/{}/input": {"POST": sessions.to("input", "wait_s")},
        "/v1/sessions/{}/interrupt": {"POST": sessions.to("interrupt", "wait_s")},
        "/v1/files": {
            "GET": files.to("get", *_PATH, "max_bytes"),
            "HEAD": files.to("get", *_PATH, "max_bytes"),
            "PUT": files.to("put", *_PATH, "mode", "sha256"),
            "DELETE": files.to("delete", *_PATH, "recursive"),
        },
        "/v1/files/stat": {"GET": directories.to("stat", *_PATH, "follow")},
        "/v1/files/list": {"GET": directories.to("list", *_PATH, "depth")},
        "/v1/files/move": {"POST": directories.to("move")},
        "/v1/files/mkdir": {"POST": directories.to("mkdir")},
        "/v1/archive": {"GET": archives.to("get", *_PATH), "PUT": archives.to("put", *_PATH)},
        PORTS: {ANY: ports.to_all("call")},
    }
    if lasting is not None:
        table["/v1/release"] = {"POST": Later(lambda: _farewell(lasting)).to("release")}
    return Routes(table, config.token_sha256, sandbox.boot_id, lease)


# Each imports what few sandboxes need, or what all need a moment later: see `Later`.
# ruff: noqa: PLC0415


def _processes(sandbox: Sandbox, reaper: Reaper, lasting: Lasting | None) -> Processes:
    from daemon.processes import Processes
    from daemon.usage import Meter

    if lasting is None:
        return Processes(sandbox, reaper, Meter())
    lasting.processes = Processes(sandbox, reaper, lasting.meter, (lasting.spared,))
    return lasting.processes


def _runner(processes: Processes, lasting: Lasting | None) -> Runner:
    from daemon.drain import Drain
    from daemon.runner import Runner

    return Runner(processes, lasting.drain if lasting else Drain())


def _farewell(lasting: Lasting) -> Farewell:
    from daemon.farewell import Farewell

    return Farewell(lasting.part)


def _executions(processes: Processes, runner: Runner) -> Executions:
    from daemon.execution import Executions

    return Executions(processes, runner)


def _handles(processes: Processes, runner: Runner) -> Handles:
    from daemon.handles import Handles

    return Handles(processes, runner)


def _files(sandbox: Sandbox) -> Transfers:
    from daemon.transfers import Transfers

    return Transfers(sandbox)


def _directories(sandbox: Sandbox) -> Directories:
    from daemon.directories import Directories

    return Directories(sandbox)


def _archives(sandbox: Sandbox) -> Archives:
    from daemon.archives import Archives

    return Archives(sandbox)


def _sessions(processes: Processes) -> Sessions:
    from daemon.sessions import Sessions

    return Sessions(processes)


def _probing() -> Probing:
    from daemon.probing import Probing

    return Probing()


def _evidence(sandbox: Sandbox, processes: Processes) -> Evidence:
    from daemon.evidence import Evidence

    return Evidence(sandbox, processes)


def _ports(own_port: int) -> Ports:
    from daemon.ports import Ports

    return Ports(own_port)
