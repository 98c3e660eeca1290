"""Egress profiles out of NetworkPolicies, and what a probe of one shows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import profiles
from gateway.profiles import NONE, Profile
from sandman import names, probes
from sandman.errors import NetworkUnsupportedError
from sandman.probes import Target

A, B, C = (Target(f"10.0.0.{n}", 443) for n in (1, 2, 3))
API = {Target("10.96.0.1", 443): "the API server"}


def policy(
    name: str, canary: str | None = "10.0.0.1:443", selects: str | None = None, **notes: str
):
    annotations = {f"{names.DOMAIN}/{key.replace('_', '-')}": value for key, value in notes.items()}
    if canary is not None:
        annotations[names.ANNOTATION_CANARY] = canary
    return {
        "metadata": {"labels": {names.LABEL_PROFILE: name}, "annotations": annotations},
        "spec": {"podSelector": {"matchLabels": {names.LABEL_NETWORK: selects or name}}},
    }


def test_a_policy_with_the_label_is_a_profile():
    known = profiles.of_policies([policy("model", canary_closed="10.0.0.2:443, 10.0.0.3:443")])
    assert known["model"] == Profile("model", (A,), (B, C))
    assert profiles.usable(known, "model") is known["model"]


def test_what_some_profile_opens_is_closed_without_one():
    known = profiles.of_policies([policy("a"), policy("b", "10.0.0.2:443,10.0.0.1:443")])
    assert known["none"] == Profile("none", (), (A, B))
    assert profiles.of_policies([])["none"] == NONE


def test_two_policies_of_one_name_add_up():
    known = profiles.of_policies([policy("a"), policy("a", "10.0.0.2:443,10.0.0.1:443")])
    assert known["a"].opens == (A, B)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (policy("x", None), "names no address that it opens"),
        (policy("x", " , "), "names no address that it opens"),
        (policy("x", "example.org:443"), "cannot be read"),
        (policy("x", "10.0.0.1"), "cannot be read"),
        (policy("x", canary_closed="nonsense"), "cannot be read"),
        (policy("x", selects="y"), "selects sandman.dev/network=y"),
        (policy("x", ",".join(f"10.0.0.{n}:1" for n in range(9))), "over 8 canaries"),
        ({"metadata": {"labels": {names.LABEL_PROFILE: "x"}}}, "selects sandman.dev/network=None"),
    ],
)
def test_what_nobody_could_tell_the_truth_of_cannot_be_used(one, why):
    known = profiles.of_policies([one])
    with pytest.raises(NetworkUnsupportedError, match=why):
        profiles.usable(known, "x")


def test_of_two_policies_one_that_is_at_fault_spoils_the_profile():
    known = profiles.of_policies([policy("x"), policy("x", "nonsense")])
    assert "cannot be read" in known["x"].fault


@pytest.mark.parametrize(
    "one", [{}, {"metadata": None}, {"metadata": {"labels": None}}, policy("none")]
)
def test_other_policies_are_none_of_ours(one):
    assert profiles.of_policies([one]) == {"none": NONE}


def test_a_profile_that_is_not_there():
    with pytest.raises(NetworkUnsupportedError, match="there are: none, open") as caught:
        profiles.usable(profiles.of_policies([policy("open")]), "model")
    assert caught.value.field == "network"


def test_lists_of_profiles():
    assert profiles.is_listed("none", ())
    assert profiles.is_listed("open", None)
    assert profiles.is_listed("open", ["open"])
    assert profiles.is_listed("open", ["*"])
    assert not profiles.is_listed("open", ["model"])
    assert not profiles.is_listed("open", ())


def test_what_is_probed_is_first_what_every_profile_keeps_closed():
    asked = profiles.plan(Profile("a", (A,), (B,)), API)
    assert (asked.opens, asked.closes) == ((A,), (*API, B))
    assert asked.targets == (A, *API, B)
    # What is opened cannot be closed, whoever lists it.
    assert profiles.plan(Profile("a", (A,), (A,)), {A: "x"}).closes == ()


def test_callers_are_not_told_the_addresses_of_what_is_not_theirs():
    asked = profiles.plan(Profile("none", (), (A,)), API)
    told = profiles.told(asked, dict.fromkeys(asked.targets, probes.TIMEOUT))
    assert [one["what"] for one in told] == ["the API server", "what another profile opens"]
    asked = profiles.plan(Profile("a", (A,), (B,)), API)
    told = profiles.told(asked, dict.fromkeys(asked.targets, probes.REFUSED))
    assert told[0] == {"what": "10.0.0.1:443", "expected": "open", "outcome": "refused"}
    assert [one["expected"] for one in told] == ["open", "closed", "closed"]


OUTCOMES = st.sampled_from(probes.OUTCOMES)


@given(OUTCOMES, OUTCOMES)
def test_it_is_in_force_when_what_it_opens_is_reached_and_nothing_else(opened, closed):
    asked = profiles.plan(Profile("a", (A,), (B,)), {})
    found = profiles.wrong(asked, {A: opened, B: closed})
    is_right = opened == probes.REACHABLE and closed != probes.REACHABLE
    assert (found == []) == is_right


def test_the_error_names_what_is_wrong():
    asked = profiles.plan(Profile("a", (A,), (B,)), API)
    outcomes = {A: "timeout", B: "reachable", Target("10.96.0.1", 443): "reachable"}
    error = profiles.not_applied("a", asked, outcomes, "box")
    assert "10.0.0.1:443 should be open: timeout" in error.detail
    assert "the API server should be closed: reachable" in error.detail
    assert error.sandbox == "box"
    assert len(error.facts["probes"]) == 3
    assert "did not answer" in profiles.not_applied("a", asked, {}, "box").detail


@given(st.integers(0, 8), st.integers(0, 20), st.integers(0, 20))
def test_a_probe_is_never_longer_than_a_daemon_takes(opens, closes, always):
    def many(net: int, count: int) -> tuple[Target, ...]:
        return tuple(Target(f"10.{net}.0.{n}", 1) for n in range(count))

    asked = profiles.plan(
        Profile("a", many(1, opens), many(2, closes)), dict.fromkeys(many(3, always), "x")
    )
    assert len(asked.targets) == len(set(asked.targets)) <= probes.TARGETS_MAX
    assert asked.opens == many(1, opens)
