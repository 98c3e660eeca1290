"""Of two processes of one sandbox the second begins when nothing of the first runs any more: they share a socket, and a call for the
second would be taken by the first now and then."""

from __future__ import annotations

import pytest
import trio

from gateway.model import Tier
from gateway.provider.local import life
from tests.unit.gateway.test_local_provider import Bed, Process, assignment


class Slow(Process):
    """Takes a second to end."""

    now = 0
    most = 0

    async def run(self, *, task_status) -> int:
        Slow.now += 1
        Slow.most = max(Slow.most, Slow.now)
        try:
            return await super().run(task_status=task_status)
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1.0)
            Slow.now -= 1


@pytest.fixture
async def bed(tmp_path, nursery, monkeypatch, autojump_clock):
    Process.made, Slow.now, Slow.most = [], 0, 0
    monkeypatch.setattr(life, "Life", Slow)
    one = Bed(tmp_path)
    nursery.start_soon(one.provider.watch, one.send)
    await one.settle()
    return one


async def test_a_swap_begins_when_the_one_before_is_over(bed):
    swap = assignment(image="task:1", tier=Tier.SWAP, previous_boot_id="b")
    await bed.provider.claim(await bed.free(), swap)
    await trio.sleep(0.9)
    assert len(Process.made) == 1
    await trio.sleep(0.2)
    assert len(Process.made) == 2
    assert Slow.most == 1


async def test_one_that_is_deleted_before_it_began_leaves_nothing(bed):
    swap = assignment(image="task:1", tier=Tier.SWAP, previous_boot_id="b")
    taken = await bed.provider.claim(await bed.free(), swap)
    await trio.sleep(0.5)
    await bed.provider.delete(taken)
    await trio.sleep(0.4)
    assert Slow.now == 1
    await trio.sleep(0.2)
    await bed.settle()
    assert (len(Process.made), Slow.now) == (1, 0)
    assert taken.uid in bed.gone
