"""An evaluation's log over the way from a real daemon: whole over broken connections, and no verdict where a byte is missing."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from sandman.client import Client
from sandman.errors import BadRequestError
from sandman.evaluation import attempt as attempts
from sandman.evaluation.attempt import Attempt, Ran
from sandman.evaluation.options import Plan
from sandman.evaluation.predictions import Prediction
from sandman.wire import MAX_ATTACHED_GRACE_S
from tests.unit.client.backends import on_backends
from tests.unit.client.way import SANDBOX, Way
from tests.unit.daemon.harness import TOKEN
from tests.unit.evaluation.samples import row

SCRIPT = "seq 200000; sleep 0.3; seq 5 >&2; echo '>>>>> Test Exit Code: 0'"
WHOLE = "".join(f"{n}\n" for n in (*range(1, 200001), *range(1, 6))).encode()


@pytest.fixture(autouse=True)
def own_scratch(tmp_path, monkeypatch) -> None:
    """What is written into the sandbox is written to this machine here."""
    monkeypatch.setattr(attempts, "SCRATCH", str(tmp_path))


async def came_of(way: Way, tmp_path, script: str = SCRIPT, **options: Any) -> Ran:
    """What came of the script."""
    plan = Plan(workdir=str(tmp_path), **options)
    one = Attempt(row(eval_script=script), Prediction("x", "", "m", control=True), plan, tmp_path)
    ran = Ran()
    async with Client(way.url, TOKEN) as client:
        await one._test(client.attach(SANDBOX), ran)
    return ran


def log_of(tmp_path) -> bytes:
    return (tmp_path / "test_output.txt").read_bytes()


@on_backends
async def test_a_log_is_whole_over_connections_that_break(way, tmp_path):
    # Not of the diff and of the script's upload, which come first.
    way.cuts.extend([None, None, None, 30_000, 300_000, 10, 500_000])
    ran = await came_of(way, tmp_path)
    log = log_of(tmp_path)
    assert ran.fault is None
    assert ran.stop is None
    assert log.replace(b"\n+ ", b"\n").count(b"\n199999\n200000\n") == 1
    assert b"".join(line for line in log.splitlines(keepends=True) if line[:1].isdigit()) == WHOLE
    assert ran.log == {
        "file": "test_output.txt", "bytes": len(log), "sha256": hashlib.sha256(log).hexdigest(),
    }  # fmt: skip
    assert len([call for call in way.calls if "/output" in call]) >= 4


@on_backends
async def test_a_byte_that_is_missing_is_a_fault_and_no_verdict(way, tmp_path):
    """What the sandbox says that it wrote is more than what came."""
    way.edits.append((b'"stdout_bytes": 1', b'"stdout_bytes": 9'))
    way.edits.append((b'"stdout_bytes":1', b'"stdout_bytes":9'))
    ran = await came_of(way, tmp_path, "head -c 150 /dev/zero")
    assert ran.fault is not None
    assert (ran.fault.reason, ran.fault.cause) == ("log_lost", "infrastructure")
    size = len(log_of(tmp_path))
    assert ran.fault.detail == f"{size} of {size + 800} bytes of the log arrived"


@on_backends
async def test_a_script_that_takes_too_long_ends_with_what_it_wrote(way, tmp_path):
    ran = await came_of(way, tmp_path, "echo begun; sleep 60", timeout_s=0.5)
    assert (ran.fault, ran.stop) == (None, "timed_out")
    assert b"begun\n" in log_of(tmp_path)


@on_backends
async def test_a_log_over_the_limit_ends_the_script(way, tmp_path):
    ran = await came_of(way, tmp_path, "yes", log_limit=100_000)
    assert (ran.fault, ran.stop) == (None, "log_limit")
    assert len(log_of(tmp_path)) > 100_000


@on_backends
async def test_a_script_lives_on_while_its_reader_comes_back(way, tmp_path, monkeypatch):
    """For longer than the client takes at most; the daemon is asked for it, and refuses what is too long."""
    monkeypatch.setattr(attempts, "READER_AWAY_S", MAX_ATTACHED_GRACE_S + 1)
    with pytest.raises(BadRequestError, match="attached_grace_s"):
        await came_of(way, tmp_path)
