"""The command line as a process of its own: signals, closed streams, workloads."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time

import pytest

from sandman.cli import guard
from tests.unit.client.fake_gateway import TOKEN, FakeGateway, answer, slowly
from tests.unit.client.test_cli import CREATE, process

# --- as a process --------------------------------------------------------------------------------


def test_a_process_passes_everything_through(gateway: FakeGateway) -> None:
    script = r"cat; printf '\r\n\0'; echo err >&2; exit 9"
    one = process(gateway, "-q", "run", "-i", "--", "sh", "-c", script, stdin=subprocess.PIPE)
    out, err = one.communicate(b"x" * 1_000_000, timeout=20)
    assert (out, err, one.returncode) == (b"x" * 1_000_000 + b"\r\n\0", b"err\n", 9)
    assert gateway.settled()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_interrupts_release(gateway: FakeGateway, number: int, code: int) -> None:
    one = process(gateway, "run", "--", "sleep", "60")
    assert gateway.started.wait(20)
    one.send_signal(number)
    _, err = one.communicate(timeout=20)
    assert one.returncode == code
    assert gateway.settled()
    assert b"Traceback" not in err
    assert (b"releasing" in err) is (number == signal.SIGINT)


def test_closed_streams_are_nothing_to_read_and_nowhere_to_write(gateway: FakeGateway) -> None:
    environment = {**os.environ, "SANDMAN_URL": gateway.url, "SANDMAN_TOKEN": TOKEN}
    run = f"{sys.executable} -m sandman.cli -q run"
    for line in (f"{run} -- sh -c 'echo hi; exit 3' >&-", f"{run} -i -- sh -c 'cat; exit 3' <&-"):
        ended = subprocess.run(
            ["sh", "-c", line], env=environment, capture_output=True, timeout=30, check=False
        )
        assert (ended.returncode, b"Traceback" in ended.stderr) == (3, False), ended.stderr


def test_an_interrupt_while_waiting_releases_too(gateway: FakeGateway) -> None:
    gateway.plan(CREATE, slowly(1.0))
    one = process(gateway, "run", "true")
    assert gateway.hanging.wait(20)
    one.send_signal(signal.SIGINT)
    one.communicate(timeout=20)
    assert one.returncode == 130
    assert gateway.settled()


def test_an_interrupt_with_keep_keeps(gateway: FakeGateway) -> None:
    one = process(gateway, "run", "--keep", "--", "sleep", "60")
    assert gateway.started.wait(20)
    one.send_signal(signal.SIGINT)
    _, err = one.communicate(timeout=20)
    assert one.returncode == 130
    assert b"kept: " in err
    assert len(gateway.sandboxes) == 1


def test_a_reader_that_goes_away_ends_it(gateway: FakeGateway) -> None:
    one = process(gateway, "run", "seq", "100000000")
    assert one.stdout.readline() == b"1\n"
    one.stdout.close()
    assert one.wait(20) == 141
    assert b"Traceback" not in one.stderr.read()
    one.stderr.close()
    assert gateway.settled()


def test_on_a_terminal_there_is_a_spinner_and_a_table(gateway: FakeGateway) -> None:
    main_end, terminal = pty.openpty()
    gateway.plan(CREATE, answer(429, retry_after="1"))
    one = process(
        gateway, "run", "--keep", "true", stdout=terminal, stderr=terminal, stdin=terminal
    )
    assert one.wait(20) == 0
    two = process(gateway, "ls", stdout=terminal, stderr=terminal, stdin=terminal)
    assert two.wait(20) == 0
    os.close(terminal)
    seen = read_all(main_end)
    assert "\x1b[?25l" in seen, "a spinner hides the cursor"
    assert "capacity" in seen
    assert "ID" in seen
    assert "ready" in seen


def read_all(descriptor: int) -> str:
    data, end = b"", time.monotonic() + 5
    while time.monotonic() < end:
        try:
            data += os.read(descriptor, 65536)
        except OSError:
            break
    os.close(descriptor)
    return data.decode(errors="replace")


def test_a_signal_that_comes_just_before_a_wait_is_seen_within_a_second(monkeypatch) -> None:
    """Its C handler has run and Python's has not: only another signal ends the system call."""
    seen: list[float] = []
    monkeypatch.setattr(guard, "LOOK_EVERY_S", 0.05)
    before = signal.getsignal(signal.SIGALRM)
    with guard._looking_for_signals():
        signal.signal(signal.SIGALRM, lambda *_: seen.append(time.monotonic()))
        begun = time.monotonic()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.settimeout(0.3)
            with pytest.raises(TimeoutError):
                ours.recv(1)
        assert begun < seen[0] < begun + 0.3
    assert signal.getsignal(signal.SIGALRM) == before


# --- workloads -----------------------------------------------------------------------------------

ATTACH = "POST /v1/sandboxes/attach"


def test_attach_prints_the_id_alone(cli, gateway: FakeGateway) -> None:
    gateway.plan(ATTACH, answer(201, b'{"id":"sandman-attached-1"}'))
    result = cli("attach", "-n", "shop", "-l", "app=web,tier=x", "-c", "app", "--max-life", 60)
    assert (result.exit_code, result.stdout) == (0, "sandman-attached-1\n")
    assert gateway.requests[0].json() == {
        "namespace": "shop", "selector": {"app": "web", "tier": "x"}, "container": "app",
        "lease": {"max_s": 60.0},
    }  # fmt: skip


@pytest.mark.parametrize("arguments", [(), ("web", "-l", "a=b"), ("-l", "a"), ("-l", "=b")])
def test_attach_wants_a_pod_or_labels(cli, gateway: FakeGateway, arguments) -> None:
    assert cli("attach", "-n", "shop", *arguments).exit_code == 2
    assert gateway.requests == []


def test_workloads_as_a_table_and_as_json(cli, gateway: FakeGateway) -> None:
    row = {
        "namespace": "shop",
        "pod": "web-0",
        "container": "app",
        "image": "web:1",
        "node": None,
        "attached": False,
    }
    body = json.dumps({"attachable": [row]}).encode()
    gateway.plan("GET /v1/sandboxes", answer(200, body), answer(200, body))
    assert "shop\tweb-0\tapp\tweb:1\t-\tFalse" in cli("workloads").stdout
    assert json.loads(cli("workloads", "-n", "shop", "--json").stdout) == [row]
