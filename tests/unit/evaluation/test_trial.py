"""From what happened to a record."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from sandman.client import Client
from sandman.evaluation import faults, trial
from sandman.evaluation.attempt import LOG, Ran
from sandman.evaluation.faults import Fault
from sandman.evaluation.graders import OwnGrader
from sandman.evaluation.grading import Grade
from sandman.evaluation.options import Plan
from sandman.evaluation.parsers import PARSERS
from sandman.evaluation.predictions import Prediction
from sandman.evaluation.trial import Job
from tests.unit.evaluation.samples import row, text

NOBODY = Client("https://127.0.0.1:9", "smk_x_y")
"""No gateway is there: an empty patch asks none."""
GOOD = ("PASSED t.py::fixed", "PASSED t.py::kept", "PASSED t.py::other")


def job(name: str = "org__lib-1", model: str = "m", patch: str = "p", **plan: object) -> Job:
    one = Prediction(name, patch, model)
    return Job.of(row(instance_id=name), one, 0, Plan(**plan))  # type: ignore[arg-type]


async def judged(tmp_path: Path, *lines: str) -> Grade | Fault:
    """The script's processes, or one of them, were killed for want of memory."""
    (tmp_path / LOG).write_text(text(*lines))
    return await trial._grade(job(), Ran(oom_killed=True), OwnGrader(PARSERS), tmp_path)


async def test_tests_that_failed_for_want_of_memory_have_not_failed(tmp_path):
    found = await judged(tmp_path, "FAILED t.py::fixed", *GOOD[1:])
    assert isinstance(found, Fault)
    assert (found.reason, found.cause) == ("oom", "sandbox")


async def test_tests_that_passed_all_the_same_have_passed(tmp_path):
    """Some kill a child for want of memory on purpose."""
    found = await judged(tmp_path, *GOOD)
    assert isinstance(found, Grade)
    assert found.resolved


@pytest.mark.parametrize("text", ["..", "../../etc", "/etc/passwd", ".hidden", "a\0b", "x" * 300, "", "org/model"])  # fmt: skip
def test_no_name_leads_out_of_the_directory(text):
    out = Path("/out")
    found = job(name=text or "a", model=text).directory(out)
    assert found.parts[:3] == ("/", "out", "logs")
    assert len(found.parts) == 6
    assert all(part not in {".", ".."} and len(part) < 120 for part in found.parts)
    assert not any(part.startswith(".") for part in found.parts)


def test_two_names_have_two_directories():
    names = ["a/b", "a__b", "a:b", "a_b", "a b"]
    assert len({job(model=name).directory(Path()) for name in names}) == len(names)
    assert "django__django-11099" in job(name="django__django-11099").directory(Path()).parts


def test_what_decides_a_verdict_is_in_a_jobs_digest():
    same = job().digest
    assert job(concurrency=3, retries=0).digest == same
    changed = [job(patch="q"), job(timeout_s=5.0), job(scrub_git=True), job(workdir="/x")]
    assert len({same, *(one.digest for one in changed)}) == 5
    judges = [job(grader="own"), job(swebench_python="/p"), job(parsers={"mine": dict})]
    assert len({same, *(one.digest for one in judges)}) == 4


def test_so_are_the_sandboxes_that_it_was_measured_in():
    same = job().digest
    elsewhere = {
        "wait_s": 5.0, "run": "r", "labels": {"a": "b"}, "avoid_nodes": ["n"], "ttl_s": 9.0, "idle_s": 9.0, "max_s": 9.0,
        "heartbeat": False, "owner": "o", "user": None,
    }  # fmt: skip
    assert job(sandbox=elsewhere).digest == job(sandbox={}).digest == same
    prepare = [{"file": {"path": "/a", "content": b"\xff"}}]
    changed = [
        {"network": "open"}, {"env": MappingProxyType({"A": "1"})}, {"resources": {"cpu": 2}}, {"prepare": prepare},
        {"pool": "p"}, {"user": 3}, {"purpose": "train"}, {"workdir": "/x"}, {"node_class": "c"}, {"network_wait": False},
    ]  # fmt: skip
    assert len({same, *(job(sandbox=one).digest for one in changed)}) == len(changed) + 1
    order = [{"A": "1", "B": "2"}, {"B": "2", "A": "1"}]
    assert len({job(sandbox={"env": one}).digest for one in order}) == 1


def test_one_sandbox_for_all_evaluations_is_refused():
    with pytest.raises(ValueError, match="idempotency_key"):
        Plan.of({"sandbox": {"idempotency_key": "one"}})


def test_nodes_of_earlier_tries_are_avoided_while_there_is_room_elsewhere():
    lost = (faults.infrastructure("node_lost", ""), Ran(node="n1"))
    full = (faults.infrastructure("capacity", ""), Ran())
    assert trial._to_avoid([]) == []
    assert trial._to_avoid([lost]) == ["n1"]
    assert trial._to_avoid([lost, full]) == []
    assert trial._to_avoid([lost, full, lost]) == ["n1", "n1"]


def test_what_is_avoided_is_asked_for_with_what_the_caller_avoids():
    plan = Plan(sandbox={"avoid_nodes": ["n0"], "pool": "eval"})
    assert plan.sandbox_options("i:1")["avoid_nodes"] == ["n0"]
    assert plan.sandbox_options("i:1", ["n1", "n1"])["avoid_nodes"] == ["n0", "n1"]
    many = [f"n{number}" for number in range(40)]
    assert plan.sandbox_options("i:1", many)["avoid_nodes"] == many[-16:]
    assert "avoid_nodes" not in Plan().sandbox_options("i:1")


async def test_no_file_of_an_earlier_run_lies_beside_a_record(tmp_path):
    one = job(patch="")
    place = one.directory(tmp_path)
    (place / "deeper").mkdir(parents=True)
    for name in (LOG, "report.json", "certificate.json", "deeper/x"):
        (place / name).write_text("stale")
    for _ in range(2):
        record = await trial.evaluate(NOBODY, one, Plan(), OwnGrader(PARSERS), tmp_path)
        assert (record.outcome, record.reason) == ("unresolved", "empty_patch")
        assert list(place.rglob("*")) == []


async def test_files_of_an_attempt_without_a_verdict_are_set_aside(tmp_path):
    names = {LOG, "apply.txt", "certificate.json"}
    for number in (1, 2):
        for name in names:
            (tmp_path / name).write_text(str(number))
        await trial._set_aside(tmp_path, number)
    await trial._set_aside(tmp_path, 3)
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {
        f"{stem}.{number}.{kind}": str(number)
        for number in (1, 2)
        for stem, kind in (name.split(".") for name in names)
    }
