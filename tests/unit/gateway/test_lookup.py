"""Sandboxes that the watch does not show yet: how the API server is asked for them, and how often."""

from __future__ import annotations

import trio

from gateway.routes import lookup
from gateway.routes.lookup import Lookup
from tests.unit.gateway.test_roster import leased


class Pods:
    """The API server; each answer takes a second."""

    def __init__(self) -> None:
        self.pods = {}
        self.asked: list[tuple[str, str]] = []
        self.at_once = self.most = 0

    async def read(self, namespace, name):
        self.asked.append((namespace, name))
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await trio.sleep(1)
        finally:
            self.at_once -= 1
        return self.pods.get((namespace, name))


async def test_it_is_found_in_any_namespace_and_only_by_its_whole_id(autojump_clock):
    pods = Pods()
    pods.pods["b", "p"] = leased(namespace="b")
    one = Lookup(pods, ("a", "b"))
    assert await one.find("acme", leased().id) == leased(namespace="b")
    assert await one.find("acme", "p-ffffffff") is None
    assert pods.asked == [("a", "p"), ("b", "p")] * 2


async def test_what_cannot_be_an_id_is_asked_of_nobody(autojump_clock):
    pods = Pods()
    assert await Lookup(pods, ("a",)).find("acme", "../secrets") is None
    assert pods.asked == []


async def test_that_there_is_none_is_known_for_a_while_and_not_for_ever(autojump_clock):
    pods = Pods()
    one = Lookup(pods, ("a",))
    for _ in range(5):
        assert await one.find("acme", leased().id) is None
    assert len(pods.asked) == 1
    await trio.sleep(lookup.ABSENT_S)
    pods.pods["a", "p"] = leased(namespace="a")
    assert await one.find("acme", leased().id) is not None


async def test_what_is_kept_is_bounded(autojump_clock, monkeypatch):
    monkeypatch.setattr(lookup, "ABSENT_MAX", 3)
    one = Lookup(Pods(), ("a",))
    for number in range(5):
        await one.find("acme", f"p-{number:08x}")
    assert list(one._absent) == [("", f"p-{number:08x}") for number in (2, 3, 4)]


async def test_one_tenant_asks_for_few_at_once_and_holds_up_no_other(autojump_clock):
    pods = Pods()
    one = Lookup(pods, ("a",))
    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(one.find, "acme", f"p-{number:08x}")
        await trio.testing.wait_all_tasks_blocked()
        begun = trio.current_time()
        await one.find("zeta", "p-ffffffff")
        assert trio.current_time() - begun < 1.1
    assert pods.most <= 2 * lookup.READS_AT_ONCE


async def test_the_same_id_at_once_is_asked_for_at_most_as_often_as_may_run(autojump_clock):
    pods = Pods()
    one = Lookup(pods, ("a",))
    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(one.find, "acme", "p-00000001")
    assert len(pods.asked) == lookup.READS_AT_ONCE
