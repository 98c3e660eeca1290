"""What requests cost that must not be on some nodes: each declines what is free, at every decision."""

from __future__ import annotations

import pytest

from gateway.allocation import Allocation
from gateway.fairness import Ticket
from gateway.model import Tier
from gateway.orders import Slot
from sandman.errors import ImagePullError

BASE = "registry.example/base:1"
TASK = "registry.example/task:1"
NODES = [f"n{number}" for number in range(16)]
SLOTS = 300
TICKETS = 1000
MOST = 17
"""Looks for one choice of a kind: each node that is to be avoided, and one more."""


class Looks:
    """How many there were."""

    count = 0


class Looked(Slot):
    """A placeholder that counts who looks where it is, or whether it may be changed."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> object:
        Looks.count += name in {"node", "swap"}
        return super().__getattribute__(name)


class Avoided(frozenset[str]):
    """Nodes that count who asks for one."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        Looks.count += 1
        return super().__contains__(name)


def crowded(image: str, *, swap: bool, prepared: str = "") -> Allocation:
    a = Allocation(cold_max=0, claims_max=1000)
    a.images.report("elsewhere", [BASE, TASK])
    for number in range(SLOTS):
        node = NODES[number % len(NODES)]
        a.offer(Looked(f"p{number}", "root", image, node, swap, prepared))
    return a


def looks(a: Allocation) -> int:
    Looks.count = 0
    assert a.assign() == []
    return Looks.count


KINDS = pytest.mark.parametrize(
    ("image", "swap", "prepared"),
    [(BASE, True, ""), (TASK, True, ""), (TASK, False, ""), (TASK, True, "p")],
    ids=["others", "warm", "fixed", "prepared"],
)


@KINDS
def test_what_found_nothing_is_not_looked_for_again(image, swap, prepared):
    a = crowded(image, swap=swap, prepared=prepared)
    for number in range(TICKETS):
        a.arrive(Ticket(number, "root", TASK, prepared=prepared, avoid=Avoided(NODES)))
    # One choice; and a look for each ticket at whether anything may be claimed at all.
    assert looks(a) <= 3 * MOST + TICKETS
    assert looks(a) <= 3 * MOST + TICKETS
    assert a.waiting("root") == TICKETS


@KINDS
def test_of_those_that_differ_each_looks_at_nodes_and_not_at_placeholders(image, swap, prepared):
    a = crowded(image, swap=swap, prepared=prepared)
    for number in range(TICKETS):
        away = Avoided([*NODES, f"other-{number}"])
        a.arrive(Ticket(number, "root", TASK, prepared=prepared, avoid=away))
    assert looks(a) <= (3 * MOST + 1) * TICKETS


def test_pools_that_may_not_change_images_are_not_searched_for_one_to_change():
    a = crowded(BASE, swap=False)
    a.arrive(Ticket(0, "root", BASE, avoid=Avoided(NODES)))
    for number in range(1, TICKETS):
        a.arrive(Ticket(number, "root", f"{TASK}-{number}", avoid=Avoided(NODES)))
    assert looks(a) <= (3 * MOST + 1) * TICKETS


@KINDS
def test_who_may_have_what_others_declined_gets_it(image, swap, prepared):
    a = crowded(image, swap=swap, prepared=prepared)
    for number in range(10):
        a.arrive(Ticket(number, "root", TASK, prepared=prepared, avoid=frozenset(NODES)))
    a.arrive(Ticket(10, "root", TASK, prepared=prepared, avoid=frozenset(NODES[1:])))
    a.arrive(Ticket(11, "root", TASK, prepared=prepared))
    orders = a.assign()
    assert [one.ticket.number for one in orders] == [10, 11]
    assert orders[0].slot is not None
    assert orders[0].slot.node == NODES[0]
    assert orders[0].tier is (Tier.WARM if image == TASK else Tier.SWAP)


def test_a_node_where_its_image_failed_is_taken_before_one_that_is_to_be_avoided():
    a = Allocation(cold_max=0, claims_max=8)
    a.images.report("elsewhere", [BASE, TASK])
    ticket = Ticket(1, "root", TASK, avoid=frozenset({"n1"}))
    a.images.failed(ticket, "n2", ImagePullError("x", facts={"pull": "registry"}), 0.0, left_s=60.0)
    a.arrive(ticket)
    a.offer(Slot("p1", "root", BASE, "n1", True))
    assert not a.assign()
    a.offer(Slot("p2", "root", BASE, "n2", True))
    [order] = a.assign()
    assert order.slot is not None
    assert order.slot.uid == "p2"
