"""Cases that run at once: needs no cluster."""

from __future__ import annotations

import time

import pytest
import trio

from tests.cluster.together import Cases

CASES = Cases()
RAN: list[str] = []
MEET = trio.Event()


@pytest.fixture(scope="module")
def outcomes(request):
    return CASES.run(None, request)


@CASES.add
async def waits_for_the_next(_deployed):
    with trio.fail_after(10):
        await MEET.wait()
    RAN.append("waits_for_the_next")


@CASES.add
async def comes_next(_deployed):
    MEET.set()
    RAN.append("comes_next")


@CASES.add
def runs_in_a_thread(_deployed):
    time.sleep(0.01)
    RAN.append("runs_in_a_thread")


@CASES.add
async def fails(_deployed):
    raise ValueError("on purpose")


@pytest.mark.parametrize("name", CASES)
def test_what_fails_fails_where_it_is_asked_for_and_nowhere_else(outcomes, name):
    assert len(CASES) == 4
    if name == "fails":
        with pytest.raises(ValueError, match="on purpose"):
            outcomes.check(name)
    else:
        outcomes.check(name)
        assert name in RAN
