"""Certificates that many ask for at once: shares of tenants, waiting, and how it ends."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import TYPE_CHECKING, Any

import pytest
import trio

from gateway import certifier
from sandman.errors import CapacityError, SandmanError, UnreachableError
from tests.unit.gateway.test_certified import BOX, Beds, bed

if TYPE_CHECKING:
    from gateway.model import Instance

__all__ = ["bed"]


async def ended(bed: Beds, ends: list[tuple[object, float]], box: Instance = BOX) -> None:
    """One that was asked for: what came of it, and when."""
    try:
        ends.append(((await bed.certify(box)).verdict, trio.current_time()))
    except SandmanError as error:
        ends.append((error, trio.current_time()))


def of(tenant: str) -> Instance:
    return dataclasses.replace(BOX, tenant=tenant)


async def test_a_crowd_of_one_tenant_is_made_few_at_once_and_told_when_it_is_too_long(
    bed, autojump_clock
):
    bed.pause_s = 0.75
    ends: list[tuple[Any, float]] = []
    async with trio.open_nursery() as nursery:
        for _ in range(certifier.AT_ONCE * 10):
            nursery.start_soon(ended, bed, ends)
    # Two are asked at the same time for each: API server and network.
    assert bed.most <= 2 * certifier.AT_ONCE_OF_ONE
    made = [one for one, _ in ends].count("controlled")
    assert made == certifier.AT_ONCE_OF_ONE * math.ceil(certifier.TURN_S / 1.5)
    refused = [(one, at) for one, at in ends if one != "controlled"]
    assert {(type(one), one.retryable, one.retry_after) for one, _ in refused} == {
        (CapacityError, True, certifier.AGAIN_S)
    }
    assert max(at for _, at in refused) == pytest.approx(certifier.TURN_S)
    assert len(bed.one.turns) == 0


async def test_what_one_tenant_asks_for_holds_up_no_other(bed, autojump_clock):
    loud: list[tuple[object, float]] = []
    quiet: list[tuple[object, float]] = []
    async with trio.open_nursery() as nursery:
        for _ in range(certifier.AT_ONCE * 10):
            nursery.start_soon(ended, bed, loud, of("loud"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(bed.one.turns) == 1
        nursery.start_soon(ended, bed, quiet, of("quiet"))
    assert quiet == [("controlled", pytest.approx(2.0))]


async def test_those_of_many_tenants_are_limited_together(bed, autojump_clock):
    ends: list[tuple[object, float]] = []
    async with trio.open_nursery() as nursery:
        for number in range(certifier.AT_ONCE * 2):
            nursery.start_soon(ended, bed, ends, of(f"t{number}"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(bed.one.turns) == certifier.AT_ONCE * 2
    assert bed.most <= 2 * certifier.AT_ONCE
    assert [at for _, at in ends] == pytest.approx([2.0] * certifier.AT_ONCE + [4.0] * certifier.AT_ONCE)  # fmt: skip


async def test_the_time_for_one_begins_with_its_turn(bed, autojump_clock):
    bed.pause_s = certifier.LIMIT_S / 2 - 0.1
    ends: list[tuple[object, float]] = []
    taken = [bed.one.turns.of(BOX.tenant) for _ in range(certifier.AT_ONCE_OF_ONE)]
    async with trio.open_nursery() as nursery, contextlib.AsyncExitStack() as stack:
        for one in taken:
            await stack.enter_async_context(one)
        nursery.start_soon(ended, bed, ends)
        await trio.sleep(certifier.TURN_S - 1)
    assert ends == [("controlled", pytest.approx(certifier.TURN_S - 1 + certifier.LIMIT_S - 0.2))]


async def test_one_that_takes_too_long_is_given_up(bed, autojump_clock):
    bed.pause_s = certifier.LIMIT_S
    with pytest.raises(UnreachableError) as caught:
        await bed.certify()
    assert caught.value.retryable
    assert trio.current_time() == pytest.approx(certifier.LIMIT_S)
    assert len(bed.one.turns) == 0


async def test_who_is_cancelled_waits_no_more(bed, autojump_clock):
    async with trio.open_nursery() as nursery:
        for _ in range(certifier.AT_ONCE):
            nursery.start_soon(bed.certify)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert len(bed.one.turns) == 0
    assert (await bed.certify()).verdict == "controlled"
