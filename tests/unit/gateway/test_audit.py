"""One line for each sandbox that is handed over, and one for each that ends."""

from __future__ import annotations

import dataclasses

import pytest
import structlog.testing

from gateway import audit
from gateway.audit import Audit
from gateway.metrics import Metrics
from gateway.model import Ending, Ready, Timings
from gateway.registry import Ended, Registry
from sandman.errors import INFRASTRUCTURE
from tests.unit.gateway.test_roster import leased, pod, roster

RELEASED = Ending("released", "it was released")


def told(registry: Registry) -> list[str]:
    found: list[str] = []
    registry.on_end = lambda one, ending: found.append(f"{one.id} {ending.reason}")
    return found


def test_an_end_is_told_once_whoever_tells_of_it_first():
    one = leased()
    for steps in ("mark remove", "remember mark remove", "remove", "remember remove", "mark mark"):
        registry = Registry(keep_ended=9)
        found = told(registry)
        registry.put(one)
        for step in steps.split():
            if step == "mark":
                registry.put(dataclasses.replace(one, ending=RELEASED))
            elif step == "remember":
                registry.remember(one, RELEASED)
            else:
                registry.remove(one.uid, RELEASED)
        assert found == [f"{one.id} released"], steps


def test_what_ended_before_this_process_or_never_was_a_sandbox_is_not_told():
    registry = Registry(keep_ended=9)
    found = told(registry)
    registry.put(leased(ending=RELEASED))
    registry.remove(leased().uid, RELEASED)
    registry.put(pod())
    registry.put(pod(ending=RELEASED))
    registry.remove(pod().uid, RELEASED)
    assert found == []


def test_those_that_have_ended_are_listed_with_and_without_their_pods():
    registry = Registry(keep_ended=9)
    gone = leased(uid="1-u", run="r1")
    registry.put(gone)
    registry.remove(gone.uid, RELEASED)
    kept = leased(uid="2-u", run="r2", ending=RELEASED)
    registry.put(kept)
    registry.put(leased(uid="3-u", run="r1"))
    registry.put(leased(uid="4-u", tenant="zeta", ending=RELEASED))
    both = [Ended(gone.id, "acme", "r1", RELEASED), Ended(kept.id, "acme", "r2", RELEASED)]
    assert registry.ended("acme") == both
    assert registry.ended("acme", "r2") == both[1:]
    assert registry.ended("nobody") == []


@pytest.mark.parametrize(
    ("ending", "action", "cause"),
    [
        (RELEASED, "release", "caller"),
        (Ending("expired", "x"), "reclaim", "caller"),
        (Ending("expired", "x", cause=INFRASTRUCTURE), "reclaim", "infrastructure"),
        (Ending("idle", "x"), "reclaim", "caller"),
        (Ending("oom", "x"), "end", "sandbox"),
    ],
)
def test_an_end_is_one_line_and_one_count(ending, action, cause):
    one = Audit(lambda: True)
    with structlog.testing.capture_logs() as lines:
        one.ended(leased(run="r1"), ending)
    assert lines == [
        {
            "event": "audit", "log_level": "info", "action": action, "reason": ending.reason,
            "cause": cause, "detail": ending.detail, "sandbox": "p-00000001", "tenant": "acme",
            "run": "r1", "pool": "root", "node": "n1",
        }
    ]  # fmt: skip
    metrics = Metrics(roster())
    metrics.watch_ends(one.counts)
    line = f'sandman_ended_total{{cause="{cause}",reason="{ending.reason}"}} 1.0'
    assert line in metrics.render().decode()


def test_one_replica_tells():
    one = Audit(lambda: False)
    with structlog.testing.capture_logs() as lines:
        one.ended(leased(), RELEASED)
    assert (lines, one.counts) == ([], {})


def test_an_allocation_is_one_line():
    with structlog.testing.capture_logs() as lines:
        audit.allocated(Ready(leased(run="r1", tier="warm"), "b", Timings(1.0, 2.0, 3.4)))
    [line] = lines
    assert (line["action"], line["tier"], line["ms"], line["run"]) == (
        "allocation",
        "warm",
        6,
        "r1",
    )
