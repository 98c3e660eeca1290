"""What is known of images: who holds them, one canary for those never seen, failures kept for a while."""

from __future__ import annotations

import pytest

from gateway import images
from gateway.allocation import Allocation
from gateway.fairness import Ticket
from gateway.images import FINAL, Images
from gateway.model import Tier
from gateway.orders import Slot
from sandman.errors import (
    BadRequestError,
    DiedError,
    ImageDeniedError,
    ImageNotFoundError,
    ImagePullError,
    QuotaError,
    UnschedulableError,
)

TASK = "r.example/task:1"
FULL_HUB = "docker.io/library/debian:latest"
MISSING = ImageNotFoundError("there is none", sandbox="p-1", facts={"pull": "missing"})
THROTTLED = ImagePullError("too many", facts={"pull": "throttled"})


def ticket(number: int = 1, image: str = TASK, pool: str = "root") -> Ticket:
    return Ticket(number, pool, image)


# --- who holds what ---


def test_an_image_is_held_where_a_node_says_so_or_it_ran_under_any_of_its_names():
    known = Images()
    known.report("n1", ["debian", "r.example/a@sha256:1"])
    known.ran("n2", FULL_HUB)
    assert set(known.holders("docker.io/debian")) == {"n1", "n2"}
    known.report("n1", [])
    assert set(known.holders("debian")) == {"n2"}
    known.gone("n2")
    assert not known.holders("debian")
    assert repr(known) == "<Images known=0 canaries=0 failed=0>"


def test_what_ran_on_a_node_outlives_its_report_which_is_cut_short():
    known = Images()
    known.ran("n1", TASK, "r.example/task@sha256:1")
    known.report("n1", [TASK])
    known.report("n1", [])
    assert set(known.holders(TASK)) == {"n1"}
    assert known.digest("n1", TASK) == "r.example/task@sha256:1"
    assert known.digest("n2", TASK) is None
    known.ran("n1", TASK)
    assert known.digest("n1", TASK) == "r.example/task@sha256:1"


def test_of_each_node_only_so_many_images_are_remembered():
    known = Images()
    for number in range(images.RAN_MAX + 1):
        known.ran("n1", f"r.example/a:{number}")
    assert not known.holders("r.example/a:0")
    assert set(known.holders("r.example/a:1")) == {"n1"}


# --- canaries ---


def test_others_wait_for_the_first_of_an_image_never_seen():
    known = Images()
    known.begin(ticket(1), "n1")
    assert not known.is_held(ticket(1))
    assert known.is_held(ticket(2))
    assert known.is_held(ticket(2, "r.example/task:1"))
    assert not known.is_held(ticket(2, pool="other"))
    assert not known.is_held(ticket(2, "r.example/task:2"))
    known.succeeded(ticket(1), "n1")
    assert not known.is_held(ticket(2))
    known.begin(ticket(2), "n1")
    assert not known.is_held(ticket(3))


def test_of_an_image_that_a_node_holds_there_is_no_canary():
    known = Images()
    known.report("n9", [TASK])
    known.begin(ticket(1), "n1")
    assert not known.is_held(ticket(2))


def test_when_the_canarys_caller_goes_the_next_is_canary_where_the_pull_goes_on():
    known = Images()
    known.begin(ticket(1), "n7")
    known.leave(ticket(1))
    assert not known.is_held(ticket(2))
    assert list(known.likely(ticket(2))) == ["n7"]
    known.begin(ticket(2), "n7")
    known.succeeded(ticket(2), "n7")
    known.leave(ticket(2))
    assert list(known.likely(ticket(3))) == ["n7"]


# --- failures ---


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (MISSING, images.PERMANENT_S),
        (ImageDeniedError("no", facts={"pull": "denied"}), images.PERMANENT_S),
        (ImageNotFoundError("no", facts={"pull": "invalid"}), images.PERMANENT_S),
        (BadRequestError("no", field="image"), images.PERMANENT_S),
        (DiedError("exit code 1"), images.TROUBLE_S),
        (ImagePullError("RunContainerError"), images.TROUBLE_S),
    ],
)
def test_a_canarys_failure_is_kept_for_a_while(error, seconds):
    known = Images()
    known.begin(ticket(1), "n1")
    verdict = known.failed(ticket(1), "n1", error, 100.0, left_s=60.0)
    assert verdict.pause_s is None
    kept = known.failure("root", TASK, "", 100.0 + seconds - 0.5)
    assert kept is verdict.failure is not None
    told = kept.error(101.0)
    assert (told.reason, told.sandbox) == (error.reason, None)
    assert told.facts["asked_again_in_s"] == seconds - 1
    assert error.detail in told.detail
    assert (told.retry_after is not None) == told.retryable
    assert known.failure("root", TASK, "", 100.0 + seconds) is None
    assert known.failure("other", TASK, "", 100.0) is None


