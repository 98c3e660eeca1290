"""Which egress profiles a sandbox had: what is kept of them on its pod."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.changed import BEFORE_MAX, UNREADABLE, Changes, changed, of_record, record
from gateway.provider import pods
from sandman import names
from tests.unit.gateway.test_kubernetes_values import pod, running_pod


def test_what_stays_as_it_is_is_no_change():
    assert changed(None, "none", "none", 1.0) is None
    known = Changes(1.0, ("none",))
    assert changed(known, "open", "open", 2.0) == known


def test_each_profile_is_kept_once_and_the_last_change_has_its_time():
    known = changed(None, "none", "open", 1.00049)
    assert known == Changes(1.0, ("none",))
    known = changed(known, "open", "none", 2.0)
    assert known == Changes(2.0, ("none", "open"))
    assert changed(known, "none", "open", 3.0) == Changes(3.0, ("none", "open"))


@given(st.lists(st.sampled_from([f"p{n}" for n in range(40)]), min_size=1, max_size=80))
def test_it_is_bounded_and_that_it_was_changed_is_never_forgotten(asked):
    known, had = None, "none"
    for one in asked:
        known = changed(known, had, one, 5.0)
        had = one
    assert known is not None
    assert 1 <= len(known.before) == len(set(known.before)) <= BEFORE_MAX
    assert of_record(json.loads(json.dumps(record(known)))) == known


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", None),
        ('{"at": 5, "before": ["open"]}', Changes(5.0, ("open",))),
        ("{", Changes(None, (UNREADABLE,))),
        ('{"at": 1e300, "before": []}', Changes(None, (UNREADABLE,))),
        ('{"at": true, "before": ["a b"]}', Changes(None, (UNREADABLE,))),
        ('{"before": {"open": 1}}', Changes(None, (UNREADABLE,))),
    ],
)
def test_what_cannot_be_read_is_a_change_and_nothing_is_none(text, told):
    document = running_pod()
    if text:
        document["metadata"]["annotations"][names.ANNOTATION_NETWORK_CHANGED] = text
    assert pods.instance(pod(document)).network_changes == told


def test_of_many_the_last_are_read():
    many = [f"p{n}" for n in range(BEFORE_MAX + 1)]
    assert of_record({"at": 1.0, "before": many}) == Changes(1.0, tuple(many[1:]))
