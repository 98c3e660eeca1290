"""The fuzzers' corpus, and a few hundred random calls: the same at each run. `make fuzz` goes further."""

from __future__ import annotations

import json
import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from sandman import names
from sandman.errors import OutcomeUnknownError
from tests.fuzz import asks, routes
from tests.fuzz.choices import Choices, pieces
from tests.fuzz.targets import CORPUS, TARGETS

if TYPE_CHECKING:
    from pathlib import Path

INPUTS = sorted(path for path in CORPUS.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_corpus_holds_no_finding(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_each_target_has_a_small_corpus() -> None:
    assert {path.parent.name for path in INPUTS} == set(TARGETS)
    assert sum(path.stat().st_size for path in INPUTS) < 32 * 1024


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_mutants_of_the_corpus(name: str) -> None:
    random = Random(name)
    seeds = [path.read_bytes() for path in INPUTS if path.parent.name == name]
    for _ in range(60):
        mutant = asks.mangled(random.choice(seeds), random)
        TARGETS[name](mutant)


def test_what_replays_is_the_same_at_each_replay() -> None:
    assert pieces(b"abcdef" * 9) == pieces(b"abcdef" * 9)
    assert b"".join(pieces(b"abcdef" * 9)) == b"abcdef" * 9
    choices = Choices(b"\x01\x02\xff")
    assert (choices.of("abc"), choices.number(300), choices.is_spent) == ("b", 0x2FF % 300, True)
    assert choices.one_in(2) is False


def test_fuzzed_names_that_are_forgotten_are_no_finding() -> None:
    ask = asks.Ask("POST", "/v1/processes/c/signal")
    headers = {b"content-type": names.MEDIA_PROBLEM.encode()}
    forgotten = OutcomeUnknownError("command c has run; how it ended is forgotten")
    routes.judge(ask, forgotten.status, headers, json.dumps(forgotten.problem()).encode())
    lost = OutcomeUnknownError("lost")
    with pytest.raises(routes.FindingError):
        routes.judge(ask, lost.status, headers, json.dumps(lost.problem()).encode())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a root directory of its own")
@pytest.mark.timeout(120)
def test_some_hundred_calls_at_random_find_nothing() -> None:
    said: list[str] = []
    routes.run(20261129, 400, say=said.append)
    assert said[0].startswith("routes: 400 calls")