def test_what_is_not_the_registrys_word_spoils_an_image_for_no_other_tenant():
    """Whoever asks for too little memory with it would."""
    known = Images()
    one = Ticket(1, "root", TASK, tenant="acme")
    known.begin(one, "n1")
    failure = known.failed(one, "n1", DiedError("exit code 137"), 0.0, left_s=60.0).failure
    assert failure is not None
    known.leave(one)
    assert failure.key.concerns(Ticket(2, "root", TASK, tenant="acme"))
    assert not failure.key.concerns(Ticket(3, "root", TASK, tenant="zeta"))
    assert not failure.key.concerns(Ticket(4, "other", TASK, tenant="acme"))
    assert known.failure("root", TASK, "acme", 1.0) is failure
    assert known.failure("root", TASK, "zeta", 1.0) is None
    other = Ticket(5, "root", TASK, tenant="zeta")
    known.begin(other, "n1")
    assert known.failed(other, "n1", MISSING, 1.0, left_s=60.0).failure is not None
    told = known.failure("root", TASK, "acme", 1.0)
    assert told is not None
    assert told.reason == "image_not_found"
    again = Ticket(6, "root", TASK, tenant="acme")
    known.succeeded(again, "n1")
    assert known.failure("root", TASK, "acme", 1.0) is None


def test_after_its_time_an_image_that_failed_has_a_canary_again_though_a_node_holds_it():
    known = Images()
    known.report("n1", [TASK])
    known.failed(ticket(1), "n2", MISSING, 0.0, left_s=60.0)
    known.leave(ticket(1))
    known.begin(ticket(2), "n1")
    assert known.is_held(ticket(3))
    known.succeeded(ticket(2), "n1")
    assert known.failure("root", TASK, "", 1.0) is None
    known.begin(ticket(3), "n1")
    assert not known.is_held(ticket(4))


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (THROTTLED, images.TROUBLE_S),
        (ImageNotFoundError("no such host", facts={"pull": "host"}), images.PERMANENT_S),
        (ImageNotFoundError("arm", facts={"pull": "platform"}), images.PERMANENT_S),
    ],
)
def test_what_another_node_may_not_have_is_tried_elsewhere_and_then_told_to_all(error, kept):
    known = Images()
    known.begin(ticket(1), "n1")
    for at, pause in enumerate(images.PAUSES_S):
        assert known.failed(ticket(1), f"n{at}", error, 0.0, left_s=60.0).pause_s == pause
        assert known.failure("root", TASK, "", 0.0) is None
        assert known.is_held(ticket(2)), "it is the canary still"
    assert set(known.avoided(ticket(1))) == {"n0", "n1"}
    last = known.failed(ticket(1), "n2", error, 0.0, left_s=60.0)
    assert last.failure is not None
    assert last.failure.until == kept
    known.leave(ticket(1))
    assert not known.avoided(ticket(1))


def test_who_waits_no_longer_than_the_pause_is_told_at_once():
    known = Images()
    known.begin(ticket(1), "n1")
    verdict = known.failed(ticket(1), "n1", THROTTLED, 0.0, left_s=images.PAUSES_S[0])
    assert verdict.failure is not None


def test_a_passing_failure_of_a_known_image_is_its_requests_own():
    known = Images()
    known.report("n1", [TASK])
    for _ in images.PAUSES_S:
        assert known.failed(ticket(1), "n2", THROTTLED, 0.0, left_s=60.0).pause_s
    assert known.failed(ticket(1), "n2", THROTTLED, 0.0, left_s=60.0) == FINAL
    assert known.failure("root", TASK, "", 0.0) is None


@pytest.mark.parametrize(
    "error",
    [QuotaError("full"), UnschedulableError("no room"), BadRequestError("no", field="workdir")],
)
def test_what_says_nothing_of_the_image_is_not_held_against_it(error):
    known = Images()
    known.begin(ticket(1), "n1")
    assert known.failed(ticket(1), "", error, 0.0, left_s=60.0) == FINAL
    assert known.failure("root", TASK, "", 0.0) is None
    assert known.is_held(ticket(2)), "until its request is over"


def test_only_so_many_failures_are_remembered(monkeypatch):
    monkeypatch.setattr(images, "FAILURES_MAX", 2)
    known = Images()
    for number in range(4):
        one = ticket(number, f"r.example/a:{number}")
        known.begin(one, "n1")
        known.failed(one, "n1", MISSING, 0.0, left_s=60.0)
        known.leave(one)
    kept = [known.failure("root", f"r.example/a:{number}", "", 0.0) for number in range(4)]
    assert [one is not None for one in kept] == [False, False, True, True]


# --- the choice of a node ---


def allocation() -> Allocation:
    return Allocation(cold_max=2, claims_max=64)


def slot(uid: str, node: str, *, swap: bool = True, pool: str = "root") -> Slot:
    return Slot(uid, pool, "base", node, swap)


def nodes(a: Allocation) -> list[str]:
    return [order.slot.node if order.slot else "new" for order in a.assign()]


