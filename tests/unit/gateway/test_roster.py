"""What is there: registry, pools and free slots in step with the news, in any order of it."""

from __future__ import annotations

import dataclasses

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from gateway import leases, views
from gateway.allocation import Allocation
from gateway.model import Ending, Instance, PoolSpec, Ready, Tier, Timings
from gateway.provider import Gone, NodeSeen, PoolGone, PoolSeen, Seen, Synced, pods
from gateway.registry import Registry
from gateway.roster import Roster
from sandman import names

DELETED = Ending("deleted", "somebody deleted its pod")


def roster() -> Roster:
    return Roster(Registry(keep_ended=3), Allocation(cold_max=0, claims_max=10))


def pod(**changes) -> Instance:
    values = {
        "namespace": "ns", "name": "p", "uid": "00000001-u", "version": "1", "pool": "root",
        "state": names.STATE_FREE, "image": "base", "node": "n1", "address": "10.0.0.1",
        "running": True,
    }  # fmt: skip
    return Instance(**(values | changes))


def leased(**changes) -> Instance:
    values = {"state": names.STATE_LEASED, "tenant": "acme", "key": "k", "claim_id": "c1"}
    return pod(**(values | changes))


def pool(namespace: str = "ns", *, swap: bool = True) -> PoolSeen:
    return PoolSeen(PoolSpec(namespace, "root", "base", swap, 1, None))


# --- pools ---


def test_a_pool_of_the_same_name_elsewhere_stays_when_one_goes():
    one = roster()
    one.apply(pool("a"))
    one.apply(pool("b"))
    one.apply(PoolGone("b", "root"))
    assert one.pools["root"].namespace == "a"
    one.apply(PoolGone("a", "root"))
    one.apply(PoolGone("a", "root"))
    assert one.pools == {}


def test_placeholders_met_before_their_pool_is_known_are_offered_once_it_is():
    one = roster()
    assert one.apply(Seen(pod())) is not None
    one.vetted(pod().uid, "b1")
    assert one.allocation.statistics().free == 0
    one.apply(Seen(pod(uid="00000002-u", pool="other")))
    one.vetted("00000002-u", "b2")
    one.apply(pool())
    one.apply(pool())
    assert one.allocation.statistics().free == 1
    assert "pools=['root']" in repr(one)


def test_a_pool_that_forbids_swaps_from_now_on_offers_its_placeholders_anew():
    one = roster()
    one.apply(pool())
    one.apply(Seen(pod()))
    one.vetted(pod().uid, "b1")
    one.apply(pool(swap=False))
    [slot] = one.allocation._slots.values()
    assert slot.swap is False


def test_what_is_gone_when_its_daemon_answers_is_not_offered():
    one = roster()
    one.apply(pool())
    one.vetted("never seen", "b1")
    assert one.boot_id("never seen") is None
    one.apply(NodeSeen("n1", closed=True))
    one.apply(Synced())
    assert one.synced.is_set()


async def test_waiting_for_news_leaves_nothing_behind():
    one = roster()
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(one.wait_change, "u")
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0):
            await one.wait_change("u")
        assert list(one._changes) == ["u"]
        one.apply(Gone("u", DELETED))
    with trio.move_on_after(0):
        await one.wait_change("of a pod that is gone")
    assert one._changes == {}


# --- the registry ---


def test_a_sighting_from_before_the_claim_does_not_undo_it_and_a_later_one_counts():
    registry = Registry(keep_ended=3)
    registry.put(pod())
    registry.put(leased(), claimed=True)
    assert registry.put(pod(version="2")).state == names.STATE_LEASED
    assert registry.put(leased(image="new")).image == "new"
    assert registry.get(pod().uid).image == "new"


def test_only_so_many_endings_are_remembered_and_the_first_reason_stays():
    registry = Registry(keep_ended=3)
    for number in range(5):
        one = leased(name=f"p{number}", uid=f"{number:08d}-u")
        registry.put(one)
        registry.remove(one.uid, DELETED)
        registry.remember(one, Ending("oom", "x"))
    assert registry.ending("p1-00000001") is None
    assert registry.ending("p4-00000004") == ("acme", DELETED)
    assert "ended=3" in repr(registry)


def test_the_end_of_what_was_never_there_is_nothing():
    registry = Registry(keep_ended=3)
    registry.remove("u", DELETED)
    registry.put(pod())
    registry.remove(pod().uid, DELETED)
    assert registry.ending(pod().id) is None


def test_calls_end_with_their_pod_and_leave_nothing_behind():
    registry = Registry(keep_ended=3)
    registry.put(leased())
    with registry.during(leased().uid, trio.CancelScope()) as _:
        outer = trio.CancelScope()
        with registry.during(leased().uid, outer):
            registry.put(leased(ending=DELETED))
            assert outer.cancel_called
        assert registry._calls
    assert not registry._calls


