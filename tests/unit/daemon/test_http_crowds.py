"""Many connections, idle, slow and stalling ones; starts that fail."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from daemon import config
from sandman import names, wire
from sandman.problems import from_problem
from tests.unit.daemon.harness import (
    TOKEN,
    Daemon,
    environment,
    exec_request,
    head,
    names_in,
    processes_with,
    read_all,
    small,
    start,
    wait_until,
)
from tests.unit.daemon.test_http import problem_of

if TYPE_CHECKING:
    from collections.abc import Callable


def test_many_callers_at_once(daemon: Daemon) -> None:
    def call(number: int) -> int:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{daemon.port}",
            headers={"Authorization": f"Bearer {TOKEN}"},
            verify=False,
        ) as client:
            body = {"argv": ["sh", "-c", f"exit {number}"]}
            return int(client.post("/v1/exec", json=body).json()["exit_code"])

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(call, range(64))) == list(range(64))


def test_an_idle_connection_gives_way_to_a_new_one(
    start: Callable[..., Daemon], tmp_path: object
) -> None:
    fresh = start(program=small(tmp_path, MAX_CONNECTIONS=3))
    idle = [fresh.connect() for _ in range(3)]
    for sock in idle:
        sock.sendall(head("GET", "/healthz"))
        sock.recv(65536)
    with fresh.connect() as sock:
        sock.sendall(head("GET", "/v1/info"))
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    closed = select.select(idle, [], [], 5)[0]
    assert [sock.recv(1) for sock in closed] == [b""]
    for sock in idle:
        sock.close()


def test_too_many_busy_connections_are_turned_away(
    start: Callable[..., Daemon], tmp_path: object
) -> None:
    fresh = start(program=small(tmp_path, MAX_CONNECTIONS=2))
    busy = [fresh.connect() for _ in range(2)]
    for sock in busy:
        sock.sendall(exec_request({"argv": ["sleep", "60"]}))
    time.sleep(0.2)
    answer = fresh.raw(head("GET", "/v1/info"))
    assert answer.startswith(b"HTTP/1.1 503 ")
    # Without a word of ours a client would take it for a proxy's, and the command for lost.
    told = from_problem(problem_of(answer))
    assert (told.reason, told.cause, told.retryable) == ("unreachable", "sandbox", True)
    assert told.retry_after == 1
    for sock in busy:
        sock.close()
    assert wait_until(lambda: b" 200 " in fresh.raw(head("GET", "/v1/info", "Connection: close")))


def test_a_flood_from_within_leaves_room_for_the_gateway(
    start: Callable[..., Daemon], tmp_path: object, mark: str
) -> None:
    """Connections of a test come from within; what the gateway's would find is asked of the parts."""
    fresh = start(program=small(tmp_path, MAX_WITHIN=2))
    busy = [fresh.connect() for _ in range(2)]
    for sock in busy:
        sock.sendall(exec_request({"shell": f"sleep 60; : {mark}"}))
    assert wait_until(lambda: len(processes_with(mark)) == 2)
    assert wait_until(lambda: b" 503 " in fresh.raw(head("GET", "/v1/info", "Connection: close")))
    for sock in busy:
        sock.close()
    assert wait_until(lambda: b" 200 " in fresh.raw(head("GET", "/v1/info", "Connection: close")))


def test_a_body_that_only_trickles_after_the_end_is_given_up(
    start: Callable[..., Daemon], tmp_path: object
) -> None:
    fresh = start(program=small(tmp_path, FINISH_S=0.5))
    frames = wire.encode_frame(wire.REQUEST, b'{"argv": ["true"]}')
    with fresh.connect() as sock:
        length = len(frames) + 5 + 1000
        media = f"Content-Type: {names.MEDIA_FRAMES}"
        sock.sendall(head("POST", "/v1/exec", f"Content-Length: {length}", media) + frames)
        sock.sendall(wire.HEADER.pack(wire.STDIN, 1000))

        def is_closed() -> bool:
            try:
                sock.sendall(b"x")
            except OSError:
                return True
            return bool(select.select([sock], [], [], 0.1)[0])

        assert wait_until(is_closed, 10)


