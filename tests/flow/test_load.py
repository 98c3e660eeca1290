"""Load tests end to end: scenarios by their commands, on a real gateway with real sandboxes, all at the same time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from tests.flow.local_mode import running
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-load" / "bin" / "python"
"""Of `make load`, which `make test` makes."""
END_S = 100
SCENARIOS = {
    "burst": ["--n", "6"],
    # Two workers, and all by one call of each. So long that files come, on a busy machine too.
    "hold": ["--n", "4", "--batch", "2", "--seconds", "15", "--rate", "10", "--callers", "4", "--processes", "2"],
    "churn": ["--times", "2", "--seconds", "3"],
    # So long that both are served before it is over, on a busy machine too.
    "multi": ["--n", "2", "--callers", "4", "--seconds", "15", "--rest-s", "0.1"],
    "abandon": ["--n", "3", "--ttl-s", "5"],
}  # fmt: skip


class Loads:
    """All scenarios under way, and what they left."""

    def __init__(self, target: Path, reports: Path) -> None:
        self.reports = reports
        self._target = target
        self.processes = {name: self.begin(name, name, flags) for name, flags in SCENARIOS.items()}

    def begin(self, scenario: str, name: str, flags: list[str]) -> subprocess.Popen[str]:
        port = str(free_port())
        ports = ["--master-bind-port", port, "--master-port", port]
        given = ["--target", str(self._target), "--report", str(self.reports), "--name", name]
        return subprocess.Popen(
            [PYTHON, "-m", "loadtest", scenario, *flags, *given, *ports],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def report(self, name: str) -> dict:
        return json.loads((self.reports / name / "report.json").read_text())

    def stop(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    with running(tmp_path_factory.mktemp("state"), free=4, most=40) as one:
        yield one


@pytest.fixture(scope="module")
def loads(gateway, tmp_path_factory):
    place = tmp_path_factory.mktemp("load")
    (place / "ca.crt").write_text(gateway.connection.ca)
    tenants = {name: {"key": key} for name, key in gateway.tokens.items()}
    target = {
        "base_url": gateway.connection.url,
        "ca": "ca.crt",
        "tenants": tenants,
        "image": "host",
    }
    (place / "target.json").write_text(json.dumps(target))
    made = Loads(place / "target.json", place / "reports")
    yield made
    made.stop()


@pytest.mark.timeout(END_S + 20)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_does_its_part_and_leaves_nothing(loads, gateway, scenario):
    said, _ = loads.processes[scenario].communicate(timeout=END_S)
    assert loads.processes[scenario].returncode == 0, said
    assert "report: " in said
    document = loads.report(scenario)
    assert document["errors"] == []
    assert {one["what"] for one in document["bars"] if one["must"] and not one["is_met"]} == set()
    assert document["programs"]["gateway 0"]["memory_most"] > 10e6
    assert (loads.reports / scenario / "report.html").read_text().startswith("<!doctype html>")
    page = loads.reports / scenario / "report.html"
    assert all(key not in page.read_text() for key in gateway.tokens.values())
    assert all(key not in json.dumps(document) for key in gateway.tokens.values())
    CHECKS[scenario](document)


def check_burst(document):
    assert document["calls"]["create"]["count"] == 6
    assert [name for name, _ in document["phases"]] == ["arrive", "work", "over"]


def check_used(document):
    assert document["calls"]["exec"]["count"] > 5
    assert document["calls"]["file put"]["count"] >= 1
    assert document["calls"]["heartbeat"]["count"] >= 1


def check_hold(document):
    assert document["sandboxes"]["handed"] == 4
    assert document["counters"]["departed"] == document["counters"]["arrived"] == 4
    check_used(document)


def check_churn(document):
    assert document["counters"]["campaigns"] >= 3
    assert document["calls"]["create (eval)"]["count"] == document["counters"]["campaigns"]
    assert document["sandboxes"]["released_at_the_end"] == 0


def check_multi(document):
    assert {name: one["weight"] for name, one in document["tenants"].items()} == {
        "acme": 1,
        "zeta": 1,
    }
    assert all(document["calls"][f"create ({name})"]["count"] >= 2 for name in ("acme", "zeta"))
    assert sum(one["served"] for one in document["tenants"].values()) > 0


def check_abandon(document):
    assert document["sandboxes"]["released_at_the_end"] == 0
    assert document["sandboxes"]["gone_s"] > 1
    assert "release" not in document["calls"]


CHECKS = {name: globals()[f"check_{name}"] for name in SCENARIOS}


@pytest.mark.timeout(END_S)
def test_a_run_that_is_interrupted_releases_what_it_held(loads, gateway):
    process = loads.begin("hold", "stopped", ["--n", "2", "--seconds", "300", "--rate", "5"])
    loads.processes["stopped"] = process
    trust = gateway.connection.trust()
    held = []
    with httpx.Client(base_url=gateway.connection.url, verify=trust) as client:

        def of_run():
            return [
                box
                for key in gateway.tokens.values()
                for box in client.get(
                    "/v1/sandboxes?run=stopped", headers={"Authorization": f"Bearer {key}"}
                ).json()["sandboxes"]
            ]

        while len(held) < 2:
            assert process.poll() is None
            held = of_run()
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert of_run() == []
    assert loads.report("stopped")["sandboxes"]["released_at_the_end"] == 2


def test_what_may_not_be_is_refused_before_anything_is_asked():
    environ = {**os.environ, "SANDMAN_TOKEN": "none"}
    flags = ["burst", "--base-url", "https://gateway.example", "--image", "x"]
    done = subprocess.run(
        [PYTHON, "-m", "loadtest", *flags],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "say --mine gateway.example" in done.stderr
