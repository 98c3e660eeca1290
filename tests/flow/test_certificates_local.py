"""Certificates of local mode: the kernel limits a real sandbox, and its certificate says so. It claims no more than there is."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sandman import certificates
from tests.flow.test_local_limits import HOG, bed, whole

__all__ = ["bed", "whole"]
pytestmark = pytest.mark.timeout(120)
TINY = {"cpu": "50m", "memory": "96Mi"}
"""So little cpu that a machine which is busy otherwise gives it more, and the limit is what holds it."""
BUSY = "python3 -c 'while True: pass' & python3 -c 'while True: pass'"


async def test_what_was_held_at_its_limit_or_killed_says_so(bed, whole, tmp_path):
    async with bed.sandman.sandbox(purpose="eval", resources=TINY) as box:
        await box.run("sleep 0.2", exec_id="quiet")
        await box.run(BUSY, timeout_s=2, exec_id="busy")
        await box.exec(["python3", "-c", HOG], exec_id="hog")
        told = await box.certificate(["quiet", "busy", "hog"])
    found = certificates.verify(told.to_json(), await bed.sandman.certificate_keys())
    quiet, busy, hog = found.commands
    assert busy["throttled_s"] > 0.02 * busy["wall_s"]
    assert (hog["oom_killed"], hog["signal"]) == (True, 9)
    assert quiet["exit_code"] == 0
    reasons = [str(one) for one in found.reasons]
    assert any(one.startswith("throttled: busy stood still") for one in reasons), reasons
    assert any(one.startswith("oom: hog: something of it was killed") for one in reasons), reasons
    # There is no scheduler that would set anything aside, and it is not said that there were one.
    assert "qos" in {one.code for one in found.reasons}
    api, inside = found.document["api"], found.document["inside"]
    assert (api["purpose"], api["qos"], api["limits"]["cpu_m"]) == ("eval", None, 50)
    assert api["isolation"]["cpu"] == "limited: 50m"
    assert api["node"]["kernel"] == os.uname().release
    assert inside["memory"]["oom_kills"] >= 1
    assert inside["memory"]["peak_bytes"] > 48 * 2**20
    assert inside["cgroup"] in {1, 2}
    verified = [verify(whole, tmp_path, told.to_json(), "--save-keys", str(tmp_path / "keys"))]
    changed = json.dumps(told.to_json()).replace('"sig": "', '"sig": "A')
    offline = ("--keys", str(tmp_path / "keys"))
    verified += [
        verify(whole, tmp_path, one, *offline) for one in (told.to_json(), json.loads(changed))
    ]
    assert [code for code, _ in verified] == [0, 0, 1]
    assert [row["signature"] for _, [row] in verified][:2] == ["good", "good"]


def verify(gateway, tmp_path, envelope: object, *words: str) -> tuple[int, list[dict]]:
    """What the command says of it, as a program of its own."""
    (tmp_path / "certificate.json").write_text(json.dumps(envelope))
    got = subprocess.run(
        [sys.executable, "-m", "sandman.cli", "verify", "--json", *words, tmp_path / "certificate.json"],
        env={**os.environ, **gateway.environ}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert got.stdout, got.stderr
    return got.returncode, json.loads(got.stdout)
