"""`POST /v1/evidence` over HTTP against a real daemon: hashes of all that was written, counters, what is not known."""

from __future__ import annotations

import hashlib
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from daemon import usage
from sandman import evidence, wire
from tests.unit.daemon.harness import ROOT, problem, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.daemon.harness import Daemon


def ask(daemon: Daemon, *exec_ids: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """As the gateway reads it."""
    answer = daemon.client.post("/v1/evidence", json={"exec_ids": list(exec_ids)})
    assert answer.status_code == 200, answer.text
    return evidence.answer_from_json(answer.json(), exec_ids)


def named() -> str:
    return f"e-{uuid.uuid4().hex}"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_the_hash_is_of_all_that_was_written_also_of_what_is_not_kept(daemon: Daemon) -> None:
    whole = b"".join(b"%d\n" % n for n in range(1, 200_001))
    one, two = named(), named()
    result = daemon.sh("seq 1 200000; echo e >&2; exit 3", output_limit=1000, exec_id=one)
    assert result.stdout_truncated
    daemon.sh("printf a; printf b >&2", merge_stderr=True, exec_id=two)
    _, [first, second] = ask(daemon, one, two)
    assert first["state"] == "ended"
    assert (first["exit_code"], first["timed_out"], first["signal"]) == (3, False, None)
    assert (first["stdout_bytes"], first["stdout_sha256"]) == (len(whole), sha(whole))
    assert (first["stderr_bytes"], first["stderr_sha256"]) == (2, sha(b"e\n"))
    assert first["wall_s"] == result.wall_s
    assert (second["stdout_sha256"], second["stderr_sha256"]) == (sha(b"ab"), sha(b""))


def test_it_is_the_same_where_the_output_was_read_as_it_came_and_then_forgotten(
    daemon: Daemon,
) -> None:
    name = named()
    frames = daemon.frames(shell="head -c 3000000 /dev/zero", exec_id=name)
    assert sum(len(f.payload) for f in frames if f.type == wire.STDOUT) == 3_000_000
    for _ in range(4):
        daemon.sh("head -c 9M /dev/zero", exec_id=named())
    _, [told] = ask(daemon, name)
    assert told["stdout_sha256"] == sha(bytes(3_000_000))


def test_of_a_terminal_and_of_what_could_not_start(daemon: Daemon) -> None:
    one, two = named(), named()
    body = {"argv": ["printf", "x"], "exec_id": one, "terminal": {}}
    assert daemon.client.post("/v1/processes", json=body).status_code == 200
    wait_until(lambda: ask(daemon, one)[1][0]["state"] == "ended", 10)
    result = daemon.exec(argv=["/no/such/program"], exec_id=two)
    _, [terminal, missing] = ask(daemon, one, two)
    assert terminal["stdout_sha256"] == sha(b"x")
    assert (missing["exit_code"], missing["start_error"]) == (127, "not_found")
    assert missing["stderr_sha256"] == sha(result.stderr)


def test_what_runs_and_what_never_was_is_told_as_that(daemon: Daemon) -> None:
    name = named()
    body = {"shell": "sleep 30", "exec_id": name, "detached": True}
    assert daemon.client.post("/v1/processes", json=body).status_code == 200
    _, told = ask(daemon, name, "never")
    assert [one["state"] for one in told] == ["running", "unknown"]
    assert daemon.client.delete(f"/v1/processes/{name}").status_code == 204


def test_the_inside_is_told(start: Any) -> None:
    daemon = start(env={"TZ": "Europe/Berlin", "LANG": "de_DE.UTF-8"})
    before = time.time()
    inside, _ = ask(daemon)
    assert before <= inside["clock"] <= time.time()
    assert inside["boot_id"] == daemon.client.get("/v1/info").json()["boot_id"]
    assert (inside["time_zone"], inside["locale"]) == ("Europe/Berlin", "de_DE.UTF-8")
    assert inside["visible_cpus"] >= 1
    assert inside["hostname"]
    assert set(inside["stalled_s"]) == {"cpu", "memory", "io"}


@pytest.mark.parametrize(
    "body", [{"exec_ids": ["a/b"]}, {"exec_ids": ["x"] * 65}, {"exec_ids": "x"}, {"more": 1}]
)
def test_what_makes_no_sense_is_refused(daemon: Daemon, body: dict[str, object]) -> None:
    answer = daemon.client.post("/v1/evidence", json=body)
    assert (answer.status_code, problem(answer)["reason"]) == (400, "bad_request")


def test_asking_is_no_use_of_the_sandbox(start: Any) -> None:
    daemon = start()
    daemon.sh("true")
    time.sleep(0.3)
    ask(daemon)
    assert daemon.client.get("/v1/info").json()["used_s"] >= 0.3


def test_daemon_and_gateway_mean_the_same_pressures() -> None:
    assert usage.PRESSURES == evidence.PRESSURES


def test_all_counters_of_both_kinds(tmp_path: Path) -> None:
    meter = usage.Meter(str(tmp_path), "/no/file")
    assert meter.whole() == {
        "cgroup": None,
        "cpu": {"periods": None, "throttled_periods": None, "throttled_s": None},
        "memory": {"peak_bytes": None, "oom_kills": None},
        "stalled_s": {"cpu": None, "memory": None, "io": None},
    }
    for name in ("memory", "cpu"):
        (tmp_path / name).mkdir()
    (tmp_path / "memory/memory.oom_control").write_text("oom_kill 3\n")
    (tmp_path / "memory/memory.max_usage_in_bytes").write_text("4096\n")
    stat = "nr_periods 9\nnr_throttled 2\nthrottled_time 2500000000\n"
    (tmp_path / "cpu/cpu.stat").write_text(stat)
    old = usage.Meter(str(tmp_path), "/no/file").whole()
    assert (old["cgroup"], old["memory"]) == (1, {"peak_bytes": 4096, "oom_kills": 3})
    assert old["cpu"] == {"periods": 9, "throttled_periods": 2, "throttled_s": 2.5}
    line = "avg10=0.00 avg60=0.00 avg300=0.00 total"
    (tmp_path / "cpu.stat").write_text("throttled_usec 5\nnr_periods 1\n")
    (tmp_path / "cpu.pressure").write_text(f"some {line}=9000000\nfull {line}=1500000\n")
    (tmp_path / "memory.pressure").write_text(f"some {line}=7\nfull {line}=0\n")
    # Before 5.13 the kernel had no such line for cpu; here it is disk's.
    (tmp_path / "io.pressure").write_text(f"some {line}=9\n")
    (tmp_path / "memory.peak").write_text("max\n")
    new = usage.Meter(str(tmp_path), "/no/file")
    assert new.whole()["cgroup"] == 2
    assert new.whole()["stalled_s"] == {"cpu": 1.5, "memory": 0.0, "io": None}
    assert new.whole()["memory"] == {"peak_bytes": None, "oom_kills": 3}
    assert new.read().stalled_s == (1.5, 0.0, None)


def test_what_a_certificate_needs_is_loaded_by_the_first_that_is_asked_for() -> None:
    source = (ROOT / "daemon/application.py").read_text()
    head = source.partition("def _processes")[0]
    assert "from daemon.evidence import Evidence" in head.partition("TYPE_CHECKING:")[2]
    assert "from daemon.evidence" not in head.partition("if TYPE_CHECKING:")[0]
