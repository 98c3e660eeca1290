"""Who uses the daemon of a workload, one after the other.

A sandbox has one claim in its life and ends with it. A workload goes on, so each guest finds its daemon as
if it had just started: another boot id, no claim, no commands, nothing of what the one before has seen.
"""

from __future__ import annotations

import os
import threading
import time

from daemon import application, lease, log, stop
from daemon.config import workload_environment
from daemon.lasting import Lasting
from daemon.state import Sandbox
from sandman.errors import ConflictError
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from daemon.config import Config
    from daemon.front import Front
    from daemon.init import Reaper
    from daemon.wrap import Workload
    from sandman.claims import Info

END_S = 5.0
"""Seconds for the last commands of a guest to be gone: a start that was under way is waited for."""
_LOOK_S = 0.02


class Guests:
    """Opens the daemon for one guest after the other.

    Args:
        front: hands calls to the guest's application.
        config: the daemon's settings.
        reaper: waits for the commands.
        workload: the pod's own command, which outlives all guests.
        workdir: where commands run.
    """

    def __init__(
        self, front: Front, config: Config, reaper: Reaper, workload: Workload, workdir: bytes
    ) -> None:
        self._front = front
        self._config = config
        self._reaper = reaper
        self._workload = workload
        self._workdir = workdir
        self._lock = threading.Lock()
        self._lasting = Lasting(workload.life, self.part)
        self._sandbox: Sandbox | None = None
        self._watch: lease.Watch | None = None

    @property
    def boot_id(self) -> str:
        """Of the guest that is there, or is waited for."""
        return self._sandbox.boot_id if self._sandbox else ""

    def receive(self) -> str:
        """Open for the next one; the boot id."""
        environment = workload_environment(os.environb)
        sandbox = self._sandbox = Sandbox(environment, self._workdir)
        watch = self._watch = lease.Watch(lambda: self._expire(sandbox))
        self._lasting.processes = None
        routes = application.build(self._config, self._reaper, sandbox, watch, self._lasting)
        self._front.open(routes.handle)
        return sandbox.boot_id

    def part(self, claim_id: str) -> Info:
        """End all that the guest with this claim has started, and open for the next one. Where nobody is,
        it has left already.

        Raises:
            ConflictError: another claim is there.
        """
        with self._lock:
            there = self._sandbox.claim_id if self._sandbox else None
            if there is not None and there != claim_id:
                raise ConflictError("another claim is there")
            if there is not None:
                self._part()
        return self._info()

    def _expire(self, sandbox: Sandbox) -> None:
        with self._lock:
            if self._sandbox is sandbox:
                # The pod is its owner's: what Sandman started in it goes, and nothing else.
                log.line("not reached for as long as the lease allows: its commands end")
                self._part()

    def _part(self) -> None:
        boot_id, watch, processes = self.boot_id, self._watch, self._lasting.processes
        if watch is not None:
            watch.end()
        if processes is not None:
            processes.close()
        self.receive()
        until = time.monotonic() + END_S
        stop.kill_everything(boot_id, spared=self._workload.pid)
        while processes is not None and processes.running and time.monotonic() < until:
            time.sleep(_LOOK_S)
            stop.kill_everything(boot_id, spared=self._workload.pid)
        if processes is not None and not processes.running:
            processes.dispose()

    def _info(self) -> Info:
        if self._sandbox is None:  # pragma: no cover - `receive` comes first
            raise ConflictError("nobody was ever received")
        return self._sandbox.info(0)
