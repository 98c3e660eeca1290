"""Ids that the gateway does not know: each verb says so, and where those are that there are."""

from __future__ import annotations

import json

import pytest

from sandman import errors
from tests.unit.client.fake_gateway import answer, problem

ENDED = "sandman-pool-root-9-1f0e9c3a"


@pytest.fixture
def box(cli, gateway) -> str:
    assert cli("run", "--keep", "true").exit_code == 0
    (kept,) = gateway.sandboxes
    return kept


def test_a_release_of_no_sandbox_is_no_release(cli, gateway, box):
    done = cli("release", box[:-1])
    assert (done.exit_code, done.stderr.splitlines()) == (
        125,
        [
            f"sandman: error: not_found: no sandbox {box[:-1]}",
            "sandman: what to do: sandman ls shows the sandboxes that there are",
        ],
    )
    assert box in gateway.sandboxes
    assert gateway.calls("DELETE") == []


def test_one_that_is_named_twice_is_released_once(cli, gateway, box):
    done = cli("release", "--json", box, box)
    assert (done.exit_code, done.stderr) == (0, f"sandman: released {box}\n")
    assert json.loads(done.stdout) == {"run": None, "sandboxes": [box], "released": 1}
    assert gateway.released


def test_the_others_are_released_nevertheless(cli, gateway, box):
    done = cli("release", "--json", "nosuch", box, "nor-this")
    assert done.exit_code == 125
    assert f"released {box}" in done.stderr
    assert "not_found: no sandbox nosuch, nor-this" in done.stderr
    assert json.loads(done.stdout) == {"run": None, "sandboxes": [box], "released": 1}
    assert gateway.released


def test_one_that_has_ended_is_well_and_said(cli, gateway):
    gateway.plan(f"GET /v1/sandboxes/{ENDED}", problem(errors.ExpiredError("its lease ran out")))
    done = cli("release", "--json", ENDED)
    assert done.exit_code == 0
    assert f"{ENDED} had ended before: expired: its lease ran out" in done.stderr
    assert json.loads(done.stdout) == {"run": None, "sandboxes": [ENDED], "released": 0}


def test_an_answer_of_somebody_else_is_no_end(cli, gateway, box):
    gateway.plan(f"GET /v1/sandboxes/{box}", answer(410, b"moved away"))
    assert cli("release", box).exit_code == 125


def test_a_command_that_is_not_there_leads_to_ps(cli, gateway, box):
    unknown = errors.NotFoundError("no command nosuch; only the last to end are remembered")
    gateway.plan(f"GET /v1/sandboxes/{box}/processes/nosuch", problem(unknown))
    done = cli("logs", box, "nosuch")
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (
        125,
        f"sandman: what to do: sandman ps {box} shows the commands that there are",
    )


def test_logs_of_no_sandbox_lead_to_ls(cli, gateway):
    unknown = errors.NotFoundError("no sandbox nosuch", sandbox="nosuch")
    gateway.plan("GET /v1/sandboxes/nosuch/processes/e1", problem(unknown))
    done = cli("logs", "nosuch", "e1")
    assert (done.exit_code, "sandman ls shows the sandboxes" in done.stderr) == (125, True)
    assert "sandman ps" not in done.stderr
