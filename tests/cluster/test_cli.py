"""The command line against the real cluster, as a person has it: logged in, looking, reaching a server inside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.cluster.bed.shell import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RUN = "cli-test"


class Person:
    """Somebody with a configuration of his own."""

    def __init__(self, sandman, token: str, home: Path) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SANDMAN_")}
        self.environ = {**kept, "XDG_CONFIG_HOME": str(home), "SANDMAN_LOCAL_STATE": str(home)}
        made = sandman.installation
        trust = ("--ca", str(made.ca), "--server-name", made.server_name)
        self("login", made.url, *trust, "--context", "bed", given=token)

    def start(self, *words: str, **options) -> subprocess.Popen[str]:
        heeding = ["env", "--default-signal=INT"]
        command = [*heeding, sys.executable, "-m", "sandman.cli", *words]
        return subprocess.Popen(
            command, env=self.environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
        )  # fmt: skip

    def __call__(self, *words: str, given: str = "") -> str:
        one = self.start(*words, stdin=subprocess.PIPE)
        out, err = one.communicate(given, timeout=120)
        assert one.returncode == 0, err
        return out.strip()

    def json(self, *words: str):
        return json.loads(self(*words, "--json"))


@pytest.fixture
def demo(sandman, tmp_path) -> Iterator[Person]:
    person = Person(sandman, sandman.installation.token, tmp_path / "demo")
    try:
        yield person
    finally:
        person("release", "--run", RUN)
        sandman.wait_nothing_leased(60)


def test_a_person_logs_in_looks_and_reaches_a_server_inside(sandman, demo, tmp_path):
    image = sandman.image("debian")
    demo("run", "--image", image, "--run", RUN, "--keep", "--wait", "120", "--", "true")
    [box] = [one["id"] for one in demo.json("ls", "--run", RUN)]
    other = Person(sandman, sandman.installation.other_token, tmp_path / "other")
    seen, theirs = demo.json("top", "--once"), other.json("top", "--once")
    assert [one["state"] for one in seen["sandboxes"] if one["id"] == box] == ["ready"]
    assert seen["overview"]["sandboxes"] >= 1
    assert seen["overview"]["tenant"] != theirs["overview"]["tenant"]
    assert {one["name"] for one in seen["pools"]} >= {"root"}
    assert box not in json.dumps(theirs)
    demo("exec", "-d", "-w", "/etc", box, "--", "python3", "-m", "http.server", "8000")
    forward = demo.start("port-forward", "--json", box, ":8000")
    assert forward.stdout is not None
    url = json.loads(forward.stdout.readline())["url"]

    def answered() -> bool:
        got = httpx.get(f"{url}/passwd", timeout=20)
        return got.status_code == 200 and got.text.startswith("root:")

    wait_until("the server inside answers", answered, 60)
    forward.send_signal(signal.SIGINT)
    forward.communicate(timeout=30)
    assert forward.returncode == 130
    assert demo.json("release", box)["sandboxes"] == [box]
