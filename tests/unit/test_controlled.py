"""What `tests.cluster.controlled` concludes from what it has kept: the limit, names of tests, neighbours, and the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from sandman import certificates
from sandman.evaluation.journal import Journal
from sandman.evaluation.records import EvaluationKey, EvaluationRecord
from tests.cluster import burning, controlled_rows, controlled_table, neighbours
from tests.cluster.controlled_rows import Setting
from tests.cluster.neighbours import Burnt, Sample
from tests.tasks import catalog

SEED = bytes(range(32))
BURNT = [
    Burnt("processor", 10.0, 5.0, 0),
    Burnt("memory", 10.0, 3.0, 30 * 10**9),
    Burnt("disk", 10.0, 1.0, 10**9),
]


def certificate(verdict: str, *codes: str) -> dict[str, object]:
    """Signed, with what the table reads."""
    reasons = [{"code": code, "detail": "so"} for code in codes]
    document = {"verdict": verdict, "reasons": reasons, "sandbox": "a", "issued_at": "b"}
    return certificates.sign({"format": 1, **document, "commands": []}, SEED).to_json()


def record(number: int, *, good: bool, certificate: dict[str, object]) -> EvaluationRecord:
    """An evaluation of task `t`."""
    return EvaluationRecord(
        key=EvaluationKey("t", "gold", 0, number), digest="d",
        outcome="resolved" if good else "unresolved",
        facts={"wall_s": 1.0 + number}, certificate=certificate,
    )  # fmt: skip


@pytest.fixture
def kept(tmp_path):
    """A directory as two arms leave it: no flip with control, one of three without."""
    arms = {
        "eval": [record(n, good=True, certificate=certificate("controlled")) for n in range(3)],
        "shared": [
            record(n, good=n > 0, certificate=certificate("uncontrolled", "qos")) for n in range(3)
        ],
    }
    for arm, records in arms.items():
        place = tmp_path / arm / "t"
        place.mkdir(parents=True)
        with Journal(place) as journal:
            for one in records:
                journal.append(one)
        controlled_table.keep_burnt(tmp_path, arm, BURNT)
    (tmp_path / "keys").mkdir()
    key = certificates.public_key(SEED)
    (tmp_path / "keys" / "one.json").write_text(json.dumps(certificates.keys_to_json([key])))
    return tmp_path


def test_the_limit_is_so_many_times_the_median():
    assert Setting.calibrated("image", [1.0, 9.0, 1.2]).limit_s == pytest.approx(3.0)


def test_a_setting_is_the_same_for_the_next_piece(tmp_path):
    made = Setting.calibrated("image", [1.0, 1.5, 1.25])
    made.write(tmp_path / "setting.json")
    assert Setting.read(tmp_path / "setting.json") == made


def test_names_that_a_log_does_not_carry_are_left_out():
    names = ["a::b[c d]", "a::b[c  d]", "a::b[c\td]", "a::b ", "a::b"]
    assert controlled_rows.carried(names, "parse_log_pytest_v2") == ["a::b[c d]", "a::b"]
    every = catalog.SQLPARSE.pass_to_pass()
    left = set(every) - set(controlled_rows.carried(every, "parse_log_pytest_v2"))
    assert len(left) == 7
    assert "tests/test_tokenize.py::test_parse_endifloop[END   IF]" in left
    told = controlled_rows.NO_STATUS["sqlparse"]
    assert set(told) < set(every) - left


def test_neighbours_are_busy_and_rest_in_turn():
    """Each span begins where the one before ends, for as long as the clock goes."""
    at, turns, busy_s = 1e9, [], 0.0
    for _ in range(2 * len(burning.SPANS)):
        busy, left = burning.phase(at)
        turns.append(busy)
        busy_s += left * busy
        at += left + 1e-6
    assert turns.count(True) in {len(burning.SPANS) - 1, len(burning.SPANS), len(burning.SPANS) + 1}
    assert 0.5 < busy_s / (at - 1e9) < 0.7


def test_as_many_spin_as_are_said(tmp_path):
    argv = [sys.executable, burning.__file__, "processor", str(tmp_path / "burnt")]
    running = subprocess.Popen(argv, start_new_session=True)
    try:
        seen = 0
        while seen <= burning.SPINNING:
            assert running.poll() is None
            seen = len(members(running.pid))
            time.sleep(0.02)
        time.sleep(0.2)  # Those that should not be come just after.
        assert len(members(running.pid)) == 1 + burning.SPINNING
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def members(group: int) -> list[str]:
    """Processes of a group."""
    found = subprocess.run(["pgrep", "-g", str(group)], capture_output=True, check=True, text=True)
    return found.stdout.split()


def test_neighbours_burn_between_two_samples():
    one = Burnt.between("memory", Sample(10.0, 1.0, 0), Sample(14.0, 3.0, 8_000_000))
    assert (one.cores, one.mb_s) == (0.5, 2.0)
    both = neighbours.together([one, Burnt("memory", 4.0, 0.0, 0)])
    assert (both["memory"].cores, both["memory"].mb_s) == (0.25, 1.0)


def test_neighbours_that_did_not_burn_are_named():
    good = neighbours.together(BURNT)
    assert neighbours.lacking(good) == []
    idle = [Burnt(one.kind, 10.0, 0.1, 0) for one in BURNT[1:]]
    found = neighbours.lacking(neighbours.together(idle))
    assert [why.split()[0] for why in found] == ["processor", "all", "memory", "disk"]


def test_the_table_has_both_arms_and_what_is_proven(kept):
    found = controlled_table.read(kept)
    lines = found.lines()
    assert "| t | 3 of 3 | 0 | 2.0, 3.0 | 3 of 3 | 2 of 3 | 1 | 2.0, 3.0 | 0 of 3 |" in lines
    text = "\n".join(lines)
    assert "eval: 3 evaluations, 3 certificates, 3 verified (controlled 3)" in text
    assert (
        "shared: 3 evaluations, 3 certificates, 3 verified (because of qos 3, uncontrolled 3)"
        in text
    )
    assert text.count("another verdict in its text 3 of 3 refused") == 2
    assert "processor 0.50 cores, memory 0.30 cores 3000 MB/s, disk 0.10 cores 100 MB/s" in text
    assert found.against() == []


def test_what_speaks_against_control_is_said(kept):
    (kept / "shared").rename(kept / "other")
    (kept / "eval").rename(kept / "shared")
    (kept / "other").rename(kept / "eval")
    said = controlled_table.read(kept).against()
    assert "eval t: 1 flips" in said
    assert "eval t: 3 are uncontrolled" in said
    assert "shared t: 3 are controlled" in said
    assert "nothing flips without control, so that nothing is shown" in said


def test_a_certificate_of_an_unknown_key_is_against(kept):
    (kept / "keys" / "one.json").unlink()
    said = controlled_table.read(kept).against()
    assert sum("CertificateKeyError" in one for one in said) == 6


def test_one_that_was_held_at_its_limit_must_say_so(kept):
    place = kept / "throttled" / "t"
    place.mkdir(parents=True)
    controlled_table.keep_burnt(kept, "throttled", BURNT)
    with Journal(place) as journal:
        held = certificate("uncontrolled", "throttled")
        journal.append(record(0, good=True, certificate=held))
    assert controlled_table.read(kept).against() == []
    with Journal(place) as journal:
        journal.append(record(0, good=True, certificate=certificate("uncontrolled", "clock")))
    assert controlled_table.read(kept).against() == [
        "throttled t: not all say that they were throttled"
    ]
