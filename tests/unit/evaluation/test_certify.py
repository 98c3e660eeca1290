"""How long an evaluation's certificate is asked for, and what is kept where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio

from sandman import errors
from sandman.evaluation import certify
from sandman.evaluation.attempt import Attempt, Ran
from sandman.evaluation.options import Plan
from sandman.evaluation.predictions import Prediction
from tests.unit.evaluation.samples import row

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BUSY = errors.CapacityError("too many are in the making", retry_after=2.0)


class Made:
    """A certificate."""

    is_controlled = True
    reasons = ()

    def to_json(self) -> dict[str, object]:
        return {"payload": "x"}


class Box:
    """A sandbox whose gateway answers as a test says."""

    def __init__(self, say: Callable[[], Any]) -> None:
        self.say = say
        self.asked: list[float] = []

    async def certificate(self, exec_ids: list[str]) -> Any:
        assert exec_ids == ["e"]
        self.asked.append(trio.current_time())
        await trio.sleep(1)
        found = self.say()
        if isinstance(found, Exception):
            raise found
        return found


async def tried(box: Box, directory: Path) -> Ran:
    ran = Ran()
    attempt = Attempt(row(), Prediction("a", "p", "m"), Plan(), directory)
    await attempt._certify(box, "e", ran)  # type: ignore[arg-type]
    return ran


async def test_one_that_may_be_had_later_is_asked_for_again(tmp_path, autojump_clock):
    answers = iter(
        [BUSY, errors.UnreachableError("slow"), errors.OutcomeUnknownError("cut"), Made()]
    )
    box = Box(lambda: next(answers))
    ran = await tried(box, tmp_path)
    assert box.asked == [0.0, 3.0, 5.0, 7.0]
    assert ran.certificate == {"payload": "x"}
    assert ran.facts == {"controlled": True, "reasons": []}
    assert (tmp_path / "certificate.json").read_text() == '{"payload": "x"}'


async def test_after_a_while_there_is_none_and_the_record_says_why(tmp_path, autojump_clock):
    ran = await tried(Box(lambda: BUSY), tmp_path)
    assert trio.current_time() == pytest.approx(certify.PATIENCE_S)
    assert ran.certificate is None
    assert ran.facts == {"uncertified": "capacity: too many are in the making"}


async def test_an_answer_that_never_comes_is_waited_for_no_longer(tmp_path, autojump_clock):
    class Silent(Box):
        async def certificate(self, exec_ids: list[str]) -> Any:
            del exec_ids
            await trio.sleep_forever()

    ran = await tried(Silent(Made), tmp_path)
    assert trio.current_time() == pytest.approx(certify.PATIENCE_S)
    assert ran.facts == {"uncertified": "unreachable: no certificate within 120 s"}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (errors.DiedError("it is gone"), "died: it is gone"),
        (errors.NotFoundError("no such path"), "not_found: no such path"),
    ],
)
async def test_what_does_not_pass_is_not_waited_for(tmp_path, autojump_clock, error, told):
    box = Box(lambda: error)
    ran = await tried(box, tmp_path)
    assert box.asked == [0.0]
    assert (ran.certificate, ran.facts) == (None, {"uncertified": told})
