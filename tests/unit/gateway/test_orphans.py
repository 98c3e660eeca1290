"""Which pods nobody holds."""

from __future__ import annotations

import pytest

from gateway import orphans
from gateway.model import Ending
from gateway.orphans import BURY_S, HANDOVER_S, LOST_S, POOLLESS_S, START_S, Watched
from tests.unit.gateway.test_roster import leased, pod

ENDED = Ending("released", "it was released")


def test_a_claim_without_handshake_is_suspect_after_a_minute():
    one, watched = leased(), Watched()
    assert watched.unmet([one], 0.0, ()) == []
    assert watched.unmet([one], HANDOVER_S - 0.1, ()) == []
    assert watched.unmet([one], HANDOVER_S, ()) == [one]
    watched.met(one.uid)
    assert watched.unmet([one], 1e9, ()) == []
    # A pod that is gone is forgotten.
    assert watched.unmet([], 1e9, ()) == []
    assert watched._met == set()


@pytest.mark.parametrize(
    "other", [pod(), leased(ending=ENDED), leased(deleting=True), leased(claim_id="mine")]
)
def test_what_is_in_hand_ended_or_free_is_no_suspect(other):
    watched = Watched()
    for now in (0.0, 1e9):
        assert watched.unmet([other], now, {"mine"}) == []


@pytest.mark.parametrize(
    ("running", "after", "hopeless"),
    [(False, START_S - 1, False), (False, START_S, True), (True, START_S, False)],
)
def test_one_that_never_ran_is_given_up_long_after_its_allocator_would(running, after, hopeless):
    one, watched = leased(running=running), Watched()
    watched.unmet([one], 0.0, ())
    assert watched.is_hopeless(one, after) is hopeless
    assert not watched.is_hopeless(leased(uid="other-u"), 1e9)


def test_free_pods_go_a_minute_after_their_pool():
    one, watched = pod(), Watched()
    assert watched.to_delete([one], {}, 0.0) == []
    assert watched.to_delete([one], {}, POOLLESS_S - 0.1) == []
    assert watched.to_delete([one], {}, POOLLESS_S) == [one]
    # The pool came back for a moment.
    assert watched.to_delete([one], {"root"}, POOLLESS_S) == []
    assert watched.to_delete([one], {}, POOLLESS_S + 1) == []
    assert watched.to_delete([pod(deleting=True)], {}, 1e9) == []
    assert watched.to_delete([leased()], {}, 1e9) == []


@pytest.mark.parametrize(
    ("one", "goes"),
    [
        (leased(ending=ENDED), True),
        (leased(ending=ENDED, deleting=True), False),
        # It has ended by itself: the janitor keeps it for its reason.
        (leased(ending=ENDED, running=False), False),
    ],
)
def test_what_was_told_to_end_and_runs_is_deleted(one, goes):
    assert Watched().to_delete([one], {"root"}, 0.0) == ([one] if goes else [])


def test_a_deleted_pod_of_a_lost_node_is_buried_after_its_kubelet_had_time():
    one, watched = leased(deleting=True), Watched()
    assert watched.to_bury([one, leased(uid="2-u")], {"n1"}, 0.0) == []
    assert watched.to_bury([one], {"n1"}, BURY_S) == [one]
    assert watched.to_bury([one], {}, BURY_S) == []
    assert watched.to_bury([one], {"n1"}, BURY_S + 1) == []


def test_a_sandbox_of_a_lost_node_is_lost_when_it_is_silent_twice():
    one, other = leased(), leased(uid="2-u", node="n2")
    lost = {"n1": 100.0}
    assert orphans.on_lost_nodes([one, other], lost, 100.0 + LOST_S - 0.1) == []
    assert orphans.on_lost_nodes([one, other], lost, 100.0 + LOST_S) == [one]
    watched = Watched()
    assert watched.silent([one], [one]) == []
    assert watched.silent([one], []) == []
    assert watched.silent([one], [one]) == []
    assert watched.silent([], []) == []
    assert watched.silent([one], [one]) == []
    assert watched.silent([one], [one]) == [one]
