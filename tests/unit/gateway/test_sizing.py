"""What was asked for and what a container has; above all: no resize changes the QoS class."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import sizing
from gateway.model import NO_BOUNDS, Amounts, Bounds, Instance, PoolSpec

GI = 1024**3
BURSTABLE = Bounds(Amounts(250, GI // 2), Amounts(2000, 4 * GI))
GUARANTEED = Bounds(Amounts(2000, 4 * GI), Amounts(2000, 4 * GI))


def spec(bounds: Bounds) -> PoolSpec:
    return PoolSpec("ns", "root", "base", True, 1, None, bounds=bounds)


def instance(**changes) -> Instance:
    values = {
        "namespace": "ns",
        "name": "p",
        "uid": "u",
        "version": "1",
        "pool": "root",
        "state": "leased",
    }
    return Instance(**(values | changes))


def test_a_templates_bounds():
    resources = {
        "requests": {"cpu": "250m", "memory": "512Mi"},
        "limits": {"cpu": 2, "memory": "4Gi"},
    }
    template = {
        "spec": {"containers": [{"resources": resources}, {"resources": {"limits": {"cpu": 9}}}]}
    }
    assert sizing.of_template(template) == BURSTABLE
    for bare in (
        {},
        {"spec": {}},
        {"spec": {"containers": [{}]}},
        {"spec": {"containers": [{"resources": None}]}},
    ):
        assert sizing.of_template(bare) == NO_BOUNDS
    assert sizing.of_resources({"cpu": ["1"], "memory": True}, {"cpu": 1}).limits == Amounts(1000)
    assert sizing.of_resources({"cpu": ["1"], "memory": True}, None) == NO_BOUNDS
    assert sizing.of_resources({"cpu": "nonsense"}, {"memory": "1Gi"}).limits == Amounts(None, GI)


def test_requests_stay_the_same_part_of_limits():
    assert sizing.scaled(BURSTABLE, Amounts(4000, 8 * GI)) == Bounds(
        Amounts(500, GI), Amounts(4000, 8 * GI)
    )
    assert sizing.scaled(BURSTABLE, Amounts(1000)) == Bounds(
        Amounts(125, GI // 2), Amounts(1000, 4 * GI)
    )
    assert sizing.scaled(GUARANTEED, Amounts(500, GI)) == Bounds(Amounts(500, GI), Amounts(500, GI))


def test_where_nothing_is_said_a_new_pod_is_bounded_by_what_was_asked():
    assert sizing.scaled(NO_BOUNDS, Amounts(500)) == Bounds(Amounts(500), Amounts(500))
    assert sizing.scaled(Bounds(Amounts(100, GI)), Amounts(500)) == Bounds(Amounts(500, GI))
    limited = Bounds(limits=Amounts(1000, GI))
    assert sizing.scaled(limited, Amounts(500)) == Bounds(Amounts(500), Amounts(500, GI))


def qos(bounds: Bounds) -> str:
    """As Kubernetes has it, for a pod of this one container (requests default to limits)."""
    pairs = [
        (limit if request is None else request, limit)
        for request, limit in zip(bounds.requests, bounds.limits, strict=True)
    ]
    if all(request is None for request, _ in pairs):
        return "BestEffort"
    return (
        "Guaranteed"
        if all(request == limit is not None for request, limit in pairs)
        else "Burstable"
    )


amounts = st.builds(
    Amounts, st.none() | st.integers(10, 10**6), st.none() | st.integers(10, 10**12)
)


@st.composite
def bounds(draw) -> Bounds:
    limits = draw(amounts)
    requests = [
        draw(st.none() | st.integers(1, limit if limit is not None else 10**6)) for limit in limits
    ]
    return Bounds(Amounts(*requests), limits)


@settings(deadline=None)
@given(bounds(), amounts)
def test_no_resize_changes_the_class(before, asked):
    after = sizing.scaled(before, asked)
    if sizing.can_resize(before, asked):
        assert qos(after) == qos(before)
    assert sizing.fits(after, asked)
    assert sizing.is_exact(after, asked)
    for request, limit in zip(after.requests, after.limits, strict=True):
        assert request is None or limit is None or 0 < request <= limit


def test_what_a_template_does_not_name_is_not_added():
    assert sizing.can_resize(BURSTABLE, Amounts(1, 1))
    assert not sizing.can_resize(NO_BOUNDS, Amounts(1))
    assert not sizing.can_resize(Bounds(Amounts(100)), Amounts(100, GI))
    assert sizing.can_resize(Bounds(Amounts(100)), Amounts(200))


def test_the_resize_names_what_it_sets_and_the_pod_it_means():
    wanted = Bounds(Amounts(500, GI), Amounts(4000, None))
    at = "/spec/containers/0/resources"
    assert sizing.operations("u-1", wanted) == [
        {"op": "test", "path": "/metadata/uid", "value": "u-1"},
        {"op": "add", "path": f"{at}/requests/cpu", "value": "500m"},
        {"op": "add", "path": f"{at}/requests/memory", "value": "1Gi"},
        {"op": "add", "path": f"{at}/limits/cpu", "value": "4"},
    ]


def test_what_a_sandbox_has_is_what_its_kubelet_says_once_it_runs():
    small = Bounds(limits=Amounts(500, GI))
    assert sizing.has(instance(bounds=BURSTABLE)) == BURSTABLE
    assert sizing.has(instance(bounds=BURSTABLE, actual=small)) == BURSTABLE
    assert sizing.has(instance(bounds=BURSTABLE, actual=small, running=True)) == small


@pytest.mark.parametrize(
    ("asked", "counts"),
    [
        (Amounts(), (2000, 4 * GI)),
        (Amounts(500), (500, 4 * GI)),
        (Amounts(500, 8 * GI), (500, 8 * GI)),
    ],
)
def test_what_a_request_counts_for(asked, counts):
    assert sizing.of_request(asked, spec(BURSTABLE)) == counts


def test_what_a_pod_counts_for():
    assert sizing.of_instance(instance(bounds=BURSTABLE)) == (2000, 4 * GI)
    assert sizing.of_instance(instance(bounds=Bounds(Amounts(100, GI)))) == (100, GI)
    assert sizing.of_instance(instance()) == (0, 0)
    assert sizing.of_record({"resources": {"cpu": "2"}}) == Amounts(2000)
    assert sizing.of_record({"resources": "broken"}) == sizing.of_record({}) == Amounts()
