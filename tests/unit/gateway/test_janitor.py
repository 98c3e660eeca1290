"""Which pods are taken away when, and that nothing of it ends the janitor; in virtual time."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import trio

from gateway import janitor
from gateway.janitor import Due, Janitor, due
from gateway.model import Ending
from gateway.provider import Gone
from gateway.registry import Registry
from gateway.roster import Roster
from sandman import names
from sandman.errors import UnreachableError
from tests.unit.gateway.test_roster import leased, pod, roster

DIED = Ending("died", "its first process ended", at=100.0)
UNDATED = Ending("evicted", "the node put the pod out")


def failed_placeholders(count: int):
    return [pod(uid=f"{n:08d}-u", ending=DIED, running=False) for n in range(count)]


# --- the decision ---


@pytest.mark.parametrize(
    ("instance", "first_seen", "now", "is_due"),
    [
        (leased(ending=DIED), 100.0, 699.0, False),
        (leased(ending=DIED), 100.0, 700.0, True),
        (leased(ending=DIED, deleting=True), 100.0, 9e9, False),
        # A gateway that has only begun keeps to when it ended, not to when it looked.
        (leased(ending=DIED), 690.0, 700.0, True),
        # Nor to a node's clock that is ahead.
        (leased(ending=Ending("died", "x", at=5000.0)), 100.0, 700.0, True),
        (leased(ending=UNDATED), 300.0, 899.0, False),
        (leased(ending=UNDATED), 300.0, 900.0, True),
        (leased(), 0.0, 9e9, False),
        (pod(), 0.0, 9e9, False),
        (pod(ending=DIED), 100.0, 100.0, True),
    ],
)
def test_what_has_ended_is_taken_away_when_its_time_is_over(instance, first_seen, now, is_due):
    found = due([instance], {instance.uid: first_seen}, now=now, retain_s=600.0)
    assert [one.instance for one in found] == ([instance] if is_due else [])


def test_of_placeholders_that_failed_only_so_many_go_at_once():
    """Their ReplicaSet makes others: of an image that does not start there is no end."""
    many = failed_placeholders(janitor.PLACEHOLDERS_PER_ROUND + 5)
    ended = leased(uid="a-u", ending=DIED)
    found = due([*many, ended], {}, now=1e6, retain_s=600.0)
    assert len(found) == janitor.PLACEHOLDERS_PER_ROUND + 1
    assert Due(ended, DIED) in found


# --- the shell ---


class Provider:
    """Deletes as the API server does: the watch tells of it a moment later."""

    def __init__(self, one: Roster) -> None:
        self.roster = one
        self.deleted: list[str] = []
        self.remembered: list[object] = []
        self.failures: list[Exception] = []

    async def delete(self, instance) -> None:
        await trio.sleep(0.01)
        if self.failures:
            raise self.failures.pop()
        self.remembered.append(self.roster.registry.ending(instance.id))
        self.deleted.append(instance.uid)
        self.roster.apply(Gone(instance.uid, Ending("deleted", "somebody deleted its pod")))


@contextlib.asynccontextmanager
async def cleaning(one: Roster, *, is_leader=lambda: True):
    async def close_unused(_is_alive) -> None:
        await trio.lowlevel.checkpoint()

    provider = Provider(one)
    cleaner = Janitor(
        one.registry,
        SimpleNamespace(close_unused=close_unused),
        SimpleNamespace(forget_ended=lambda: None),
        provider,
        is_leader=is_leader,
        retain_s=600.0,
        wall=trio.current_time,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cleaner.run)
        yield provider
        nursery.cancel_scope.cancel()


async def test_an_ended_sandbox_makes_room_and_its_reason_stays(autojump_clock):
    one = roster()
    ended = leased(ending=UNDATED, running=False)
    one.registry.put(ended)
    async with cleaning(one) as provider:
        await trio.sleep(600.0)
        assert provider.deleted == []
        await trio.sleep(2 * janitor.EVERY_S)
    assert provider.deleted == [ended.uid]
    # Before its pod was gone: a gateway that is killed between the two has lost nothing.
    assert provider.remembered == [("acme", UNDATED)]
    assert one.registry.ending(ended.id) == ("acme", UNDATED)


async def test_what_could_not_be_deleted_is_deleted_in_a_later_round(autojump_clock):
    one = roster()
    for instance in failed_placeholders(2):
        one.registry.put(instance)
    async with cleaning(one) as provider:
        provider.failures = [UnreachableError("away")]
        await trio.sleep(janitor.EVERY_S + 1)
        assert len(provider.deleted) == 1
        await trio.sleep(janitor.EVERY_S)
    assert sorted(provider.deleted) == ["00000000-u", "00000001-u"]
    assert one.registry._ended == {}


async def test_only_the_allocator_deletes_and_a_new_one_goes_by_what_it_saw_before(autojump_clock):
    one, leads = roster(), []
    one.registry.put(leased(ending=UNDATED, running=False))
    async with cleaning(one, is_leader=lambda: bool(leads)) as provider:
        await trio.sleep(700.0)
        assert provider.deleted == []
        leads.append(True)
        await trio.sleep(janitor.EVERY_S + 1)
        assert len(provider.deleted) == 1


async def test_many_at_once_do_not_flood_the_api_server(autojump_clock):
    one = Roster(Registry(keep_ended=100), roster().allocation)
    for n in range(40):
        one.registry.put(
            leased(uid=f"{n:08d}-u", name=f"p{n}", ending=DIED, state=names.STATE_LEASED)
        )
    async with cleaning(one) as provider:
        await trio.sleep(700.0 + janitor.EVERY_S)
    assert len(provider.deleted) == 40
