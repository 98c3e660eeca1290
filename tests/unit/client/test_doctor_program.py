"""What `sandman doctor` finds of a gateway as its caller reaches it, and how its program tells it."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from sandman import names
from sandman.cli import main
from sandman.doctor import admission, trial
from sandman.doctor.cluster import Cluster, ClusterError
from sandman.doctor.findings import Level
from sandman.errors import SandmanError, UnreachableError
from tests.unit.client.test_doctor import (
    Installation,
    worst,
)


@pytest.fixture
def cluster() -> Installation:
    return Installation()


class Box:
    """A sandbox whose commands run here, by this Python in the place of the daemon's."""

    id = "box-1-12345678"
    info = SimpleNamespace(tier="warm")

    def exec(self, argv, **_options):
        done = subprocess.run(
            [sys.executable, *argv[1:]], capture_output=True, text=True, check=False
        )
        return SimpleNamespace(
            exit_code=done.returncode, stdout_text=done.stdout, stderr_text=done.stderr
        )


class Gateway:
    """A client of a gateway with that one sandbox, or with none."""

    def __init__(self, failure: SandmanError | None = None) -> None:
        self.failure = failure
        self.box = Box()

    @contextlib.contextmanager
    def sandbox(self, **_options):
        if self.failure:
            raise self.failure
        yield self.box


class TestReach:
    @pytest.fixture(autouse=True)
    def neighbour(self, cluster, monkeypatch):
        """Another sandbox's daemon, that should not be reached and here can be."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            monkeypatch.setattr(names, "DAEMON_PORT", listener.getsockname()[1])
            self.place(cluster, "box-1", "127.0.0.9")
            self.place(cluster, "box-2", "127.0.0.1")
            yield listener

    def place(self, cluster, name: str, address: str) -> None:
        cluster.pods.append({"metadata": {"name": name}, "status": {"podIP": address}})

    def test_policies_that_nobody_enforces(self, cluster):
        found = list(trial.reached(Gateway(), cluster))
        assert [one.level for one in found] == [Level.OK, Level.FAILURE]
        assert "CNI" in found[1].advice

    def test_policies_that_hold(self, cluster, neighbour):
        neighbour.close()
        assert [one.level for one in trial.reached(Gateway(), cluster)] == [Level.OK, Level.OK]

    def test_no_other_sandbox(self, cluster):
        cluster.pods.pop()
        assert [one.level for one in trial.reached(Gateway(), cluster)][1] is Level.SKIPPED

    def test_a_gateway_that_does_not_reach_its_pods(self, cluster):
        level, text = worst(trial.reached, Gateway(UnreachableError("no connection")), cluster)
        assert level is Level.FAILURE
        assert "unreachable: no connection" in text
        assert "21763" in text

    def test_commands_that_do_not_run(self, cluster, monkeypatch):
        broken = SimpleNamespace(exit_code=127, stdout_text="", stderr_text="gone")
        monkeypatch.setattr(Box, "exec", lambda *_a, **_o: broken)
        found = list(trial.reached(Gateway(), cluster))
        assert [one.level for one in found] == [Level.FAILURE, Level.SKIPPED]


def test_a_webhook_that_is_away_is_no_reason_to_deliver_by_copy(cluster):
    cluster.refusal = 'failed calling webhook "pods.sandman.dev": no endpoints available'
    level, text = worst(admission.delivery, cluster)
    assert (level, "no replica of the webhook" in text) == (Level.FAILURE, True)
    assert "init" not in text
    cluster.refusal = "volumes of that kind are forbidden"
    assert "SANDMAN_WEBHOOK_DEFAULT_DELIVERY=init" in worst(admission.delivery, cluster)[1]


KUBECTL = """#!{python}
import json, sys
if "auth" in sys.argv:
    print("no"); sys.exit(1)
if "--raw" in sys.argv:
    print(json.dumps({{"minor": "{minor}", "gitVersion": "v1"}})); sys.exit(0)
if "-l" in sys.argv:
    print("[]"); sys.exit(0)
if {absent} and "sandman-system" in sys.argv:
    sys.exit('Error from server (NotFound): namespaces "sandman-system" not found')
sys.exit("Error from server (Forbidden): no")
"""


class TestProgram:
    @pytest.fixture
    def call(self, tmp_path):
        def run(*arguments: str, minor: str = "34", absent: bool = False):
            text = KUBECTL.format(python=sys.executable, minor=minor, absent=absent)
            (tmp_path / "kubectl").write_text(text)
            (tmp_path / "kubectl").chmod(0o755)
            environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
            return CliRunner(env=environ).invoke(main, ["doctor", *arguments])

        return run

    def test_what_cannot_be_asked_is_a_finding_and_fails(self, call):
        result = call("--json", "--context", "prod")
        assert result.exit_code == 1
        found = json.loads(result.stdout)
        assert found[0] == {
            "hop": "API server",
            "level": "ok",
            "text": "it answers, version v1",
            "advice": "",
        }
        assert {one["hop"] for one in found} >= {"programs", "webhook", "injection", "quota"}
        assert any("Forbidden" in one["text"] for one in found)

    def test_without_a_server_nothing_else_is_asked(self, call, tmp_path):
        result = call(minor="2")
        assert result.exit_code == 1
        lines = result.stdout.splitlines()
        assert lines[0].startswith("failure  API server")
        assert lines[1].strip().startswith("→ Sandman needs Kubernetes 1.33")
        assert len(lines) == 2

    def test_where_nothing_is_installed_that_is_all_there_is_to_say(self, call):
        result = call("--trial", absent=True)
        assert result.exit_code == 1
        found = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
        assert found == [
            "ok       API server: it answers, version v1",
            "failure  programs: Sandman is not installed in this cluster: there is no namespace sandman-system",
        ]
        assert "docs/quickstart-cluster.md" in result.stdout

    def test_a_trial_needs_a_gateway(self, call):
        result = call("--trial", "--json")
        assert "set SANDMAN_URL" in json.loads(result.stdout)[-1]["advice"]

    def test_kubectl_itself(self, call, tmp_path, monkeypatch):
        call()
        monkeypatch.setenv("PATH", str(tmp_path))
        assert Cluster().may("x", "get", "pods") is False
        for broken in (lambda: Cluster().get("x"), lambda: Cluster().items("x", "-l", "y")):
            with pytest.raises(ClusterError):
                broken()
        (tmp_path / "kubectl").write_text("#!/bin/sh\necho '{'\n")
        with pytest.raises(ClusterError, match="makes no sense"):
            Cluster().get("x")
        (tmp_path / "kubectl").write_text("#!/bin/sh\nexit 3\n")
        with pytest.raises(ClusterError, match="ended with 3"):
            Cluster().raw("/x")
        (tmp_path / "kubectl").unlink()
        with pytest.raises(ClusterError, match="kubectl"):
            Cluster().raw("/x")
