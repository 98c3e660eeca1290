"""Preparation through the real gateway, by the real daemon."""

from __future__ import annotations

import base64
import io
import tarfile

import trio

from gateway.model import Ending


def tar_of(**files: str) -> str:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return base64.b64encode(into.getvalue()).decode()


async def test_files_trees_and_commands_are_there_at_the_hand_over(bed, tmp_path):
    made = await bed.allocate(
        env={"LATER": "1"},
        prepare=[
            {"archive": {"path": str(tmp_path / "src"), "tar_b64": tar_of(a="one", b="two")}},
            {"file": {"path": str(tmp_path / "run me.sh"), "content": "cat src/*", "mode": "0700"}},
            {"exec": {"shell": 'sh "./run me.sh" >out; echo ${LATER-no} >>out', "cwd": str(tmp_path)}},
        ],
    )  # fmt: skip
    # What a step leaves does not depend on the request's own variables.
    assert (tmp_path / "out").read_text() == "onetwono\n"
    ran = await bed.client.post(
        f"/v1/sandboxes/{made['id']}/exec", json={"shell": "echo $LATER"}, headers=bed.as_("acme")
    )
    assert ran.json()["stdout"] == "1\n"


async def test_a_command_that_fails_is_told_with_its_last_words(bed):
    answer = await bed.client.post(
        "/v1/sandboxes",
        json={"prepare": [
            {"exec": {"shell": "echo fine"}},
            {"exec": {"shell": "seq 100000; echo bad >&2; exit 7"}},
        ]},
        headers=bed.as_("acme"),
    )  # fmt: skip
    problem = answer.json()
    assert (answer.status_code, problem["reason"], problem["retryable"]) == (
        422, "prepare_failed", False,
    )  # fmt: skip
    facts = problem["facts"]
    assert (facts["step"], facts["exit_code"]) == (1, 7)
    assert facts["output"].endswith("100000\nbad\n")
    assert bed.cluster.pods == {}


async def test_a_file_that_cannot_be_written_is_told(bed):
    answer = await bed.client.post(
        "/v1/sandboxes",
        json={"prepare": [{"file": {"path": "/proc/none/x", "content": "x"}}]},
        headers=bed.as_("acme"),
    )
    problem = answer.json()
    assert problem["reason"] == "prepare_failed"
    assert problem["facts"]["reason"] == "path_not_found"


async def test_a_step_has_its_own_time_limit(bed):
    answer = await bed.client.post(
        "/v1/sandboxes",
        json={"prepare": [{"exec": {"shell": "echo begun; sleep 60", "timeout_s": 0.3}}]},
        headers=bed.as_("acme"),
    )
    facts = answer.json()["facts"]
    assert (facts["timed_out"], facts["output"]) == (True, "begun\n")


async def test_a_daemon_that_dies_under_a_step_is_no_failed_step(bed):
    [uid] = bed.cluster.pods

    async def kill() -> None:
        await trio.sleep(0.3)
        bed.daemon.kill()
        bed.cluster.end(uid, Ending("oom", "killed for want of memory"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(kill)
        answer = await bed.client.post(
            "/v1/sandboxes",
            json={"prepare": [{"exec": {"shell": "sleep 60"}}]},
            headers=bed.as_("acme"),
        )
    assert (answer.status_code, answer.json()["reason"]) == (410, "oom")
