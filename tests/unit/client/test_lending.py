"""Adapters of one process share a client, which is there as long as any of their sandboxes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import anyio
import pytest

from sandman.adapters import lending
from sandman.adapters.lending import Afterwards, Holding, Lending
from sandman.errors import ImageDeniedError
from tests.unit.client.backends import on_backends
from tests.unit.client.fake_gateway import TOKEN, FakeGateway, problem

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def settings(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SANDMAN_URL", gateway.url)
    monkeypatch.setenv("SANDMAN_TOKEN", TOKEN)
    yield
    assert lending._clients._lent == {}


def test_a_thing_is_made_for_the_first_and_given_to_the_last() -> None:
    things = iter("ab")
    shop = Lending(lambda: next(things))
    assert (shop.borrow(), shop.borrow(), shop.borrow("other")) == ("a", "a", "b")
    assert shop.give_back() is None
    assert shop.give_back() == "a"
    assert shop.give_back("other") == "b"
    with pytest.raises(KeyError):
        shop.give_back()


class Thing:
    """Is forgotten."""


def test_what_is_forgotten_in_the_middle_of_a_borrow_is_given_back_after_it() -> None:
    held, done = [Thing()], threading.Event()

    def make() -> str:
        held.clear()
        return "new"

    def give_back(key: str) -> None:
        shop.give_back(key)
        done.set()

    shop = Lending(make)
    shop._lent["old"] = "old", 1
    afterwards = Afterwards(give_back)
    afterwards.keep(held[0], "old")
    shop.borrow("new")  # it forgets the thing while it has the lock
    assert done.wait(20)
    assert shop._lent == {"new": ("new", 1)}
    afterwards.end(20)


def test_what_is_left_at_the_end_is_done_then_and_a_failure_is_nobody_elses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[float] = []
    afterwards = Afterwards(lambda number: done.append(1 / number))
    things = [Thing() for _ in range(4)]
    kept = [afterwards.keep(thing, number) for number, thing in enumerate(things)]
    del things[1]
    assert kept[2].detach() is not None
    afterwards.end(20)
    assert done == [1.0, 1 / 3]
    assert "ZeroDivisionError" in caplog.text
    afterwards.keep(things[0], 4)
    things.clear()
    afterwards.end(20)
    assert done[2:] == [0.25]


@on_backends
async def test_sandboxes_share_a_client_and_the_last_closes_it(gateway: FakeGateway) -> None:
    one, other = await Holding.acquire({}), await Holding.acquire({})
    assert one._client is other._client
    await one.release()
    await one.release()
    assert await one._client.list() != []
    await other.release()
    assert gateway.sandboxes == {}
    third = await Holding.acquire({})
    assert third._client is not one._client
    await third.release()


@on_backends
async def test_one_that_cannot_be_had_leaves_no_client(gateway: FakeGateway) -> None:
    gateway.plan("POST /v1/sandboxes", problem(ImageDeniedError("not for you")))
    with pytest.raises(ImageDeniedError):
        await Holding.acquire({})


@on_backends
async def test_who_is_cancelled_releases_all_the_same(gateway: FakeGateway) -> None:
    one = await Holding.acquire({})
    with anyio.CancelScope() as scope:
        scope.cancel()
        await one.release()
    assert gateway.sandboxes == {}
