"""What gateway and daemon say to each other about the network."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandman import probes
from sandman.errors import BadRequestError
from sandman.probes import Probe, Target

ADDRESSES = st.ip_addresses().map(str)
TARGETS = st.builds(Target, ADDRESSES, st.integers(1, 65535))


@given(TARGETS)
def test_a_target_is_read_as_it_is_written(target):
    assert Target.parse(str(target)) == target


@given(st.lists(TARGETS, min_size=1, max_size=probes.TARGETS_MAX), st.floats(0.01, 5.0))
def test_a_probe_is_read_as_it_is_sent(targets, timeout_s):
    probe = Probe(tuple(targets), timeout_s)
    assert Probe.from_json(probe.to_json()) == probe


@given(st.dictionaries(TARGETS, st.sampled_from(probes.OUTCOMES), min_size=1))
def test_results_are_read_as_they_are_told(results):
    asked = tuple(results)
    assert probes.results_from_json(probes.results_to_json(results), asked) == results


@given(st.text(max_size=40))
def test_other_text_is_no_target_or_has_its_form(text):
    try:
        target = Target.parse(text)
    except ValueError:
        return
    assert Target.parse(str(target)) == target


@pytest.mark.parametrize(
    "text",
    ["", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:080", "fd00::1:80", "[10.0.0.1]:80"],
)  # fmt: skip
def test_no_target(text):
    with pytest.raises(ValueError, match="not an address and a port"):
        Target.parse(text)


def test_a_targets_address_stands_in_brackets_where_it_has_colons():
    assert str(Target("fd00::1", 80)) == "[fd00::1]:80"
    assert ipaddress.ip_address(Target.parse("[fd00::1]:80").address).version == 6


GOOD = {"targets": ["10.0.0.1:1"], "timeout_s": 1}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"timeout_s": 1}, "targets"),
        ({**GOOD, "targets": []}, "targets"),
        ({**GOOD, "targets": ["10.0.0.1:1"] * 17}, "targets"),
        ({**GOOD, "targets": ["nowhere"]}, "targets"),
        ({**GOOD, "timeout_s": None}, "timeout_s"),
        ({**GOOD, "timeout_s": 5.1}, "timeout_s"),
        ({**GOOD, "more": 1}, "more"),
    ],
)
def test_a_probe_without_bounds_is_refused(body, field):
    with pytest.raises(BadRequestError) as caught:
        Probe.from_json(body)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "told", [None, [], {}, {"10.0.0.1:1": "perhaps"}, {"10.0.0.2:1": "reachable"}, {"10.0.0.1:1": 1}]
)  # fmt: skip
def test_an_answer_that_does_not_tell_of_each_address_is_none(told):
    with pytest.raises(BadRequestError):
        probes.results_from_json({"results": told}, (Target("10.0.0.1", 1),))