def test_a_swap_goes_where_the_image_is():
    a = allocation()
    a.images.report("n2", [TASK])
    for number in (1, 2):
        a.offer(slot(f"p{number}", f"n{number}"))
    a.arrive(ticket(1))
    assert nodes(a) == ["n2"]
    a.arrive(ticket(2))
    assert nodes(a) == ["n1"]


def test_among_nodes_that_hold_it_the_one_with_most_placeholders_is_taken():
    a = allocation()
    for node in ("n1", "n2", "n3"):
        a.images.report(node, [TASK])
    for number in range(3):
        a.offer(slot(f"a{number}", "n2"))
    for number in range(2):
        a.offer(slot(f"b{number}", "n1"))
    for number in range(4):
        a.arrive(ticket(number))
    assert nodes(a) == ["n2", "n2", "n1", "n2"]


def test_no_placeholder_of_a_cordoned_node_or_without_swap_is_taken_though_the_image_is_there():
    a = allocation()
    a.images.report("n1", [TASK])
    a.images.report("n3", [TASK])
    a.offer(slot("p1", "n1"))
    a.offer(slot("p2", "n2"))
    a.offer(slot("p3", "n3", swap=False))
    a.cordon("n1", closed=True)
    a.arrive(ticket(1))
    assert nodes(a) == ["n2"]
    a.cordon("n1", closed=False)
    a.arrive(ticket(2))
    assert nodes(a) == ["n1"]


def test_a_node_where_it_failed_is_taken_only_when_there_is_no_other():
    a = allocation()
    for number, node in ((1, "n1"), (2, "n1"), (3, "n2")):
        a.offer(slot(f"p{number}", node))
    a.arrive(ticket(1))
    [first] = a.assign()
    assert first.slot is not None
    assert first.slot.node == "n1"
    a.images.failed(ticket(1), "n1", THROTTLED, 0.0, left_s=60.0)
    a.done(ticket(1))
    a.arrive(ticket(1), first=True)
    assert nodes(a) == ["n2"]
    a.images.failed(ticket(1), "n2", THROTTLED, 0.0, left_s=60.0)
    a.done(ticket(1))
    a.arrive(ticket(1), first=True)
    assert nodes(a) == ["n1"]


def test_a_long_canary_holds_requests_of_its_image_alone():
    a = allocation()
    a.images.report("n9", ["r.example/known:1"])
    for number in range(4):
        a.offer(slot(f"p{number}", "n1"))
    for number in range(1, 4):
        a.arrive(ticket(number))
    [canary] = a.assign()
    assert (canary.ticket.number, canary.tier) == (1, Tier.SWAP)
    a.arrive(ticket(4, "r.example/known:1"))
    a.arrive(ticket(5, "r.example/new:1"))
    a.arrive(ticket(6, "r.example/new:1"))
    assert [order.ticket.number for order in a.assign()] == [4, 5]
    a.images.succeeded(canary.ticket, "n1")
    a.done(canary.ticket)
    a.leave(canary.ticket)
    assert [order.ticket.number for order in a.assign()] == [2, 3]


def test_a_canary_that_is_a_new_pod_is_overtaken_by_who_gets_a_placeholder_and_by_one_alone():
    """It may wait for a node for long."""
    a = allocation()
    for number in range(1, 5):
        a.arrive(ticket(number))
    [first] = a.assign()
    assert first.tier is Tier.COLD
    assert a.assign() == []
    a.offer(slot("p1", "n1"))
    a.offer(slot("p2", "n2"))
    [second] = a.assign()
    assert (second.ticket.number, second.tier) == (2, Tier.SWAP)
    assert a.assign() == []
    # The new pod's end is its own from now on, unless it is certain.
    assert a.images.failed(ticket(1), "", DiedError("x"), 0.0, left_s=60.0) == FINAL
    a.done(first.ticket)
    a.leave(first.ticket)
    assert a.assign() == []
    a.images.succeeded(second.ticket, "n1")
    assert [order.ticket.number for order in a.assign()] == [3, 4]


def test_a_canary_that_failed_as_a_new_pod_and_gets_a_placeholder_is_not_overtaken_any_more():
    a = allocation()
    a.arrive(ticket(1))
    a.arrive(ticket(2))
    [first] = a.assign()
    a.images.failed(ticket(1), "", THROTTLED, 0.0, left_s=60.0)
    a.done(first.ticket)
    a.offer(slot("p1", "n1"))
    a.arrive(ticket(1), first=True)
    assert [order.ticket.number for order in a.assign()] == [1]
    a.offer(slot("p2", "n1"))
    assert a.assign() == []


def test_a_canary_between_two_tries_is_not_taken_for_one_that_waits_for_itself():
    a = allocation()
    a.arrive(ticket(1))
    a.arrive(ticket(2))
    [first] = a.assign()
    a.images.failed(ticket(1), "", THROTTLED, 0.0, left_s=60.0)
    a.done(first.ticket)
    assert a.assign() == []
    a.arrive(ticket(1), first=True)
    assert [order.ticket.number for order in a.assign()] == [1]
