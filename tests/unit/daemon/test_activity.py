"""What a daemon tells of the use that there was for its sandbox: what a gateway asks before it ends one."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from daemon.lease import Lease, Watch
from sandman import wire
from tests.unit.daemon.harness import Daemon, wait_until
from tests.unit.daemon.shells import Shell
from tests.unit.daemon.test_lease import TERMS, Clock, Timed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class TestState:
    def test_a_placeholder_was_never_used(self) -> None:
        assert Lease().ages(100.0) == (None, None)
        assert Watch(print, Clock()).activity(None) == (None, None, None)

    def test_a_look_is_reach_and_no_use(self) -> None:
        state = Lease()
        state.agree(TERMS, 0.0)
        state.use(0.0)
        state.enter(50.0, is_use=False)
        state.leave(50.0, is_use=False)
        assert state.left(50.0) == 70.0
        assert state.ages(60.0) == (60.0, None)

    def test_while_a_call_is_open_it_is_used(self) -> None:
        state = Lease()
        state.enter(10.0)
        state.enter(20.0)
        state.leave(30.0)
        assert state.ages(99.0) == (0.0, None)
        state.leave(100.0)
        assert state.ages(110.0) == (10.0, None)

    def test_idle_is_since_call_and_command_were_over(self) -> None:
        clock = Clock()
        watch = Watch(print, clock)
        watch.agree(TERMS)
        clock.time = 50.0
        assert watch.activity(20.0) == (50.0, None, 30.0)
        assert watch.activity(None) == (50.0, None, 0.0)
        watch.renew(60.0)
        assert watch.activity(20.0)[1] is None
        watch.renew(60.0, asked=True)
        assert watch.activity(20.0)[1] == 0.0


PROGRAM = """
import sys
from pathlib import Path
from daemon import lease
from daemon.__main__ import main
lease.LOOK_S = 0.01
lease.now = lambda: float(Path({clock!r}).read_text())
lease.Watch.__init__.__defaults__ = (lease.now,)
sys.exit(main())
"""


@pytest.fixture
def timed(start: Callable[..., Daemon], tmp_path: Path) -> Timed:
    clock = tmp_path / "clock"
    clock.write_text("100")
    script = tmp_path / "timed.py"
    script.write_text(PROGRAM.format(clock=str(clock)))
    it = Timed(start(program=(sys.executable, str(script))), clock)
    assert it.claim(1e6).status_code == 200
    return it


def told(it: Timed) -> tuple[float | None, float | None, float | None]:
    info = wire.Info.from_json(it.daemon.client.get("/v1/info").json())
    return info.used_s, info.renewed_s, info.idle_s


def test_calls_are_use_and_status_reads_are_none(timed: Timed) -> None:
    timed.at(150)
    assert told(timed) == (50.0, None, 50.0)
    client = timed.daemon.client
    for path in ("info", "processes", "processes/x", "sessions", "sessions/x"):
        client.get(f"/v1/{path}")
    assert client.post("/v1/renew", json={"ttl_s": 1e6}).status_code == 200
    assert told(timed) == (50.0, None, 50.0)
    assert client.post("/v1/renew", json={"ttl_s": 1e6, "asked": True}).status_code == 200
    assert told(timed) == (50.0, 0.0, 50.0)
    assert client.get("/v1/files", params={"path": "/nowhere"}).status_code == 404
    assert wait_until(lambda: told(timed) == (0.0, 0.0, 0.0))
    timed.at(160)
    # Who waits for a command's end is somebody.
    client.get("/v1/processes/x", params={"wait_s": "1"})
    assert wait_until(lambda: told(timed)[0] == 0.0)


def test_a_detached_command_is_activity_until_it_ends(timed: Timed) -> None:
    body = {"argv": ["cat"], "stdin_open": True, "detached": True, "exec_id": "c"}
    assert timed.daemon.client.post("/v1/processes", json=body).status_code == 200
    timed.at(200)
    assert told(timed) == (100.0, None, 0.0)
    timed.daemon.client.post("/v1/processes/c/signal", json={"signal": "KILL"})
    assert wait_until(lambda: told(timed)[2] == 0.0)
    assert wait_until(
        lambda: timed.daemon.client.get("/v1/processes/c").json()["state"] != "running"
    )
    timed.at(230)
    assert told(timed)[2] == 30.0


def test_of_a_session_its_command_is_activity_and_its_shell_is_none(timed: Timed) -> None:
    with Shell(timed.daemon) as shell:
        timed.at(200)
        assert told(timed)[2] == 100.0
        # It answers at once that the command runs on.
        answer = shell.post("run", {"wait_s": "0.01"}, command="tail -f /dev/null")
        assert json.loads(answer.text)["state"] == "running"
        timed.at(300)
        assert told(timed)[2] == 0.0
        timed.at(400)
        assert shell.post("interrupt").status_code == 200
        assert wait_until(lambda: told(timed)[2] == 0.0)
        timed.at(450)
        assert told(timed)[2] == 50.0
