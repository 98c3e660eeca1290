"""What can go wrong in an attempt at an evaluation, in local mode: whose fault it is, and what it earns."""

from __future__ import annotations

import functools
import sys

import pytest
import trio

from sandman import errors
from sandman.client import Client
from sandman.evaluation import attempt, ladder, trial
from tests.fakes.cluster import TASK
from tests.flow.local_mode import Gateway, sleepers
from tests.tasks import small
from tests.tasks.small import END, RESULT, SMALL, START, TOP

# Whole programs start here, and on a busy machine that takes its time.
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def no_pauses(monkeypatch) -> None:
    monkeypatch.setattr(trial, "LONGEST_PAUSE_S", 0.01)


row = functools.partial(small.row, TASK)


async def test_a_sandbox_that_dies_is_infrastructure_and_earns_one_attempt(
    client, whole, tmp_path, no_pauses
):
    """Its own code may have ended it: else it could try until its tests pass by luck."""
    report = await client.evaluate([row("kill -9 -1; kill -9 1")], "none", tmp_path, **SMALL)
    calm = report.records[0]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill_whenever_one_works, whole)
        rows = [row("touch /tmp/works", "sleep 60")]
        report = await client.evaluate(rows, "none", tmp_path / "killed", **SMALL)
        nursery.cancel_scope.cancel()
    [one] = report.records
    assert (one.outcome, one.reason, one.cause) == ("infrastructure", "died", "sandbox")
    assert [(met["reason"], met["cause"]) for met in one.attempts] == [("died", "sandbox")]
    assert one.attempts[0]["sandbox"] != one.sandbox
    assert not report.is_whole
    # What is in the sandbox cannot kill its first process.
    assert (calm.outcome, calm.attempts) == ("unresolved", ())


async def kill_whenever_one_works(whole: Gateway) -> None:
    while True:
        if sleepers(whole):
            whole.daemon.kill()
        await trio.sleep(0.05)


def losing(*lost: errors.SandmanError):
    """A `setup` by which the first sandboxes are lost."""
    left = list(lost)

    async def setup(box: object, row: object) -> None:
        del box, row
        if left:
            raise left.pop(0)

    return setup


async def test_faults_of_the_infrastructure_are_retried_and_never_a_verdict(
    client, tmp_path, no_pauses
):
    lost = [
        errors.EvictedError("disk pressure"),
        errors.NodeLostError("gone"),
        errors.PreemptedError("for another"),
    ]
    report = await client.evaluate([row()], "gold", tmp_path, setup=losing(*lost), **SMALL)
    [one] = report.records
    assert one.outcome == "resolved"
    assert [met["reason"] for met in one.attempts] == ["evicted", "node_lost", "preempted"]
    assert len({one.sandbox, *(met["sandbox"] for met in one.attempts)}) == 4
    assert report.to_json()["retried"] == 3
    setup = losing(*lost[:2], errors.EvictedError("again"))
    how = {**SMALL, "retries": 2, "setup": setup}
    [one] = (await client.evaluate([row()], "gold", tmp_path / "b", **how)).records
    assert (one.outcome, one.reason, one.cause) == ("infrastructure", "evicted", "infrastructure")
    assert (one.failed, one.detail) == ({}, "again")


async def test_a_setting_that_cannot_be_is_an_error_and_others_go_on(client, tmp_path):
    rows = [
        row(name="good"),
        small.row("nowhere.test/none:1", name="no image"),
        row(name="no place"),
    ]
    report = await client.evaluate(rows, "gold", tmp_path, **SMALL)
    assert [(one.outcome, one.cause) for one in report.records] == [
        ("resolved", None), ("error", "caller"), ("resolved", None),
    ]  # fmt: skip
    for number, (how, reason) in enumerate(
        [
            ({"workdir": "/tmp/none"}, "path_not_found"),
            ({"scrub_git": True, "workdir": "/tmp"}, "scrub"),
            ({"workdir": "/tmp", "sandbox": {"env": {"PATH": "/nowhere"}}}, "not_started"),
            ({**SMALL, "grader": "swebench", "swebench_python": sys.executable}, "grading"),
        ]
    ):
        wrong = await client.evaluate([row()], "gold", tmp_path / str(number), **how)
        assert [(one.outcome, one.reason) for one in wrong.records] == [("error", reason)]


