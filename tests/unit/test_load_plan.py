"""What a load test does and when, and what it refuses to be put on."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import options, plan, target
from loadtest.plan import ARRIVE, HOLD, OVER, WORK, Plan, PlanError, Progress
from loadtest.stage import Stage

DOCUMENT = Path(__file__).parents[2] / "docs/loadtest.md"


def test_every_load_that_the_document_names_is_one():
    told = DOCUMENT.read_text().partition("## One command each")[2].partition("## Scenarios")[0]
    # In its table: the block before has commands that run.
    spans = [span.split() for span in re.findall(r"`([^`]+)`", told.rpartition("```")[2])]
    parser = argparse.ArgumentParser()
    options.add(parser)
    parser.add_argument("--processes", type=int)  # Locust's own
    named = [words for words in spans if words and words[0] in plan.SCENARIOS]
    plans = [options.plan_of(parser.parse_args(["--scenario", *words])) for words in named]
    assert {one.scenario for one in plans} == set(plan.SCENARIOS)
    assert max(one.n for one in plans) == 11_858


def walk(one, settle, most_s=5000):
    """Phases and when they began, second by second; `settle` says how many are settled after so long."""
    phase, since, told, shape = plan.first_phase(one), 0, [], []
    for second in range(most_s):
        told.append((phase, second)) if not told or told[-1][0] != phase else None
        progress = Progress(second - since, second, one.users, settle(second))
        following = plan.next_phase(one, phase, progress)
        if following != phase:
            phase, since = following, second
        if phase == OVER:
            return [*told, (OVER, second)], shape
        shape.append(plan.users_at(one, phase, second - since))
    raise AssertionError("it never ended")


@pytest.mark.parametrize(
    ("scenario", "phases"),
    [
        ("burst", [ARRIVE, WORK, OVER]),
        ("abandon", [ARRIVE, WORK, OVER]),
        ("hold", [ARRIVE, WORK, HOLD, OVER]),
        ("ramp", [WORK, HOLD, OVER]),
        ("churn", [ARRIVE, WORK, OVER]),
        ("multi", [ARRIVE, WORK, OVER]),
    ],
)
def test_phases_come_in_their_order(scenario, phases):
    one = Plan(scenario, n=10, seconds=20)
    told, _ = walk(one, lambda second: 10 if second > 5 else 0)
    assert [phase for phase, _ in told] == phases


def test_a_hold_begins_when_all_are_there_and_lasts_as_long_as_was_asked():
    told, _ = walk(Plan("hold", n=10, seconds=20), lambda second: 10 if second >= 7 else 0)
    at = dict(told)
    assert at[OVER] - at[HOLD] == pytest.approx(20, abs=1)
    assert at[HOLD] == pytest.approx(7, abs=1)


def test_what_is_never_filled_ends_all_the_same():
    told, _ = walk(Plan("burst", n=10, fill_s=30), lambda _: 0)
    assert told[-1] == (OVER, 30)


@given(st.sampled_from(plan.SCENARIOS), st.integers(1, 500), st.floats(1, 300), st.floats(1, 300))
def test_every_run_is_bounded_in_callers_and_time(scenario, n, seconds, fill_s):
    one = Plan(scenario, n=n, seconds=seconds, fill_s=fill_s)
    told, shape = walk(one, lambda _: 0)
    assert max(shape) <= one.users <= plan.CALLERS_MOST
    assert told[-1][1] <= one.longest_s + 1


def test_callers_of_a_ramp_come_evenly_and_never_leave():
    _, shape = walk(Plan("ramp", n=100, seconds=50), lambda second: second * 2)
    assert shape[0] == 1
    assert shape == sorted(shape)
    assert max(shape) == 100
    steps = [later - before for before, later in itertools.pairwise(shape)]
    assert set(steps) <= {0, 1, 2, 3}


def test_a_burst_asks_in_calls_of_so_many_as_it_is_told():
    assert Plan("burst", n=300).users == 300
    assert Plan("burst", n=11_858, batch=1000).users == 12
    assert Plan("burst", n=300, callers=64).users == 64


@given(st.integers(0, 20_000), st.integers(1, 50))
def test_parts_of_processes_add_up_and_differ_by_one_at_most(total, processes):
    parts = [plan.share_of(total, mine, processes) for mine in range(processes)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


def test_campaigns_are_as_many_as_make_the_month():
    one = Plan("churn", times=1)
    assert one.campaigns_per_s * plan.SANDBOXES_A_CAMPAIGN * plan.MONTH_S == pytest.approx(3.1e6)
    assert Plan("churn", times=10).campaigns_per_s == pytest.approx(10 * one.campaigns_per_s)


@pytest.mark.parametrize(
    ("flag", "given_"),
    [
        ("--n", {"n": 20_001}),
        ("--n", {"n": 0}),
        ("--rate", {"rate": 1e6}),
        ("--seconds", {"seconds": 1e6}),
        ("--files", {"files": 2.0}),
        ("--batch", {"batch": 1001}),
        ("--scenario", {"scenario": "flood"}),
        ("--batch", {"scenario": "churn", "batch": 2}),
    ],
)
def test_numbers_out_of_bounds_are_refused_by_their_flag(flag, given_):
    with pytest.raises(PlanError, match=flag):
        Plan(**{"scenario": "burst", **given_})


def parsed(*arguments, **environ):
    parser = argparse.ArgumentParser()
    options.add(parser)
    return parser.parse_args(arguments)


def test_flags_come_from_the_environment_too(monkeypatch):
    monkeypatch.setenv("SANDMAN_LOAD_TTL_S", "33")
    monkeypatch.setenv("SANDMAN_LOAD_N", "7")
    assert options.plan_of(parsed("--scenario", "hold")) == Plan("hold", n=7, ttl_s=33)
    assert options.plan_of(parsed("--n", "8")).n == 8


@pytest.fixture
def told(tmp_path):
    (tmp_path / "ca.crt").write_text("PEM")

    def write(**more):
        document = {
            "base_urls": ["https://127.0.0.1:1/", "https://127.0.0.1:2"],
            "ca": "ca.crt",
            "tenants": {"north": {"key": "k1", "weight": 3}, "south": "k2"},
            "pool": "root",
            **more,
        }
        (tmp_path / "target.json").write_text(json.dumps(document))
        return tmp_path / "target.json"

    return write


def test_a_target_file_says_where_and_who(told):
    server = {"url": "https://127.0.0.1:6443/", "ca": "ca.crt", "certificate": "/a", "key": "/b"}
    found = target.read(told(api_server=server, pids={"unknown": 1}))
    assert found.urls == ("https://127.0.0.1:1", "https://127.0.0.1:2")
    assert found.ca == "PEM"
    assert [(one.name, one.key, one.weight) for one in found.tenants] == [("north", "k1", 3), ("south", "k2", 1)]  # fmt: skip
    assert found.metrics_urls() == ("https://127.0.0.1:1/metrics", "https://127.0.0.1:2/metrics")
    assert found.api_server.url == "https://127.0.0.1:6443"
    assert found.api_server.certificate == "/a"
    assert "k1" not in repr(found)
    assert options.target_of(parsed("--target", str(told())), Plan("multi")).pool == "root"


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"base_url": 1}'])
def test_what_is_no_target_is_told_by_its_name(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(target.TargetError, match=r"x\.json is no target"):
        target.read(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("url", "mine", "why"),
    [
        ("https://127.0.0.1:8443", (), None),
        ("https://[::1]:8443", (), None),
        ("https://localhost", (), None),
        ("https://gateway.example", (), "say --mine gateway.example"),
        ("https://10.0.0.1", ("gateway.example",), "say --mine 10.0.0.1"),
        ("https://gateway.example", ("gateway.example",), None),
        ("http://gateway.example", ("gateway.example",), "keys in the open"),
        ("http://127.0.0.1:1", (), None),
        ("ftp://127.0.0.1", (), "no address of a gateway"),
    ],
)
def test_only_this_machine_is_loaded_unless_another_is_claimed_by_name(url, mine, why):
    one = target.Target((url,), None, (target.Tenant("t", "k"),), image="x")
    if why is None:
        target.check(one, mine)
        assert mine or target.is_loopback(urlsplit(url).hostname)
    else:
        with pytest.raises(target.TargetError, match=why):
            target.check(one, mine)


@pytest.mark.parametrize(
    "more",
    [
        {"api_server": target.ApiServer("http://10.0.0.1:6443", token="t")},
        {"metrics": ("http://10.0.0.1:9090/metrics",)},
    ],
)
def test_nor_is_anything_else_of_another_asked(more):
    """A token goes along."""
    one = target.Target(
        ("https://127.0.0.1:1",), None, (target.Tenant("t", "k"),), image="x", **more
    )
    with pytest.raises(target.TargetError, match="would carry keys in the open"):
        target.check(one, ())


def test_without_a_target_the_environment_or_local_mode_is_one(tmp_path):
    environ = {"SANDMAN_LOCAL_STATE": str(tmp_path), "SANDMAN_URL": "https://127.0.0.1:9/"}
    with pytest.raises(target.TargetError, match="no key"):
        target.from_environment(environ)
    found = target.from_environment({**environ, "SANDMAN_LOAD_KEYS": "a:3=k,b=l"})
    assert [(one.name, one.weight) for one in found.tenants] == [("a", 3), ("b", 1)]
    assert target.from_environment({**environ, "SANDMAN_TOKEN": "k"}).tenants[0].key == "k"
    with pytest.raises(target.TargetError, match="no target"):
        target.from_environment({"SANDMAN_LOCAL_STATE": str(tmp_path)})
    with pytest.raises(target.TargetError, match="SANDMAN_LOAD_KEYS"):
        target.keys("a:x=k")


def test_tenants_need_each_other_to_be_compared(told):
    with pytest.raises(target.TargetError, match="two tenants"):
        options.target_of(parsed("--target", str(told(tenants={"a": "k"}))), Plan("multi"))


class Event:
    def __init__(self):
        self.is_set = False

    def set(self):
        self.is_set = True

    def wait(self, timeout=None):
        return self.is_set


def stage(one, tenants=("a", "b"), **more):
    parts = tuple(target.Tenant(name, name) for name in tenants)
    return Stage(
        one,
        target.Target(("https://x", "https://y"), None, parts, pool="root"),
        "run",
        Event,
        **more,
    )


def test_processes_make_no_more_than_their_part():
    halves = [stage(Plan("hold", n=11), mine=mine, processes=2) for mine in (0, 1)]
    for one in halves:
        made = [one.take(4) for _ in range(4)]
        assert made[-1] == 0
    assert sum(one.taken for one in halves) == 11


def test_callers_are_dealt_to_tenants_and_gateways_in_turns():
    one = stage(Plan("hold"))
    dealt = [(one.tenant().name, one.url()) for _ in range(8)]
    assert [name for name, _ in dealt] == ["a", "b"] * 4
    assert {name: {url for one, url in dealt if one == name} for name in "ab"} == {
        "a": {"https://x", "https://y"},
        "b": {"https://x", "https://y"},
    }


def test_an_allocation_ends_by_itself_whatever_becomes_of_the_load():
    body = stage(Plan("hold", ttl_s=60, seconds=10)).ask(purpose="eval").body
    assert body["lease"] == {
        "ttl_s": 60,
        "run": True,
        "max_s": Plan("hold", ttl_s=60, seconds=10).life_s,
    }
    assert (body["run"], body["pool"], body["purpose"]) == ("run", "root", "eval")
    assert body["lease"]["max_s"] > Plan("hold", ttl_s=60, seconds=10).longest_s


def test_calls_are_due_by_a_schedule_that_no_answer_delays():
    one = stage(Plan("hold"), processes=2)
    one.enter(HOLD)
    one.paced_since = time.monotonic() - 1
    # Those that were due a second ago are not waited for; the first that is to come is, for a moment.
    slept = []
    for _ in range(50):
        assert one.pace(100, slept.append)
    assert slept == []
    assert one.record.stages["late"]
    one.enter(OVER)
    assert not one.pace(100, slept.append)
    assert slept == []


def test_a_phase_that_ends_wakes_who_waits_for_his_turn():
    one = stage(Plan("hold"))
    one.enter(HOLD)
    one.paced = 1000
    assert not one.pace(1, lambda _: one.enter(OVER))


def test_who_waits_for_a_phase_is_woken_by_it_and_by_the_end():
    one = stage(Plan("hold"))
    before = one.wake
    one.enter(HOLD)
    assert before.is_set
    assert not one.wake.is_set
    one.await_phase(HOLD)
    one.enter(OVER)
    one.await_phase(HOLD)
    assert one.phase == OVER


@pytest.mark.parametrize(("share", "of_20"), [(0, 0), (0.05, 1), (0.2, 4), (0.5, 10), (1, 20)])
def test_files_have_their_share_in_any_stretch(share, of_20):
    dealt = [plan.is_file(number, share) for number in range(200)]
    assert {sum(dealt[at : at + 20]) for at in range(0, 180, 7)} <= {of_20 - 1, of_20, of_20 + 1}
    assert sum(dealt) == pytest.approx(200 * share, abs=1)
