"""`POST /v1/evidence`: what a certificate needs of the inside. For gateways alone: it takes the daemon's token, and a
caller's calls do not come here.

The counters are those of descriptors that were opened before the first command; the rest is as a command would see it.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from daemon import outcome
from daemon.documents import dump
from daemon.exchange import Response
from daemon.outputs import NOTHING_SHA256
from sandman import evidence, names
from sandman.fields import Fields, load_object

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from daemon.process import Process
    from daemon.processes import Processes
    from daemon.state import Sandbox
    from sandman.wire import ExecResult

_MAX_BYTES = 16 * 1024
"""Of 64 names of 64 characters."""
_MOST_TEXT = 256
"""Characters of what variables say."""
_LOCALES = (b"LC_ALL", b"LANG")
"""In the order in which they count."""


class Evidence:
    """The handler of `evidence`."""

    def __init__(self, sandbox: Sandbox, processes: Processes) -> None:
        self._sandbox = sandbox
        self._processes = processes

    def tell(self, exchange: Exchange) -> None:
        """Tell of the sandbox, and of the commands that are named."""
        body = Fields(load_object(exchange.read_body(_MAX_BYTES)))
        exec_ids = body.texts("exec_ids") or ()
        body.finish()
        if len(exec_ids) > evidence.MAX_COMMANDS or not all(map(names.is_exec_id, exec_ids)):
            raise body.fail("exec_ids", f"a list of up to {evidence.MAX_COMMANDS} ids of commands")
        commands = [_told(name, self._processes.get(name)) for name in exec_ids]
        told = {"inside": self._inside(), "commands": commands}
        exchange.respond(Response(200, dump(told), names.MEDIA_JSON))

    def _inside(self) -> dict[str, object]:
        info = self._sandbox.info(self._processes.running)
        environment = self._sandbox.environment
        locale = next((environment[one] for one in _LOCALES if environment.get(one)), None)
        return {
            "daemon_version": info.version,
            "boot_id": info.boot_id,
            "uptime_s": info.uptime_s,
            **self._processes.meter.whole(),
            "visible_cpus": len(os.sched_getaffinity(0)),
            "time_zone": _text(environment.get(b"TZ")),
            "locale": _text(locale),
            "hostname": os.uname().nodename[:_MOST_TEXT],
            "clock": time.time(),
        }


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")[:_MOST_TEXT]


def _told(name: str, process: Process | None) -> dict[str, object]:
    """What is known of a command."""
    if process is None:
        return {"exec_id": name, "state": "unknown"}
    if not process.is_settled:
        return {"exec_id": name, "state": "running"}
    if process.result is None:
        return {"exec_id": name, "state": "lost", "detail": str(process.failure)[:_MOST_TEXT]}
    return _ended(process, process.result)


def _ended(process: Process, result: ExecResult) -> dict[str, object]:
    told = result.to_json(streams=False)
    for name in ("stdout", "stderr"):
        del told[f"{name}_truncated"]
        stream = process.streams.get(name)
        told[f"{name}_sha256"] = stream.log.sha256 if stream else NOTHING_SHA256
    pairs = zip(process.after.stalled_s, process.before.stalled_s, strict=True)
    stalled = [outcome.difference(*pair) for pair in pairs]
    told["stalled_s"] = dict(zip(evidence.PRESSURES, stalled, strict=True))
    return {**told, "state": "ended", "started_at": process.info.started_at}