async def test_a_patch_that_is_in_already_is_applied(client, tmp_path):
    async def setup(box, row) -> None:
        del row
        await box.files.write(f"{TOP}/result", b"PASSED t\n")
        await box.run(
            "git -c user.name=a -c user.email=a@b.test commit -qam b", cwd=TOP, check=True
        )

    report = await client.evaluate([row()], "gold", tmp_path, setup=setup, **SMALL)
    [one] = report.records
    assert (one.outcome, one.applied_by) == ("resolved", "already applied")


async def test_a_token_that_is_not_known_ends_the_run(client, tmp_path):
    async with Client(client.settings.url, "smk_x_y", ca=client.settings.trust) as stranger:
        with pytest.raises(errors.UnauthenticatedError):
            await stranger.evaluate([row(name=str(n)) for n in range(20)], "gold", tmp_path)


# --- before the patch, and while it is applied ---


async def test_a_setup_that_fails_is_an_error_of_its_own_and_others_go_on(client, tmp_path):
    async def setup(box, row) -> None:
        if row.instance_id == "raises":
            raise ValueError("no such wheel")
        if row.instance_id == "runs":
            await box.run("echo why; exit 3", check=True)

    rows = [row(name=name) for name in ("raises", "runs", "good")]
    report = await client.evaluate(rows, "gold", tmp_path, setup=setup, **SMALL)
    raises, runs, good = report.records
    assert (raises.outcome, raises.reason, raises.cause) == ("error", "setup", "caller")
    assert "ValueError: no such wheel" in raises.detail
    assert (runs.outcome, runs.reason, runs.cause) == ("error", "setup", "caller")
    assert "why" in runs.detail
    assert good.outcome == "resolved"


async def test_no_patch_is_blamed_for_what_happened_before_it(client, tmp_path, no_pauses):
    lost = [errors.EvictedError("its own disk", cause=errors.SANDBOX) for _ in range(3)]
    report = await client.evaluate([row()], "gold", tmp_path, setup=losing(*lost), **SMALL)
    [one] = report.records
    assert one.outcome == "resolved"
    assert [met["cause"] for met in one.attempts] == ["infrastructure"] * 3


def with_git(*lines: str):
    """A `setup` after which git is this program; the real one is `real`."""

    async def setup(box, row) -> None:
        del row
        real = (await box.run("command -v git", check=True)).stdout_text.strip()
        program = "\n".join(["#!/bin/sh", f"real={real}", *lines, 'exec "$real" "$@"', ""])
        await box.files.write(f"{TOP}/.git/bin/git", program.encode(), mode=0o755)

    path = f"{TOP}/.git/bin:/usr/local/bin:/usr/bin:/bin"
    return {**SMALL, "setup": setup, "sandbox": {**SMALL["sandbox"], "env": {"PATH": path}}}


async def test_a_patch_that_could_not_be_tried_has_not_failed(
    client, tmp_path, no_pauses, monkeypatch
):
    monkeypatch.setattr(attempt, "STEP_S", 1.0)
    how = with_git('case "$*" in *apply*) exec sleep 60;; esac')
    [one] = (await client.evaluate([row()], "gold", tmp_path, own_retries=0, **how)).records
    assert (one.outcome, one.reason, one.cause) == ("infrastructure", "step_timed_out", "sandbox")


async def test_a_tree_that_could_not_be_put_back_is_no_ground_for_a_verdict(
    client, tmp_path, monkeypatch
):
    monkeypatch.setattr(ladder, "CLEAN", "sleep 60")
    monkeypatch.setattr(attempt, "STEP_S", 5.0)
    told = [{"instance_id": "small", "model_patch": "nonsense", "model_name_or_path": "m"}]
    how = {**SMALL, "own_retries": 0}
    [one] = (await client.evaluate([row()], told, tmp_path, **how)).records
    assert (one.outcome, one.reason) == ("infrastructure", "step_timed_out")
    assert "git clean" in one.detail


async def test_no_program_that_a_repository_names_sees_the_script_beforehand(
    client, tmp_path, monkeypatch
):
    monkeypatch.setattr(attempt, "SCRATCH", f"{TOP}/.git/scratch")
    how = with_git(f'case "$*" in *" diff"*) ls {TOP}/.git/scratch >>{TOP}/.git/seen;; esac')
    script = (START, RESULT, f"cat {TOP}/.git/seen", END)
    [one] = (await client.evaluate([row(*script)], "gold", tmp_path, **how)).records
    assert one.outcome == "resolved"
    log = (tmp_path / "logs/gold/small/0.0/test_output.txt").read_text()
    assert "patch-" in log
    assert "eval-" not in log.split(f"+ cat {TOP}/.git/seen")[1]
