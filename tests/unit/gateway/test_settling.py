"""A claim or creation whose answer nobody heard: what becomes of its pod and its slot. The client and its
sockets are real, and the server carries out late what it was told, as a real one may."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
import trio

from gateway import fulfilment
from gateway.allocation import Allocation
from gateway.config import Settings
from gateway.daemons import NotListeningError
from gateway.fairness import Ticket
from gateway.fulfilment import Fulfilment
from gateway.model import SandboxRequest
from gateway.orders import Slot
from gateway.provider import BusyError, ClaimLostError, PoolSeen, Seen
from gateway.registry import Registry
from gateway.roster import Roster
from gateway.wants import Want
from sandman import names
from sandman.errors import QuotaError, SandmanError, UnreachableError
from tests.fakes import clocks
from tests.fakes.objects import TASK
from tests.unit.gateway.test_provider import SPEC, free_one, provided
from tests.unit.service.fake_api import Answer, status


@pytest.fixture
def jumping_clock():
    return clocks.jumping()


class Silent:
    """Daemons that do not answer."""

    async def claim(self, instance, _claim):
        await trio.lowlevel.checkpoint()
        raise NotListeningError(instance.name)


@contextlib.asynccontextmanager
async def ordered(*, cold: bool):
    """A fulfilment with one order, to claim the placeholder or to make a pod."""
    async with provided() as (server, provider, api):
        allocation = Allocation(cold_max=int(cold), claims_max=1)
        roster = Roster(Registry(keep_ended=10), allocation)
        roster.apply(PoolSeen(SPEC))
        if not cold:
            free = await free_one(server, api)
            roster.apply(Seen(free))
            allocation.offer(Slot(free.uid, "root", free.image, "n1", swap=True))
        allocation.arrive(Ticket(1, "root", TASK))
        [order] = allocation.assign()
        request = SandboxRequest(image=TASK, pool="root", max_s=60.0, wait_s=60.0)
        want = Want(
            request=request, image=TASK, tenant="acme", key=None, record={},
            arrived=trio.current_time(),
        )  # fmt: skip
        one = Fulfilment(provider, Silent(), roster, Settings(), lambda: 1000.0)

        async def carry_out() -> None:
            try:
                await one.carry_out(order, want)
            finally:
                allocation.done(order.ticket)

        yield SimpleNamespace(
            server=server, roster=roster, fulfilment=one, carry_out=carry_out,
            free=lambda: allocation.statistics().free,
        )  # fmt: skip


async def settled(bed) -> None:
    """Go on as the pool's loop does until nothing is left to be found out."""
    with trio.fail_after(100):
        while bed.fulfilment._unsettled:
            await trio.sleep(1.0)
            await bed.fulfilment.settle_again()


@pytest.mark.parametrize("cold", [False, True])
async def test_a_write_that_lands_after_its_caller_has_gone_leaves_no_pod(jumping_clock, cold):
    async with ordered(cold=cold) as bed:
        bed.server.write_s = 4.0
        with trio.move_on_after(1.0) as cut:
            await bed.carry_out()
        assert cut.cancelled_caught
        # The caller was not held up for it: it has not happened yet.
        assert bed.server.writes == []
        assert bed.free() == 0
        await settled(bed)
        assert [write[0] for write in bed.server.writes] == ["POST" if cold else "PATCH", "DELETE"]
        assert bed.server.all("pods") == []
        assert bed.free() == 0


async def test_a_slot_is_given_back_once_two_looks_apart_found_no_claim(jumping_clock):
    async with ordered(cold=False) as bed:
        bed.server.faults = [lambda seen: Answer(cut=True) if seen.method == "PATCH" else None]
        with pytest.raises(UnreachableError):
            await bed.carry_out()
        begun = trio.current_time()
        await bed.fulfilment.settle_again()
        assert bed.free() == 0
        await settled(bed)
        assert trio.current_time() - begun >= fulfilment.LOOKS_APART_S - 0.5
        assert bed.free() == 1
        assert bed.server.named("pods", "p1")["metadata"]["labels"][names.LABEL_STATE] == "free"


@pytest.mark.parametrize(
    ("code", "reason", "message", "error"),
    [
        (403, "Forbidden", "exceeded quota: x", QuotaError),
        (403, "Forbidden", "no right", SandmanError),
        (429, "TooManyRequests", "later", BusyError),
    ],
)
async def test_what_the_server_refused_was_not_taken(jumping_clock, code, reason, message, error):
    async with ordered(cold=False) as bed:
        answer = status(code, reason, message)
        bed.server.handler = lambda seen: (
            answer if seen.method == "PATCH" else bed.server.handle(seen)
        )
        with pytest.raises(error):
            await bed.carry_out()
        assert bed.free() == 1
        assert bed.fulfilment._unsettled == []
        assert [seen.method for seen in bed.server.seen][:1] == ["GET"]
        assert {seen.method for seen in bed.server.seen[1:]} == {"PATCH"}


async def test_a_slot_that_another_gateway_took_is_not_given_back(jumping_clock):
    async with ordered(cold=False) as bed:
        bed.server.change(
            "pods",
            "p1",
            lambda one: one["metadata"]["labels"].update({names.LABEL_STATE: "leased"}),
        )
        with pytest.raises(ClaimLostError):
            await bed.carry_out()
        assert (bed.free(), bed.fulfilment._unsettled) == (0, [])
