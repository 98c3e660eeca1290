"""What Locust loads: callers, the shape, and what workers and master tell each other.

`python -m loadtest` runs it; `locust -f loadtest/locustfile.py --headless …` does, too.
"""

from __future__ import annotations

import logging
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
from gevent.event import Event
from locust import LoadTestShape, User, events, task
from locust.exception import StopUser
from locust.runners import MasterRunner, WorkerRunner

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from loadtest import options, outcome  # noqa: E402 - Locust loads files, not packages
from loadtest.caller import Caller  # noqa: E402
from loadtest.conductor import Conductor  # noqa: E402
from loadtest.plan import PlanError  # noqa: E402
from loadtest.record import Record  # noqa: E402
from loadtest.scenarios import Role  # noqa: E402
from loadtest.session import Session  # noqa: E402
from loadtest.stage import Stage  # noqa: E402
from loadtest.target import TargetError  # noqa: E402

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from locust.env import Environment

    from sandman.errors import SandmanError

PHASE, DATA = "sandman-phase", "sandman"
STOP_S = 5
"""Before callers are cut off; the conductor has waited for them already."""
SPAWN_A_SECOND = 1000
logger = logging.getLogger("loadtest")


class Process:
    """What this process has: a stage for its callers, a conductor where it leads."""

    stage: Stage | None = None
    conductor: Conductor | None = None


@events.init_command_line_parser.add_listener
def add_options(parser: ArgumentParser, **_: object) -> None:
    """Our flags beside Locust's."""
    options.add(parser)


@events.init.add_listener
def begin(environment: Environment, **_: object) -> None:
    """Read what is to be done, and take the part of it that is this process's."""
    given = environment.parsed_options
    assert given is not None  # noqa: S101 - Locust's own type; here it is always there
    try:
        plan = options.plan_of(given)
        target = options.target_of(given, plan)
    except (PlanError, TargetError) as error:
        sys.stderr.write(f"loadtest: {error}\n")
        sys.exit(2)
    runner = environment.runner
    assert runner is not None  # noqa: S101 - likewise
    environment.stop_timeout = 0 if plan.scenario == "abandon" else STOP_S
    run = given.name or f"load-{plan.scenario}-{secrets.token_hex(4)}"
    if not isinstance(runner, MasterRunner):
        Process.stage = stage = Stage(plan, target, run, Event)
        runner.register_message(PHASE, lambda msg, **_: enter(stage, runner, msg.data))
    if not isinstance(runner, WorkerRunner):
        # As Ctrl-C, which releases everything: Locust hears of SIGTERM only when the shape is through.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        record = Record() if Process.stage is None else Process.stage.record
        Process.conductor = Conductor(
            plan, target, run, record, lambda phase: announce(runner, run, phase), gevent.sleep
        )


def announce(runner: Any, run: str, phase: str) -> None:  # noqa: ANN401 - one of Locust's runners
    """A phase begins, for each process."""
    logger.info("%s: %s", run, phase)
    processes = max(1, getattr(runner, "worker_count", 1))
    runner.send_message(PHASE, {"phase": phase, "run": run, "processes": processes})


def enter(stage: Stage, runner: Any, told: dict[str, Any]) -> None:  # noqa: ANN401 - as above
    """It does, here."""
    if stage.run != told["run"]:
        # Of a run before, which this worker has outlived.
        stage.record.drain()
    stage.run, stage.processes = told["run"], told["processes"]
    stage.mine = max(0, getattr(runner, "worker_index", 0)) % stage.processes
    stage.enter(told["phase"])


class SandboxCaller(User):
    """One caller, from its first connection to its last call."""

    @task
    def play(self) -> None:
        """Its whole part."""
        stage = Process.stage
        assert stage is not None  # noqa: S101 - callers are where a stage is
        tenant, url, target = stage.tenant(), stage.url(), stage.target
        session = Session.with_key(url, TRUST.of(stage), tenant.key, target.server_name)
        caller = Caller(session, stage.record, self._tell, gevent.sleep)
        try:
            Role(stage, caller, tenant, gevent.sleep).play()
        finally:
            session.close()
        raise StopUser

    def _tell(self, call: str, ms: float, error: SandmanError | None) -> None:
        """Locust's own tables have it, too."""
        self.environment.events.request.fire(
            request_type="API", name=call, response_time=ms, response_length=0, exception=error
        )


class Trust:
    """One context for all callers: it is what reads the authority's file."""

    def __init__(self) -> None:
        self._context: Any = None

    def of(self, stage: Stage) -> Any:  # noqa: ANN401 - gevent's SSLContext
        """It."""
        if self._context is None:
            self._context = stage.target.trust()
        return self._context


TRUST = Trust()


class Shape(LoadTestShape):
    """As many callers as the phase wants."""

    def tick(self) -> tuple[int, float] | None:
        """Once a second."""
        conductor = Process.conductor
        assert conductor is not None  # noqa: S101 - shapes are where somebody leads
        if not conductor.phase:
            gevent.spawn(conductor.keep)
            gevent.spawn(conductor.look)
        users = conductor.advance()
        return None if users is None else (users, SPAWN_A_SECOND)


@events.report_to_master.add_listener
def report(data: dict[str, Any], **_: object) -> None:
    """What callers of this worker met since the last time."""
    if Process.stage is not None:
        stage = Process.stage
        data[DATA] = {"run": stage.run, "record": stage.record.drain().document()}


@events.worker_report.add_listener
def add_up(data: dict[str, Any], **_: object) -> None:
    """What a worker tells."""
    conductor, told = Process.conductor, data.get(DATA)
    # A worker that was left over by another run has nothing to say here.
    if conductor is not None and told is not None and told["run"] == conductor.run:
        conductor.record.merge(Record.of(told["record"]))


@events.test_stopping.add_listener
def stop(**_: object) -> None:
    """Callers are told, however it came to that."""
    if Process.conductor is not None:
        Process.conductor.stop()


@events.quitting.add_listener
def end(environment: Environment, **_: object) -> None:
    """Nothing is left behind, and what was met is written down."""
    conductor, given = Process.conductor, environment.parsed_options
    if conductor is None or given is None or not conductor.phase:
        return
    conductor.finish()
    written = outcome.write(conductor, Path(given.report))
    environment.process_exit_code = 0 if written.is_well else 1
    sys.stdout.write(written.text)
