"""The command line against local mode, as somebody has it who tries Sandman out: processes, and nothing faked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import httpx
import pytest

from tests.flow import local_mode
from tests.ports import free_port

SERVER = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8000, bind='127.0.0.1')"


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    with local_mode.running(tmp_path_factory.mktemp("state")) as gateway:
        config = str(tmp_path_factory.mktemp("config"))
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SANDMAN_")}
        (made := tmp_path_factory.mktemp("ca") / "ca.pem").write_text(gateway.connection.ca)
        yield {
            **kept, **gateway.environ, "XDG_CONFIG_HOME": config, "TEST_CA": str(made),
            "TEST_URL": gateway.connection.url, "TEST_ZETA": gateway.tokens["zeta"],
        }  # fmt: skip


def start(environ, *words: str, **options) -> subprocess.Popen[str]:
    command = ["env", "--default-signal=INT", sys.executable, "-m", "sandman.cli", *words]
    return subprocess.Popen(
        command, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def run(environ, *words: str, given: str = ""):
    one = start(environ, *words, "--json", stdin=subprocess.PIPE)
    out, err = one.communicate(given, timeout=60)
    assert one.returncode == 0, err
    return json.loads(out)


@pytest.mark.timeout(120)
def test_it_is_found_looked_at_and_reached(environ):
    kept = start(environ, "-q", "run", "--keep", "--", "true")
    assert kept.communicate(timeout=60)[0] == ""
    seen = run(environ, "top", "--once")
    [box] = [one["id"] for one in seen["sandboxes"]]
    assert (seen["overview"]["tenant"], seen["pools"][0]["leased"]) == ("acme", 1)
    subprocess.run(
        [sys.executable, "-m", "sandman.cli", "exec", "-d", "-w", "/etc", box, "--", "python3", "-c", SERVER],
        env=environ, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    forward = start(environ, "port-forward", "--json", box, f"{free_port()}:8000")
    assert forward.stdout is not None
    url = json.loads(forward.stdout.readline())["url"]
    deadline = time.monotonic() + 60
    while (got := httpx.get(f"{url}/passwd", timeout=20)).status_code != 200:
        assert time.monotonic() < deadline, got.text
        time.sleep(0.1)
    assert got.text.startswith("root:")
    forward.send_signal(signal.SIGINT)
    forward.communicate(timeout=30)
    assert forward.returncode == 130
    assert run(environ, "release", box)["released"] == 1


@pytest.mark.timeout(120)
def test_who_logs_in_as_another_sees_his_own(environ):
    login = ("login", environ["TEST_URL"], "--ca", environ["TEST_CA"], "--context", "zeta")
    told = run(environ, *login, given=environ["TEST_ZETA"])
    assert told == {"name": "zeta", "url": environ["TEST_URL"], "tenant": "zeta", "current": True}
    assert run(environ, "top", "--once")["overview"]["tenant"] == "zeta"
    here = run({**environ, "SANDMAN_CONTEXT": "local"}, "top", "--once")
    assert here["overview"]["tenant"] == "acme"
    assert run(environ, "logout") == {"forgotten": ["zeta"]}
