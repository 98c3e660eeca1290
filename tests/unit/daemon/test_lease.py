"""The lease: a daemon that nobody reaches ends its sandbox, and no other does."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import httpx
import pytest

from daemon import lease
from daemon.lease import Lease, Watch
from sandman import names, wire
from sandman.errors import ConflictError, ExpiredError, UnreachableError
from tests.unit.daemon.conftest import IN_ITS_OWN_NAMESPACE
from tests.unit.daemon.harness import Daemon, exec_request, problem, processes_with, wait_until
from tests.unit.daemon.test_init import needs_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TERMS = wire.LeaseTerms(60.0, 10.0)


class TestState:
    def test_unarmed_it_waits_for_ever(self) -> None:
        state = Lease()
        assert state.left(1e12) == float("inf")
        state.enter(1.0)
        state.leave(2.0)
        assert state.left(1e12) == float("inf")

    def test_it_is_over_when_ttl_and_grace_have_passed_without_a_call(self) -> None:
        state = Lease()
        state.agree(TERMS, 100.0)
        assert state.left(100.0) == 70.0
        assert state.left(169.0) == 1.0
        assert state.left(170.0) == 0.0

    def test_each_call_begins_it_anew(self) -> None:
        state = Lease()
        state.agree(TERMS, 0.0)
        state.enter(50.0)
        state.leave(51.0)
        assert state.left(51.0) == 70.0

    def test_while_a_call_is_open_it_does_not_run(self) -> None:
        state = Lease()
        state.agree(TERMS, 0.0)
        state.enter(1.0)
        state.enter(2.0)
        state.leave(3.0)
        assert state.left(1e6) == 70.0
        state.leave(1e6)
        assert state.left(1e6 + 69.0) == 1.0


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class TestWatch:
    def test_it_ends_once_and_refuses_what_comes_too_late(self) -> None:
        clock, ended = Clock(), threading.Event()
        watch = Watch(ended.set, clock)
        watch.agree(TERMS)
        clock.time = 71.0
        watch._changed.set()
        assert ended.wait(5)
        with pytest.raises(ExpiredError):
            watch.enter()
        with pytest.raises(ExpiredError):
            watch.agree(TERMS)
        with pytest.raises(ExpiredError):
            watch.renew(1.0)

    def test_a_renewal_sets_the_lease_and_keeps_the_grace(self) -> None:
        clock, ended = Clock(), threading.Event()
        watch = Watch(ended.set, clock)
        with pytest.raises(ConflictError):
            watch.renew(1.0)
        watch.agree(TERMS)
        clock.time = 69.0
        assert watch.renew(600.0) == wire.LeaseTerms(600.0, 10.0)
        clock.time = 678.0
        assert watch._look() == 1.0
        clock.time = 0.0
        watch.renew(1000.0)
        assert (
            watch._look() == lease.LOOK_S
        )  # the clock goes on in a suspended machine, a wait does not

    def test_without_a_thread_it_is_not_armed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        watch = Watch(print, Clock())
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            with pytest.raises(UnreachableError) as caught:
                watch.agree(TERMS)
        assert (caught.value.cause, caught.value.retryable) == ("sandbox", True)
        assert watch._look() == lease.LOOK_S
        watch.agree(TERMS)

    def test_want_of_memory_does_not_keep_it_alive(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ended = threading.Event()
        naps: list[float] = []
        monkeypatch.setattr(lease.time, "sleep", naps.append)
        faults = [MemoryError()]

        def clock() -> float:
            if threading.current_thread().name == "lease" and faults:
                raise faults.pop()
            return time.monotonic()

        Watch(ended.set, clock).agree(wire.LeaseTerms(0.01))
        assert ended.wait(5)
        assert naps == [1.0]

    def test_the_clock_counts_suspended_time(self) -> None:
        assert abs(lease.now() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 5


ON_A_CLOCK = """
import sys
from pathlib import Path
from daemon import lease
from daemon.__main__ import main
lease.LOOK_S = 0.01
lease.Watch.__init__.__defaults__ = (lambda: float(Path({clock!r}).read_text()),)
sys.exit(main())
"""


class Timed(NamedTuple):
    """A daemon whose lease goes by a clock that the test owns."""

    daemon: Daemon
    clock: Path

    def at(self, seconds: float) -> None:
        """It is so late now, and every call of the client's is over: the thread that answered it has come
        to the next one."""
        assert self.daemon.client.get("/healthz").status_code == 200
        self.turn(seconds)

    def turn(self, seconds: float) -> None:
        """It is so late now."""
        new = self.clock.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self.clock)

    def claim(self, ttl_s: float, grace_s: float = 0.0, **more: object) -> httpx.Response:
        body = {"claim_id": "c", "lease": {"ttl_s": ttl_s, "grace_s": grace_s}, **more}
        return self.daemon.client.post("/v1/claim", json=body)

    def lives(self) -> bool:
        """Whether it lives on, some looks at its clock later."""
        return not wait_until(lambda: self.daemon.process.poll() is not None, 0.15)

    def ends(self) -> int | None:
        """The exit code, once it has ended."""
        wait_until(lambda: self.daemon.process.poll() is not None, 10)
        return self.daemon.process.poll()


@pytest.fixture
def timed(start: Callable[..., Daemon], tmp_path: Path) -> Callable[..., Timed]:
    def make(*prefix: str) -> Timed:
        clock = tmp_path / "clock"
        clock.write_text("100")
        script = tmp_path / "timed.py"
        script.write_text(ON_A_CLOCK.format(clock=str(clock)))
        return Timed(start(*prefix, program=(sys.executable, str(script))), clock)

    return make


def test_out_of_reach_it_kills_everything_and_exits(timed: Callable[..., Timed], mark: str) -> None:
    it = timed()
    it.daemon.sh(f"bash -c 'trap \"\" TERM; while :; do sleep 0.1; done; : {mark}' & true")
    assert wait_until(lambda: processes_with(mark))
    assert it.claim(60, 10).status_code == 200
    it.at(169)
    assert it.lives()
    it.at(170)
    assert it.ends() == names.EXIT_EXPIRED
    assert not processes_with(mark)
    assert any("not reached" in line for line in it.daemon.lines)


@needs_root
def test_out_of_reach_as_process_1(timed: Callable[..., Timed], mark: str) -> None:
    it = timed(*IN_ITS_OWN_NAMESPACE)
    # It would keep nothing alive, attached or not, for nobody reads it.
    body = {"argv": ["sh", "-c", f"sleep 60; : {mark}"], "detached": True}
    assert it.daemon.client.post("/v1/processes", json=body).status_code == 200
    it.at(1e6)
    assert it.lives()  # not armed
    assert it.claim(60).status_code == 200
    it.at(1e6 + 61)
    assert it.ends() == names.EXIT_EXPIRED
    assert wait_until(lambda: not processes_with(mark), 5)


def test_calls_keep_it_alive_and_what_has_no_token_does_not(timed: Callable[..., Timed]) -> None:
    it = timed()
    assert it.claim(60).status_code == 200
    it.at(150)
    assert it.daemon.client.get("/v1/info").status_code == 200
    it.at(200)
    assert it.lives()
    probe = httpx.get(f"http://127.0.0.1:{it.daemon.port}/healthz", verify=False)
    assert probe.status_code == 200
    bad = {"Authorization": "Bearer other"}
    assert it.daemon.client.get("/v1/info", headers=bad).status_code == 401
    other = {names.HEADER_BOOT_ID: "other"}
    assert it.daemon.client.get("/v1/info", headers=other).status_code == 410
    it.at(211)
    assert it.ends() == names.EXIT_EXPIRED


def test_17_an_open_call_keeps_it_alive_though_no_byte_moves(timed: Callable[..., Timed]) -> None:
    it = timed()
    assert it.claim(60).status_code == 200
    with it.daemon.connect() as sock:
        sock.sendall(exec_request({"argv": ["sleep", "60"]}))
        assert wait_until(lambda: it.daemon.client.get("/v1/info").json()["running"])
        it.at(100 + 3 * 3600)
        assert it.lives()
    # The command dies with its connection, and then nobody reaches it any more.
    assert wait_until(lambda: not it.daemon.client.get("/v1/info").json()["running"])
    for hours in range(4, 200):
        if it.lives():
            it.turn(
                100 + hours * 3600
            )  # again, should the call have been over only after the last turn
    assert it.ends() == names.EXIT_EXPIRED


def test_a_renewal_is_told_the_terms(timed: Callable[..., Timed]) -> None:
    it = timed()
    found = problem(it.daemon.client.post("/v1/renew", json={"ttl_s": 5}))
    assert (found["reason"], found["status"]) == ("conflict", 409)
    assert it.claim(60, 10).status_code == 200
    answer = it.daemon.client.post("/v1/renew", json={"ttl_s": 600})
    assert (answer.status_code, answer.json()) == (200, {"ttl_s": 600.0, "grace_s": 10.0})
    it.at(700)
    assert it.lives()
    assert it.daemon.client.post("/v1/renew", json={"ttl_s": 1}).status_code == 200
    it.at(711)
    assert it.ends() == names.EXIT_EXPIRED


def test_the_same_claim_again_sets_its_lease_anew(timed: Callable[..., Timed]) -> None:
    it = timed()
    assert it.claim(600).status_code == 200
    assert problem(it.claim(1, claim_id="other"))["reason"] == "conflict"
    it.at(150)
    assert it.lives()
    assert it.claim(10).status_code == 200
    it.at(161)
    assert it.ends() == names.EXIT_EXPIRED


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"lease": 5}, "lease"),
        ({"lease": {}}, "lease.ttl_s"),
        ({"lease": {"ttl_s": 0}}, "lease.ttl_s"),
        ({"lease": {"ttl_s": 1, "grace_s": -1}}, "lease.grace_s"),
        ({"lease": {"ttl_s": 1, "grace_s": False}}, "lease.grace_s"),
    ],
)
def test_terms_that_make_no_sense(daemon: Daemon, body: dict[str, object], field: str) -> None:
    found = problem(daemon.client.post("/v1/claim", json={"claim_id": "c", **body}))
    assert (found["reason"], found["field"]) == ("bad_request", field)


@pytest.mark.parametrize("body", [{}, {"ttl_s": 0}, {"ttl_s": True}, {"ttl_s": 1, "grace_s": 1}])
def test_renewals_that_make_no_sense(daemon: Daemon, body: dict[str, object]) -> None:
    found = problem(daemon.client.post("/v1/renew", json=body))
    assert found["reason"] == "bad_request"