@pytest.mark.parametrize("followed", [True, False])
def test_a_reader_that_only_sips_after_the_end_is_given_up(
    start: Callable[..., Daemon], tmp_path: object, followed: bool
) -> None:
    """Each sip is within the limit of a stall, and all of them together are not."""
    fresh = start(program=small(tmp_path, FINISH_S=0.5))
    body = {"shell": "head -c 40M /dev/zero", "exec_id": "sip", "output_limit": 41_943_040}
    request = exec_request({"shell": "head -c 6M /dev/zero", "exec_id": "sip"})
    if followed:
        fresh.client.post("/v1/processes", json={**body, "detached": True})
        assert wait_until(lambda: has_ended(fresh))
        request = head("GET", "/v1/processes/sip/output")
    with socket.socket() as sock:
        # Before connecting: what was announced may not be taken back.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
        sock.settimeout(10)
        sock.connect(("127.0.0.1", fresh.port))
        sock.sendall(request)
        taken = len(sock.recv(10_000))
        until = time.monotonic() + 1
        while time.monotonic() < until:
            taken += len(sock.recv(10_000))
            time.sleep(0.02)
        # Each zero is six bytes in JSON.
        assert taken + len(read_all(sock)) < 36_000_000
    assert wait_until(lambda: has_ended(fresh))


def listed(daemon: Daemon) -> list[dict]:
    """Its commands, without their output."""
    return list(daemon.client.get("/v1/processes").json()["processes"])


def has_ended(daemon: Daemon) -> bool:
    """Whether its only command has."""
    [told] = listed(daemon)
    return bool(told["state"] == "ended")


def test_slow_and_idle_connections_are_closed(
    start: Callable[..., Daemon], tmp_path: object
) -> None:
    fresh = start(program=small(tmp_path, HEAD_TIMEOUT_S=0.2, IDLE_TIMEOUT_S=0.4))
    started = time.monotonic()
    for opening in (b"", b"GET /healthz HT"):
        with fresh.connect() as sock:
            sock.sendall(opening)
            assert read_all(sock) == b""
    assert time.monotonic() - started < 3


def test_a_body_that_stalls_is_given_up(start: Callable[..., Daemon], tmp_path: object) -> None:
    fresh = start(program=small(tmp_path, STALL_TIMEOUT_S=0.3))
    with fresh.connect() as sock:
        sock.sendall(head("POST", "/v1/claim", "Content-Length: 10") + b"abc")
        assert read_all(sock) == b""


def test_a_reader_that_stalls_is_given_up(start: Callable[..., Daemon], tmp_path: object) -> None:
    fresh = start(program=small(tmp_path, STALL_TIMEOUT_S=0.3))
    big = Path(str(tmp_path)) / "big"
    big.touch()
    os.truncate(big, 50_000_000)
    with fresh.connect() as sock:
        sock.sendall(head("GET", f"/v1/files?path={tmp_path}/big"))
        sock.recv(1)  # it has begun, however busy the machine is
        time.sleep(1)
        assert len(read_all(sock)) < 50_000_000
    with fresh.connect() as sock:
        body = {"shell": "head -c 9M /dev/zero"}
        sock.sendall(exec_request(body))
        sock.recv(1)  # it has begun, however long the JSON took
        time.sleep(1)
        assert len(read_all(sock)) < 9_000_000


def test_it_does_not_start_without_a_token_or_with_nonsense() -> None:

    for env in (
        {names.ENV_TOKEN_SHA256: ""},
        {names.ENV_TOKEN_SHA256: "z" * 64},
        {names.ENV_PORT: "x"},
        {names.ENV_PORT: "70000"},
    ):
        done = subprocess.run(
            [sys.executable, "-m", "daemon"],
            env=environment(env),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert next(iter(env)) in done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "daemon", "dance"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "usage" in done.stderr) == (2, True)


def test_a_taken_port_is_said(daemon: Daemon) -> None:
    with pytest.raises(AssertionError, match="cannot serve"):
        start(env={names.ENV_PORT: str(daemon.port)})


def test_threads_end_with_their_connections(daemon: Daemon) -> None:
    def threads() -> int:
        return len(names_in(f"/proc/{daemon.pid}/task"))

    before = threads()
    sockets = [daemon.connect() for _ in range(20)]
    assert wait_until(lambda: threads() >= before + 20)
    for sock in sockets:
        sock.close()
    assert wait_until(lambda: threads() <= before + 1)
    assert threading.active_count() < 50


@pytest.mark.parametrize(
    "data", [b"GET /healthz HTTP/1.1\nHost: x\n\n", b"\x16\x03\x01\x02\x00\x01\x00"]
)
def test_who_speaks_something_else_is_told_at_once(daemon: Daemon, data: bytes) -> None:
    begun = time.monotonic()
    assert problem_of(daemon.raw(data))["reason"] == "bad_request"
    assert time.monotonic() - begun < config.HEAD_TIMEOUT_S / 2
