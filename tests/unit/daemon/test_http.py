"""The server as a client meets it: tokens, boots, paths, limits, broken requests."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

import httpx
import pytest

from daemon import config
from sandman import names, wire
from tests.unit.daemon.harness import (
    TOKEN,
    Daemon,
    exec_request,
    head,
    problem,
    read_all,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def test_health_needs_no_token(daemon: Daemon) -> None:
    response = httpx.get(f"http://127.0.0.1:{daemon.port}/healthz")
    assert (response.status_code, response.text) == (200, "ok\n")
    response = httpx.head(f"http://127.0.0.1:{daemon.port}/healthz")
    assert (response.status_code, response.content) == (200, b"")


def test_both_families_are_served(daemon: Daemon) -> None:
    for address in ("127.0.0.1", "::1"):
        with socket.create_connection((address, daemon.port), timeout=5) as sock:
            sock.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert read_all(sock).endswith(b"ok\n")


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "é"]
)
def test_everything_else_needs_the_token(daemon: Daemon, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization.encode("latin-1")}
    for path in ("/v1/info", "/v1/exec", "/nowhere"):
        response = httpx.get(f"http://127.0.0.1:{daemon.port}{path}", headers=headers)
        assert problem(response)["reason"] == "unauthenticated"
        assert response.headers["www-authenticate"] == "Bearer"


def test_unknown_paths_and_methods(daemon: Daemon) -> None:
    found = problem(daemon.client.get("/v1/nothing"))
    assert (found["reason"], found["status"]) == ("not_found", 404)
    found = problem(daemon.client.delete("/v1/exec"))
    assert (found["reason"], found["status"]) == ("method_not_allowed", 405)
    assert "POST" in str(found["detail"])
    assert problem(daemon.client.post("/healthz"))["status"] == 405


def test_another_boot_is_410(daemon: Daemon) -> None:
    boot_id = daemon.client.get("/v1/info").json()["boot_id"]
    assert len(boot_id) == 32
    headers = {names.HEADER_BOOT_ID: boot_id}
    assert daemon.client.get("/v1/info", headers=headers).status_code == 200
    found = problem(daemon.client.get("/v1/info", headers={names.HEADER_BOOT_ID: "other"}))
    assert (found["status"], found["reason"], found["cause"]) == (410, "died", "sandbox")
    assert found["facts"] == {"boot_id": boot_id}


def test_claims(start: Callable[..., Daemon]) -> None:
    fresh = start()
    boot_id = fresh.client.get("/v1/info").json()["boot_id"]

    def claim(**body: object) -> httpx.Response:
        return fresh.client.post("/v1/claim", json=body)

    found = problem(claim(claim_id="a", previous_boot_id=boot_id))
    assert (found["status"], found["facts"]) == (409, {"boot_id": boot_id})
    for _ in range(2):
        info = wire.Info.from_json(claim(claim_id="a", previous_boot_id="other").json())
        assert (info.claim_id, info.boot_id) == ("a", boot_id)
    assert problem(claim(claim_id="b"))["reason"] == "conflict"
    assert problem(claim())["field"] == "claim_id"
    assert fresh.client.get("/v1/info").json()["claim_id"] == "a"


def test_info_tells_defaults(daemon: Daemon) -> None:
    info = wire.Info.from_json(daemon.client.get("/v1/info").json())
    assert (info.uid, info.gid) == (os.geteuid(), os.getegid())
    assert info.uptime_s > 0
    assert info.running == 0


def test_running_commands_are_counted(daemon: Daemon) -> None:
    with daemon.connect() as sock:
        sock.sendall(exec_request({"argv": ["sleep", "60"]}))
        assert wait_until(lambda: daemon.client.get("/v1/info").json()["running"] == 1)
    assert wait_until(lambda: daemon.client.get("/v1/info").json()["running"] == 0)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\nHost: x\n\n\r\n\r\n",
        b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n",
        b"GET /healthz\r\n\r\n",
        b"GET http://x/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"G<T /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /he\x00lthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        b"POST /v1/exec HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/exec HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        b"POST /v1/exec HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\n",
        b"POST /v1/exec HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST /v1/exec HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/exec HTTP/1.1\r\nHost: x\r\nExpect: miracles\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 101 + b"\r\n",
        b"GET /" + b"x" * 40000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_doubtful_requests_are_refused_and_the_connection_closed(
    daemon: Daemon, request_bytes: bytes
) -> None:
    answer = daemon.raw(request_bytes)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"\r\nConnection: close\r\n" in answer
    assert problem_of(answer)["reason"] == "bad_request"


def problem_of(answer: bytes) -> dict[str, object]:
    """The problem in an answer's bytes."""
    headers, _, body = answer.partition(b"\r\n\r\n")
    assert f"Content-Type: {names.MEDIA_PROBLEM}".encode() in headers
    assert f"Content-Length: {len(body)}".encode() in headers
    return dict(json.loads(body))


@pytest.mark.parametrize(
    "chunk", [b"g\r\n", b"-1\r\n", b"\r\n", b"3\r\nabcd\r\n", b"1\n", b"1" * 20]
)
def test_broken_chunks_are_refused(daemon: Daemon, chunk: bytes) -> None:
    answer = daemon.raw(
        head("POST", "/v1/exec", "Transfer-Encoding: chunked") + chunk + b"\r\n" * 9
    )
    assert answer.startswith(b"HTTP/1.1 400 "), answer


def test_chunked_bodies_are_read(daemon: Daemon) -> None:
    def body() -> object:
        yield b'{"argv":'
        yield b'["echo","x"]}'

    response = daemon.client.post("/v1/exec", content=body())
    assert response.json()["stdout"] == "x\n"


def test_pipelined_requests_are_answered_in_turn(daemon: Daemon) -> None:
    one = exec_request({"argv": ["echo", "one"]})
    two = head("GET", "/v1/info", "Connection: close")
    answer = daemon.raw(one + two)
    assert answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.index(b"one\\n") < answer.index(b"uptime_s")


def test_a_connection_is_kept(daemon: Daemon) -> None:
    with daemon.connect() as sock:
        for _ in range(3):
            sock.sendall(head("GET", "/v1/info"))
            assert b"boot_id" in sock.recv(65536)
        sock.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert b"Connection: close" in read_all(sock)


def test_a_refused_call_with_a_body_gets_its_answer_and_loses_the_connection(
    daemon: Daemon,
) -> None:
    with daemon.connect() as sock:
        sock.sendall(b"POST /v1/exec HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n")
        sock.sendall(bytes(3_000_000))
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"Connection: close" in answer


def test_too_large_a_body_is_refused_with_the_limit(daemon: Daemon) -> None:
    answer = daemon.raw(head("POST", "/v1/exec", f"Content-Length: {config.MAX_JSON_BYTES + 1}"))
    document = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert document["reason"] == "too_large"
    assert document["facts"] == {"limit": config.MAX_JSON_BYTES}
    assert str(config.MAX_JSON_BYTES) in document["detail"]


def test_too_large_a_chunked_body_is_refused_too(daemon: Daemon) -> None:
    piece = b"100000\r\n" + bytes(0x100000) + b"\r\n"
    with daemon.connect() as sock:
        sock.sendall(head("POST", "/v1/claim", "Transfer-Encoding: chunked") + piece * 5)
        assert b"too_large" in read_all(sock)
