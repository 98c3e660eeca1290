"""Gangs: all or nothing, and never two that wait for each other."""

from __future__ import annotations

from gateway.allocation import Allocation
from gateway.fairness import Ticket
from gateway.orders import Slot

TASK = "registry.example/task:1"


def slot(uid: str, *, pool: str = "root", node: str = "n1") -> Slot:
    return Slot(uid, pool, "registry.example/base:1", node, True)


def allocation(*uids: str, cold_max: int = 0, claims_max: int = 8) -> Allocation:
    made = Allocation(cold_max=cold_max, claims_max=claims_max)
    made.images.report("n0", [TASK])
    for uid in uids:
        made.offer(slot(uid))
    return made


def gang(a: Allocation, name: str, *numbers: int, pool: str = "root") -> list[Ticket]:
    tickets = [Ticket(number, pool, TASK, gang=name) for number in numbers]
    for ticket in tickets:
        a.arrive(ticket)
    return tickets


def numbers(orders) -> list[int]:
    return [order.ticket.number for order in orders]


def serve(a: Allocation, tickets) -> None:
    for ticket in tickets:
        a.done(ticket)
        a.leave(ticket)


def test_a_gang_is_served_as_one_when_there_is_enough():
    a = allocation("p1", "p2", "p3")
    gang(a, "g", 1, 2, 3)
    assert numbers(a.assign()) == [1, 2, 3]


def test_until_there_is_enough_nothing_is_claimed_and_what_there_is_is_kept():
    a = allocation("p1", "p2")
    gang(a, "g", 1, 2, 3)
    assert a.assign() == []
    a.arrive(Ticket(9, "root", TASK))
    assert a.assign() == []
    assert (a.statistics().waiting, a.statistics().free) == (4, 0)
    a.offer(slot("p3"))
    assert numbers(a.assign()) == [1, 2, 3]
    a.offer(slot("p4"))
    assert numbers(a.assign()) == [9]


def test_two_gangs_that_fit_alone_and_not_together_never_hold_halves():
    a = allocation("p1", "p2", "p3", "p4")
    first, second = gang(a, "g", 1, 2, 3), gang(a, "h", 4, 5, 6)
    assert numbers(a.assign()) == [1, 2, 3]
    a.offer(slot("p5"))
    # What is left is for whoever asks for one, while the first is on its way.
    a.arrive(Ticket(7, "root", TASK))
    assert numbers(a.assign()) == [7]
    assert a.statistics().free == 1
    serve(a, first)
    assert a.assign() == []
    a.offer(slot("p6"))
    a.offer(slot("p7"))
    assert numbers(a.assign()) == [4, 5, 6]
    serve(a, second)


def test_gangs_of_two_pools_wait_for_each_other_too_since_nodes_are_shared():
    a = allocation("p1")
    a.offer(slot("q1", pool="other"))
    [one, two] = gang(a, "g", 1, 2)
    gang(a, "h", 3, pool="other")
    assert a.assign() == []
    a.leave(one)
    a.leave(two)
    assert numbers(a.assign()) == [3]
    assert a.statistics().free == 1


def test_what_a_gang_lacks_is_made_where_pods_can_be_made():
    a = allocation("p1", cold_max=2)
    tickets = gang(a, "g", 1, 2, 3, 4)
    orders = a.assign()
    assert sorted((o.ticket.number, o.slot is None) for o in orders) == [
        (1, False), (2, True), (3, True),
    ]  # fmt: skip
    gang(a, "h", 5)
    a.offer(slot("p2"))
    assert numbers(a.assign()) == [4]
    serve(a, tickets)
    assert numbers(a.assign()) == [5]


def test_a_gang_larger_than_the_claims_in_flight_is_served_as_they_end():
    a = allocation("p1", "p2", "p3", claims_max=2)
    tickets = gang(a, "g", 1, 2, 3)
    assert numbers(a.assign()) == [1, 2]
    serve(a, tickets[:2])
    assert numbers(a.assign()) == [3]


def test_a_kept_placeholder_that_is_lost_is_made_good_before_all_others():
    a = allocation("p1", "p2")
    tickets = gang(a, "g", 1, 2, 3)
    a.assign()
    a.arrive(Ticket(9, "root", TASK))
    a.withdraw("p1")
    a.forget("p2")
    assert (a.statistics().waiting, len(a._gangs)) == (4, 0)
    for uid in ("p3", "p4", "p5"):
        a.offer(slot(uid))
    assert sorted(numbers(a.assign())) == [1, 2, 3]
    assert a.position(tickets[0]) is None


def test_a_kept_placeholder_on_a_node_that_is_cordoned_is_not_claimed():
    a = allocation("p1")
    gang(a, "g", 1, 2)
    a.assign()
    a.cordon("n1", closed=True)
    a.offer(slot("p2", node="n2"))
    assert a.assign() == []
    a.cordon("n1", closed=False)
    assert sorted(numbers(a.assign())) == [1, 2]


def test_of_a_gang_with_an_image_that_nobody_has_seen_one_goes_first():
    a = allocation("p1", "p2", "p3")
    tickets = [Ticket(number, "root", "registry.example/new:1", gang="g") for number in (1, 2, 3)]
    for ticket in tickets:
        a.arrive(ticket)
    assert numbers(a.assign()) == [1]
    assert a.assign() == []
    a.images.succeeded(tickets[0], "n1")
    a.done(tickets[0])
    a.leave(tickets[0])
    assert numbers(a.assign()) == [2, 3]


def test_a_gang_that_gives_up_gives_back_what_was_kept():
    a = allocation("p1", "p2")
    tickets = gang(a, "g", 1, 2, 3)
    a.assign()
    assert a.position(tickets[0]) == 1
    assert a.is_waiting(tickets[0])
    for ticket in tickets:
        a.leave(ticket)
    assert a.statistics().free == 2
    a.arrive(Ticket(9, "root", TASK))
    assert numbers(a.assign()) == [9]


def test_a_member_that_lost_its_claim_is_of_its_gang_still():
    a = allocation("p1", "p2")
    [one, two] = gang(a, "g", 1, 2)
    a.assign()
    gang(a, "h", 3)
    a.done(one)
    a.arrive(one, first=True)
    a.offer(slot("p3"))
    assert numbers(a.assign()) == [1]
    serve(a, [one, two])
    a.offer(slot("p4"))
    assert numbers(a.assign()) == [3]
    assert repr(a._gangs).startswith("<Gangs waiting=1 gathering=_Gathering(name='h'")
