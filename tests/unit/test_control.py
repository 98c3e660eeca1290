"""The verdict: what is within every threshold is under control, and nothing else is, least of all what is not known."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandman import control
from sandman.control import DEFAULT_THRESHOLDS, Thresholds, judge, unmeasured

NONE: dict[str, float | None] = {"cpu": None, "memory": None, "io": None}


def command(**more: object) -> dict[str, Any]:
    return {
        "exec_id": "e1", "state": "ended", "exit_code": 1, "abandoned": False, "oom_killed": False,
        "wall_s": 100.0, "throttled_s": 0.0, "stalled_s": {"cpu": 0.0, "memory": 0.0, "io": 0.0}, **more,
    }  # fmt: skip


def evidence(**more: object) -> dict[str, Any]:
    return {
        "api": {
            "purpose": "eval", "qos": "Guaranteed", "image_digest": "r/i@sha256:1", "restarts": 1,
            "restarts_usual": 1,
            "network": {"profile": "none", "in_force": True, "changed_at": None, "before": []},
            "node": {"kernel": "6.1", "allocatable": {"cpu_m": 4000}}, "requests": {"cpu_m": 1000},
            "neighbours": {"requests": {"cpu_m": 3000}},
            "conditions": {"dedicated": True, "network_acknowledged": True},
        },
        "inside": {"memory": {"oom_kills": 0}, "clock_offset_s": -0.2},
        "commands": [command()],
        **more,
    }  # fmt: skip


def codes(document: dict[str, Any], by: Thresholds = DEFAULT_THRESHOLDS) -> list[str]:
    return [one.code for one in judge(document, by)]


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    document = copy.deepcopy(evidence())
    place: Any = document
    for name in path[:-1]:
        place = place[name]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


def test_what_is_within_every_threshold_is_under_control():
    assert judge(evidence()) == []
    assert unmeasured(evidence()) == []


CASES = [
    (("api", "purpose"), "train", "purpose"),
    (("api", "qos"), "Burstable", "qos"),
    (("api", "image_digest"), "r/i:1", "image"),
    (("api", "node", "kernel"), "", "node"),
    (("api", "network", "in_force"), False, "network"),
    (("api", "network", "before"), ["open"], "network"),
    (("api", "conditions", "dedicated"), False, "conditions"),
    (("api", "conditions", "network_acknowledged"), False, "conditions"),
    (("api", "restarts"), 2, "restarts"),
    (("api", "neighbours", "requests", "cpu_m"), 3001, "neighbours"),
    (("inside", "memory", "oom_kills"), 1, "oom"),
    (("inside", "clock_offset_s"), 1.5, "clock"),
    (("inside", "clock_offset_s"), -1.5, "clock"),
    (("commands",), [], "commands"),
    (("commands", 0, "state"), "running", "commands"),
    (("commands", 0, "state"), "unknown", "commands"),
    (("commands", 0, "abandoned"), True, "abandoned"),
    (("commands", 0, "oom_killed"), True, "oom"),
    (("commands", 0, "throttled_s"), 1.1, "throttled"),
    (("commands", 0, "stalled_s", "cpu"), 2.1, "cpu"),
    (("commands", 0, "stalled_s", "memory"), 1.1, "memory"),
    (("commands", 0, "stalled_s", "io"), 21.0, "io"),
]
NEEDED = {
    path: code for path, _, code in CASES if "stalled_s" not in path and path[-1] != "abandoned"
}
"""What must be known, and the reason when it is not."""


@pytest.mark.parametrize(("path", "value", "code"), CASES)
def test_each_threshold_is_a_reason_of_its_own(path, value, code):
    assert codes(changed(path, value)) == [code]


@pytest.mark.parametrize("path", NEEDED)
@pytest.mark.parametrize("value", [None, ..., ["many"]])
def test_what_is_not_known_never_passes(path, value):
    assert NEEDED[path] in codes(changed(path, value))


@pytest.mark.parametrize("path", [("api",), ("inside",), ("api", "node"), ("api", "network")])
def test_nor_does_what_is_not_there_at_all(path):
    assert codes(changed(path, ...)) != []
    assert codes(changed(path, "nonsense")) != []


def test_of_nothing_every_reason_is_told():
    told = codes({})
    assert set(told) == {
        "purpose", "qos", "image", "node", "network", "restarts", "neighbours", "oom", "clock", "commands"
    }  # fmt: skip


def test_a_network_that_was_changed_is_never_well_and_says_what_it_was():
    document = changed(("api", "network", "before"), ["open", "internet"])
    document["api"]["network"]["changed_at"] = "1970-01-01T00:00:02.000Z"
    [reason] = judge(document)
    assert str(reason) == (
        "network: its egress profile was changed, at 1970-01-01T00:00:02.000Z last: before it was open, internet"
    )
    # Whoever knows when knows that.
    assert codes(changed(("api", "network", "changed_at"), "1970-01-01T00:00:02.000Z")) == [
        "network"
    ]


def test_pressure_that_no_kernel_told_is_named_and_no_reason():
    document = evidence(commands=[command(stalled_s=NONE)])
    assert judge(document) == []
    assert unmeasured(document) == ["pressure.cpu", "pressure.memory", "pressure.io"]
    assert codes(evidence(commands=[])) == ["commands"]
    assert unmeasured(evidence(commands=[])) == ["pressure.cpu", "pressure.memory", "pressure.io"]


@pytest.mark.parametrize("cpu_m", [300, 1500, 0, None, "1000"])
def test_a_part_of_a_processor_without_pressure_is_a_reason(cpu_m):
    """What is left of it is others'; they could have had it all the time, and nothing would show."""
    document = evidence(commands=[command(stalled_s=NONE)])
    document["api"]["requests"]["cpu_m"] = cpu_m
    document["api"]["neighbours"]["requests"]["cpu_m"] = 0
    assert "cpu" in codes(document)
    document["commands"] = [command(stalled_s=NONE | {"cpu": 0.0})]
    assert "cpu" not in codes(document)