def test_a_key_finds_the_living_alone():
    registry = Registry(keep_ended=3)
    registry.put(leased(deleting=True))
    registry.put(leased(uid="00000002-u", name="q", ending=DELETED))
    assert registry.with_key("k", now=0.0) is None
    registry.put(leased(uid="00000003-u", name="r"))
    assert registry.with_key("k", now=0.0).name == "r"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["free", "leased", "claimed", "gone", "ended"]), st.integers(0, 2)
        ),
        max_size=30,
    )
)
def test_in_any_order_of_events_no_index_keeps_what_is_gone(events):
    registry = Registry(keep_ended=2)
    for what, number in events:
        own = {"uid": f"{number:08d}-u", "name": f"p{number}"}
        match what:
            case "free":
                registry.put(pod(**own))
            case "leased":
                registry.put(leased(**own))
            case "claimed":
                registry.put(leased(**own), claimed=True)
            case "ended":
                registry.put(leased(**own, ending=DELETED))
            case _:
                registry.remove(own["uid"], DELETED)
    known = {one.uid for one in registry.all()}
    assert set(registry._claimed) <= known
    assert set(registry._by_id.values()) == known
    for index in (registry._by_key, registry._by_tenant):
        assert set().union(*index.values(), set()) <= known
        assert all(index.values())


# --- what callers are shown ---


@pytest.mark.parametrize("kept", [5, [], {"a": 1}, None, "x"])
def test_labels_that_somebody_broke_are_shown_as_none(kept):
    assert views.sandbox(leased(request={"labels": kept}))["labels"] == {}


def test_a_pod_on_its_way_out_is_shown_as_such():
    assert views.sandbox(leased(deleting=True))["state"] == "ending"
    ended = views.sandbox(leased(ending=dataclasses.replace(DELETED, at=0.0), tier=Tier.WARM))
    assert (ended["state"], ended["ended"]["at"]) == ("ended", "1970-01-01T00:00:00.000Z")


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "ready"),
        ({"running": False}, "starting"),
        # The status tells of the old container until the restart is seen.
        ({"previous_boot_id": "b0"}, "starting"),
        ({"previous_boot_id": "b0", "image_digest": "x@sha256:1"}, "ready"),
        ({"running": False, "deleting": True}, "ending"),
        ({"running": False, "ending": DELETED}, "ended"),
    ],
)
def test_a_sandbox_in_the_making_is_not_shown_as_ready(changes, state):
    assert views.sandbox(leased(**changes))["state"] == state


def test_a_sandbox_whose_daemon_was_met_is_ready_though_its_pod_does_not_tell_yet():
    behind = leased(running=False, previous_boot_id="b0")
    assert views.sandbox(behind, is_met=True)["state"] == "ready"
    assert views.ready(Ready(behind, "b1", Timings(0.0, 0.0, 0.0)), "t")["state"] == "ready"
    assert views.sandbox(leased(deleting=True), is_met=True)["state"] == "ending"


@given(st.text() | st.from_regex(r"[\[\{\"0-9eE.,:\]\}\-]*", fullmatch=True))
def test_whatever_an_annotation_holds_it_is_an_object_or_nothing(text):
    found = pods.load_object(text)
    assert isinstance(found, dict)
    moment = leases.number(found.get("expires_at"))
    assert moment is None or views.moment(moment)


@given(st.floats() | st.integers() | st.booleans() | st.none() | st.text())
def test_whatever_number_a_moment_is_it_can_be_shown_or_is_none(value):
    moment = leases.number(value)
    assert moment is None or views.moment(moment).endswith("Z")


async def test_a_node_that_is_gone_is_remembered_only_while_pods_of_it_are_there():
    one = roster()
    for number in range(3):
        one.apply(NodeSeen(f"n{number}", closed=False))
    one.apply(Seen(leased(uid="u1", node="n1")))
    one.apply(Seen(leased(uid="u2", name="p2", node="n1")))
    one.apply(NodeSeen("n0", closed=False, gone=True, lost=True))
    one.apply(NodeSeen("n1", closed=False, gone=True, lost=True))
    one.apply(NodeSeen("n2", closed=True, lost=True))
    assert one.lost_nodes.keys() == {"n1", "n2"}
    one.apply(Gone("u1", Ending("deleted", "x")))
    assert "n1" in one.lost_nodes
    # Word of what ran there may come late.
    late = leased(uid="u2", name="p2", node="n1", image="task:1", image_digest="sha256:1")
    one.apply(Seen(late))
    assert one.allocation.images.holders("task:1") == {"n1"}
    one.apply(Gone("u2", Ending("deleted", "x")))
    assert one.lost_nodes.keys() == {"n2"}
    assert one.allocation.images.holders("task:1") == ()


def test_nodes_can_be_avoided_while_others_take_pods():
    roster = Roster(Registry(keep_ended=1), Allocation(cold_max=1, claims_max=1))
    # Nobody knows of any node: whoever names one knows more.
    assert roster.avoidable(("n1",)) == ("n1",)
    roster.apply(NodeSeen("n1", closed=False, images=()))
    assert roster.avoidable(("n1",)) == ()
    roster.apply(NodeSeen("n2", closed=True, images=()))
    assert roster.avoidable(("n1",)) == ()
    roster.apply(NodeSeen("n2", closed=False, images=()))
    assert roster.avoidable(("n1", "n3")) == ("n1", "n3")
    assert roster.avoidable(("n1", "n2")) == ()
