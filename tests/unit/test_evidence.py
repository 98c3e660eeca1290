"""What a daemon says for a certificate may be anything: the sandbox is hostile."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandman import evidence
from sandman.errors import BadRequestError
from sandman.fields import Fields

DIGEST = "0" * 64


def told() -> dict[str, Any]:
    return {
        "inside": {
            "boot_id": "b1", "cgroup": 2, "cpu": {"throttled_s": 1.5, "odd": 1}, "hostname": "h" * 1000,
            "clock": 1.8e9, "evil": {"any": "thing"},
        },
        "commands": [
            {"exec_id": "e1", "state": "ended", "exit_code": 0, "stdout_bytes": 3, "stdout_sha256": DIGEST,
             "stderr_sha256": DIGEST, "oom_killed": None, "argv": "x"},
            {"exec_id": "e2", "state": "running", "stdout_sha256": "?"},
        ],
    }  # fmt: skip


def test_only_what_is_known_by_name_is_taken_and_no_text_is_long():
    inside, [first, second] = evidence.answer_from_json(told(), ("e1", "e2"))
    assert inside["boot_id"] == "b1"
    assert inside["cpu"] == {"periods": None, "throttled_periods": None, "throttled_s": 1.5}
    assert inside["memory"] == {"peak_bytes": None, "oom_kills": None}
    assert len(str(inside["hostname"])) == 256
    assert "evil" not in inside
    assert "argv" not in first
    assert (first["oom_killed"], first["stdout_bytes"]) == (None, 3)
    assert second == {"exec_id": "e2", "state": "running", "detail": None}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("inside",), None),
        (("inside", "cgroup"), 3),
        (("inside", "clock"), "now"),
        (("inside", "cpu"), []),
        (("commands",), {}),
        (("commands",), []),
        (("commands", 0), "ended"),
        (("commands", 0, "exec_id"), "e3"),
        (("commands", 0, "state"), "fine"),
        (("commands", 0, "stdout_sha256"), "0" * 63),
        (("commands", 0, "stdout_sha256"), "Z" * 64),
        (("commands", 0, "exit_code"), 256),
        (("commands", 0, "wall_s"), -1),
    ],
)
def test_what_makes_no_sense_is_refused(path, value):
    body = copy.deepcopy(told())
    place: Any = body
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(BadRequestError):
        evidence.answer_from_json(body, ("e1", "e2"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["inside", "commands"]), JSON))
def test_nonsense_never_does_more_than_be_refused(body):
    try:
        inside, commands = evidence.answer_from_json(body, ())
    except BadRequestError:
        return
    assert commands == []
    assert set(inside) == set(evidence.answer_from_json({"inside": {}, "commands": []}, ())[0])
    assert Fields(inside)