def test_a_command_that_is_over_in_an_instant_has_a_period_free():
    short = command(wall_s=0.05, throttled_s=0.04)
    assert judge(evidence(commands=[short])) == []
    [reason] = judge(evidence(commands=[command(wall_s=0.0, throttled_s=0.2)]))
    assert "(100.0 %)" in reason.detail


def test_a_reason_says_by_how_much():
    [reason] = judge(evidence(commands=[command(exec_id="tests", throttled_s=12.5)]))
    assert str(reason) == (
        "throttled: tests stood still at its limit of cpu for 12.500 of 100.000 s (12.5 %), where 1 % are allowed"
    )


def test_who_holds_a_certificate_may_judge_by_thresholds_of_his_own():
    held = evidence(commands=[command(throttled_s=12.5)])
    assert codes(held, Thresholds(throttled_share=0.2)) == []
    assert codes(held, Thresholds(qos="Burstable")) == ["qos", "throttled"]
    assert set(DEFAULT_THRESHOLDS.to_json()) == set(Thresholds.__dataclass_fields__)


SHARES = st.floats(0, 1, allow_nan=False)


@given(SHARES, st.floats(0.001, 1e6), SHARES)
def test_more_of_it_is_never_better(share, wall_s, more):
    """Whatever the command's length: what is over the threshold stays over it when it grows."""

    def is_over(part: float) -> bool:
        held = command(wall_s=wall_s, throttled_s=part * wall_s)
        return "throttled" in codes(evidence(commands=[held]))

    assert is_over(share) <= is_over(min(1.0, share + more))
    by = DEFAULT_THRESHOLDS
    assert is_over(share) == (share * wall_s > max(by.floor_s, by.throttled_share * wall_s))


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(["api", "inside", "node", "network", "requests", "cpu_m"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
def test_of_nonsense_the_verdict_is_never_well(nonsense):
    document = {"api": nonsense, "inside": nonsense, "commands": []}
    assert "commands" in codes(document)
    assert control.unmeasured(document)


def test_an_evaluation_of_which_nothing_was_agreed_was_not_under_control():
    assert codes(changed(("api", "conditions"), None)) == ["conditions", "conditions"]


def test_a_command_that_did_not_start_is_a_result_and_no_reason():
    told = command(start_error="not_found", oom_killed=None, throttled_s=None, wall_s=None)
    assert codes(evidence(commands=[told])) == []
    part = evidence(commands=[told | {"stalled_s": NONE}, command()])
    part["api"]["requests"]["cpu_m"] = 300
    assert codes(part) == []
