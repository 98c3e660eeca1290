"""Attempts from outside on the wire: paths that lead elsewhere, headers that say what only Sandman may, requests that two
readers read in two ways. The caller has a key and a sandbox of his own, and wants what is behind the gateway."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import pytest

from sandman import names
from tests.cluster import hostile
from tests.cluster.hostile import Box, Gates, Said, said

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.cluster.deployed import Deployed


class World(NamedTuple):
    """A caller with his sandbox."""

    gates: Gates
    mine: Box
    token: str


@pytest.fixture(scope="module")
def world(sandman: Deployed) -> Iterator[World]:
    token = sandman.installation.other_token
    with (
        hostile.gates(sandman) as gates,
        hostile.box(gates, token, image=sandman.image("python")) as mine,
    ):
        yield World(gates, mine, token)
    sandman.wait_nothing_leased(60)


def spoken(world: World, line: str, *headers: str, body: bytes = b"") -> tuple[int, str]:
    """Status and whole answer to a request whose bytes are exactly these."""
    lines = [
        line,
        "Host: sandman",
        f"Authorization: Bearer {world.token}",
        "Connection: close",
        *headers,
    ]
    answer = world.gates.raw("\r\n".join([*lines, "", ""]).encode("latin-1") + body).decode(
        "latin-1"
    )
    return int(answer.split(" ", 2)[1]), answer


PATHS: dict[str, tuple[str, str, int, str]] = {
    "the daemon's claim": ("POST", "{box}/claim", 404, "no such path: {box}/claim"),
    "the daemon's probe": ("POST", "{box}/probe", 404, "no such path: {box}/probe"),
    "the daemon's release": ("POST", "{box}/release", 404, "no such path: {box}/release"),
    "the daemon's health": ("GET", "{box}/healthz", 404, "no such path: {box}/healthz"),
    "dots": ("POST", "{box}/files/../claim", 404, "no such path: {box}/files/../claim"),
    "encoded dots": ("POST", "{box}/files/%2e%2e/claim", 404, "no such path: {box}/files/../claim"),
    "an encoded slash": ("POST", "{box}/files%2f..%2fclaim", 404, "no such path: {box}/files/../claim"),
    "dots for a command": ("GET", "{box}/processes/../output", 404, "'..' cannot be the name of a command or session"),
    "an encoded command": ("GET", "{box}/processes/a%2foutput", 404, "no such path: percent-encoding has no place in it"),
    "another's by dots": ("GET", "{box}/../victim/info", 404, "no such path: {box}/../victim/info"),
    "pods by an id": ("GET", "/v1/sandboxes/..%2f..%2fsecrets", 404, "no such path: /v1/sandboxes/../../secrets"),
    "an id of dots": ("GET", "/v1/sandboxes/..", 404, "no sandbox .."),
    "two slashes": ("GET", "//v1/pools", 404, "no such path: //v1/pools"),
    "a slash at the end": ("GET", "/v1/pools/", 404, "no such path: /v1/pools/"),
    "the daemon by its port": ("GET", "{box}/ports/21763/v1/info", 400, "port 21763 is the daemon's own"),
    "port nought": ("GET", "{box}/ports/0/", 400, "a port is a number of 1 to 65535"),
    "the daemon's port with a nought": ("GET", "{box}/ports/021763/", 400, "a port is a number of 1 to 65535"),
    "the daemon's port, encoded": ("GET", "{box}/ports/2176%33/", 400, "a port is a number of 1 to 65535"),
    "the operators' page": ("GET", "/v1/admin", 404, "no such path: /v1/admin"),
    "the webhook's": ("POST", "/mutate", 404, "no such path: /mutate"),
    "the cluster's": ("GET", "/api/v1/namespaces/sandman-system/secrets", 404, "no such path: /api/v1/namespaces/sandman-system/secrets"),
}  # fmt: skip


@pytest.mark.parametrize("case", PATHS)
def test_no_path_leads_behind_the_gateway(world: World, case: str) -> None:
    method, path, status, detail = PATHS[case]
    own = f"/v1/sandboxes/{world.mine.id}"
    found, answer = spoken(world, f"{method} {path.format(box=own)} HTTP/1.1", "Content-Length: 0")
    assert found == status, answer
    problem = json.loads(answer.partition("\r\n\r\n")[2])
    assert problem["reason"] == ("not_found" if status == 404 else "bad_request")
    assert problem["detail"] == detail.format(box=own)
    world.mine.is_whole()


# --- headers ------------------------------------------------------------------------------------

FORGED = {
    "another boot": {names.HEADER_BOOT_ID: "0" * 32},
    "a port's mark": {names.HEADER_PORT: "8000"},
    "another host": {"host": "kubernetes.default.svc"},
    "a forwarded host": {"x-forwarded-host": "evil.example", "x-forwarded-prefix": "/evil", "forwarded": "host=evil"},
    "another method": {"x-http-method-override": "DELETE", "x-http-method": "DELETE"},
    "another path": {"x-original-url": "/v1/sandboxes", "x-rewrite-url": "/metrics"},
    "another user": {"x-remote-user": "demo", "impersonate-user": "system:admin", "sandman-tenant": "demo"},
    "what is of one connection": {"connection": "authorization, content-length"},
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_no_header_says_what_only_sandman_may(world: World, case: str) -> None:
    path = f"/v1/sandboxes/{world.mine.id}/info"
    for answer in world.gates.each("GET", path, world.token, headers=FORGED[case]):
        assert answer.status_code == 200
        assert answer.json()["boot_id"] == world.mine.made["boot_id"]
        assert names.HEADER_PORT.lower() not in answer.headers
        assert "evil" not in str(answer.headers)
    world.mine.is_whole()


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/reservations"), ("DELETE", "/v1/reservations/0"), ("GET", "/v1/requests/0"), ("POST", "/v1/sandboxes")],
)  # fmt: skip
def test_who_plays_a_gateway_that_hands_a_call_on_gains_nothing(
    world: World, method: str, path: str
) -> None:
    """The mark of a call that was handed on: the allocator serves it as any other, by the caller's own token; the other
    replica hands it on no more."""
    more = {"json": {"image": "not an image"}} if method == "POST" else {}
    for token in (None, "smk_demo_x"):
        for answer in world.gates.each(
            method, path, token, headers={names.HEADER_HOP: "1"}, **more
        ):
            assert answer.status_code == 401
    plain = world.gates.ask(method, path, world.token, **more)
    answers = world.gates.each(method, path, world.token, headers={names.HEADER_HOP: "1"}, **more)
    assert len(answers) == 2
    [refused] = [one for one in answers if one.status_code == 503]
    [served] = [one for one in answers if one.status_code != 503]
    detail = "no replica is the allocator just now; repeat the call with the same key"
    assert said(refused) == Said(503, "unreachable", detail)
    assert (served.status_code, served.content) == (plain.status_code, plain.content)


def test_what_a_hand_over_carries_is_the_callers_own(world: World) -> None:
    """A key with bytes of a header in it stays a key."""
    own = "/v1/requests"
    headers = {"Idempotency-Key": "a b; sandman-hop: 1"}
    assert {
        one.status_code for one in world.gates.each("DELETE", own, world.token, headers=headers)
    } == {204}


# --- what two read in two ways ------------------------------------------------------------------

SMUGGLED = b"0\r\n\r\nGET /v1/sandboxes HTTP/1.1\r\nHost: x\r\n\r\n"
DOUBTFUL: dict[str, tuple[list[str], bytes]] = {
    "two lengths": (["Content-Length: 0", "Content-Length: 44"], SMUGGLED),
    "a length with a sign": (["Content-Length: +5"], b"12345"),
    "a negative length": (["Content-Length: -1"], b""),
    "a coding that is none": (["Transfer-Encoding: xchunked"], SMUGGLED),
    "a coding twice": (["Transfer-Encoding: chunked", "Transfer-Encoding: identity"], SMUGGLED),
    "a coding with something after it": (["Transfer-Encoding: chunked;x"], SMUGGLED),
    "a length beside chunks": (["Content-Length: 3", "Transfer-Encoding: chunked"], b"5\r\n12345\r\n0\r\n\r\n"),
    "a coding twice the same": (["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"], SMUGGLED),
    "a space before the colon": (["Content-Length : 5"], b"12345"),
    "a header without a name": ([": x"], b""),
    "a nul in a header": (["X-A: a\0b"], b""),
    "a chunk's size that is none": (["Transfer-Encoding: chunked"], b"0x5\r\n12345\r\n0\r\n\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("case", DOUBTFUL)
def test_a_doubtful_request_is_refused_and_nothing_of_it_is_carried_out(
    world: World, case: str
) -> None:
    headers, body = DOUBTFUL[case]
    line = f"PUT /v1/sandboxes/{world.mine.id}/files?path=/tmp/doubtful HTTP/1.1"
    status, answer = spoken(world, line, *headers, body=body)
    assert status == 400, answer
    assert answer.count("HTTP/1.1 ") == 1, answer
    stat = world.mine.call("GET", "/files/stat?path=/tmp/doubtful")
    assert (stat.status_code, stat.json()["reason"]) == (404, "path_not_found")
    world.mine.is_whole()


def test_a_folded_line_is_no_header_of_its_own(world: World) -> None:
    """It belongs to the one before, as HTTP has it: the mark of a hand-over it is not."""
    for _ in range(2):
        status, answer = spoken(world, "GET /v1/reservations HTTP/1.1", "X-A: b\r\n Sandman-Hop: 1")
        assert status == 200, answer


def test_an_absolute_target_leads_nowhere_else(world: World) -> None:
    target = "https://kubernetes.default.svc/api/v1/secrets"
    status, answer = spoken(world, f"GET {target} HTTP/1.1")
    assert status == 404, answer
    status, answer = spoken(world, "CONNECT 10.96.0.1:443 HTTP/1.1")
    assert status == 404, answer


def test_a_new_line_in_a_path_makes_no_header(world: World) -> None:
    path = f"/v1/sandboxes/{world.mine.id}/ports/8000/%0d%0aX-Evil:%20yes"
    answers: list[httpx.Response] = world.gates.each("GET", path, world.token)
    # It goes on to the port as it came, encoded, where nothing listens.
    assert {said(one)[:2] for one in answers} == {(503, "port_closed")}
    assert all("x-evil" not in one.headers for one in answers)
    path = "/v1/sandboxes?run=a%0d%0aX-Evil:%20yes"
    answers = world.gates.each("GET", path, world.token)
    assert {one.status_code for one in answers} == {400}
    assert all("x-evil" not in one.headers for one in answers)
