"""Attempts from outside: a caller with a good key of another tenant, or with none, or with what leaked of a victim's.

Who calls by JWT or as a ServiceAccount is in `test_hostile_proofs`.
"""

from __future__ import annotations

import base64
import json
import socket
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from gateway import tokens
from sandman import names
from tests.cluster import faults, hostile
from tests.cluster.hostile import Box, Gates, Json, Said, said

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from tests.cluster.deployed import Deployed

KEY = "hostile-key"
RUN = "hostile-run"
UNKNOWN = Said(401, "unauthenticated", "the token is not known")
SEND_ONE = Said(401, "unauthenticated", "send Authorization: Bearer <token>")
INVALID = Said(401, "unauthenticated", "the sandbox token is not valid")
OF_ONE = Said(403, "forbidden", "a sandbox's token is good for its commands and files only")


class World(NamedTuple):
    """Who attacks whom."""

    gates: Gates
    victim: Box
    mine: Box
    """A sandbox of the attacker's, of another tenant."""
    second: Box
    """Another one of the victim's."""
    reservation: str
    token: str
    """The attacker's API key."""


@pytest.fixture(scope="module")
def world(sandman: Deployed) -> Iterator[World]:
    made = sandman.installation
    wanted = {"image": sandman.image("python"), "run": RUN}
    with (
        hostile.gates(sandman) as gates,
        hostile.box(gates, made.token, KEY, **wanted) as victim,
        hostile.box(gates, made.token, None, **wanted) as second,
        # The same key and the same request: the victim's is not what comes of it.
        hostile.box(gates, made.other_token, KEY, **wanted) as mine,
    ):
        ahead = {"image": wanted["image"], "count": 1, "for_s": 600}
        answer = gates.ask("POST", "/v1/reservations", made.token, json=ahead)
        assert answer.status_code == 201, answer.text
        reservation = answer.json()["id"]
        yield World(gates, victim, mine, second, reservation, made.other_token)
        gone = gates.ask("DELETE", f"/v1/reservations/{reservation}", made.token)
        assert gone.status_code == 204
    sandman.wait_nothing_leased(60)


def test_the_victims_idempotency_key_is_another_tenants_other_key(world: World) -> None:
    assert world.mine.id not in {world.victim.id, world.second.id}
    gone = world.gates.ask(
        "DELETE", "/v1/requests", world.token, headers={"Idempotency-Key": f"{KEY}-none"}
    )
    assert gone.status_code == 204
    world.victim.is_whole()


# --- another's ids ------------------------------------------------------------------------------

WEBSOCKET = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
WEBSOCKET |= {"sec-websocket-key": base64.b64encode(b"0" * 16).decode()}
COMMAND = {"argv": ["true"]}
AT_ANOTHERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "look": ("GET", "", {}),
    "renew": ("POST", "/renew", {}),
    "run": ("POST", "/exec", {"json": COMMAND}),
    "make a token": ("POST", "/tokens", {"json": {}}),
    "open its network": ("PUT", "/network", {"json": {"network": "open"}}),
    "read a file": ("GET", "/files?path=/etc/passwd", {}),
    "write a file": ("PUT", "/files?path=/etc/passwd", {"content": b"mallory"}),
    "delete a file": ("DELETE", "/files?path=/etc/passwd", {}),
    "take a tree": ("GET", "/archive?path=/etc", {}),
    "put a tree": ("PUT", "/archive?path=/etc", {"content": b""}),
    "info": ("GET", "/info", {}),
    "list processes": ("GET", "/processes", {}),
    "start by its exec id": ("POST", "/processes", {"json": COMMAND | {"exec_id": Box.EXEC_ID, "detached": True}}),
    "look at its exec id": ("GET", f"/processes/{Box.EXEC_ID}", {}),
    "read its output": ("GET", f"/processes/{Box.EXEC_ID}/output", {}),
    "write its input": ("POST", f"/processes/{Box.EXEC_ID}/stdin", {"content": b"x"}),
    "signal it": ("POST", f"/processes/{Box.EXEC_ID}/signal", {"json": {"signal": "KILL"}}),
    "end it": ("DELETE", f"/processes/{Box.EXEC_ID}", {}),
    "sessions": ("GET", "/sessions", {}),
    "open a session": ("POST", "/sessions", {"json": {}}),
    "a port": ("GET", "/ports/8000/", {}),
    "a terminal": ("GET", f"/processes/{Box.EXEC_ID}/terminal", {"headers": WEBSOCKET}),
    "a socket of a port": ("GET", "/ports/8000/ws", {"headers": WEBSOCKET}),
}  # fmt: skip


@pytest.mark.parametrize("case", AT_ANOTHERS)
def test_anothers_id_is_byte_for_byte_one_that_never_was(world: World, case: str) -> None:
    method, tail, more = AT_ANOTHERS[case]
    last = world.victim.id[-1]
    never = world.victim.id[:-1] + ("0" if last != "0" else "1")
    seen = []
    for sandbox in (world.victim.id, never):
        for answer in world.gates.each(
            method, f"/v1/sandboxes/{sandbox}{tail}", world.token, **more
        ):
            assert said(answer) == Said(404, "not_found", f"no sandbox {sandbox}")
            seen.append(alike(answer, sandbox))
    assert [one for one in seen if one != seen[0]] == []
    world.victim.is_whole()


def alike(answer: httpx.Response, name: str) -> tuple[int, dict[str, str], bytes]:
    """An answer without what may tell two apart: the name that was asked for, and the time."""
    headers = {key: value for key, value in answer.headers.items() if key != "date"}
    return answer.status_code, headers, answer.content.replace(name.encode(), b"ID")


def test_anothers_sandbox_is_released_by_nobody(world: World) -> None:
    for answer in world.gates.each("DELETE", f"/v1/sandboxes/{world.victim.id}", world.token):
        assert (answer.status_code, answer.content) == (204, b"")
    world.victim.is_whole()


def test_anothers_reservation_never_was(world: World) -> None:
    seen = []
    for name in (world.reservation, "0" * len(world.reservation)):
        path = f"/v1/reservations/{name}"
        for answer in world.gates.each("GET", path, world.token):
            assert said(answer) == Said(404, "not_found", f"no reservation {name}")
            seen.append(alike(answer, name))
        gone = world.gates.each("DELETE", path, world.token)
        assert {(one.status_code, one.content) for one in gone} == {(204, b"")}
    assert [one for one in seen if one != seen[0]] == []
    own = world.gates.ask("GET", f"/v1/reservations/{world.reservation}", world.victim.tenant_token)
    assert own.status_code == 200


def test_anothers_request_never_was(world: World, sandman: Deployed) -> None:
    """The id of a request with a key stands on the pod."""
    pod = json.loads(sandman.kubectl("get", "pod", world.victim.pod, "-o", "json"))
    request = pod["metadata"]["labels"][names.LABEL_KEY]
    seen = []
    for name in (request, "0" * len(request)):
        for answer in world.gates.each("GET", f"/v1/requests/{name}", world.token):
            seen.append(alike(answer, name))
            assert said(answer)[:2] == (404, "not_found")
        gone = world.gates.each("DELETE", f"/v1/requests/{name}", world.token)
        assert {one.status_code for one in gone} == {204}
    assert [one for one in seen if one != seen[0]] == []
    world.victim.is_whole()


LISTS: dict[str, tuple[str, str, Json]] = {
    "sandboxes of its run": ("GET", f"/v1/sandboxes?run={RUN}", {"sandboxes": ["mine"]}),
    "ended ones of its run": ("GET", f"/v1/sandboxes?state=ended&run={RUN}", {"sandboxes": []}),
    "attachable workloads": ("GET", "/v1/sandboxes?attachable", {"attachable": []}),
    "reservations": ("GET", "/v1/reservations", {"reservations": []}),
    "word for its run": ("POST", f"/v1/runs/{RUN}/heartbeat", {"run": RUN, "sandboxes": 1}),
    "an end of its heartbeats": ("DELETE", f"/v1/runs/{RUN}/heartbeat", {"run": RUN, "sandboxes": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", LISTS)
def test_lists_and_runs_are_ones_own(world: World, case: str) -> None:
    method, path, wanted = LISTS[case]
    for answer in world.gates.each(method, path, world.token):
        assert answer.status_code == 200
        shown = answer.json()
        if wanted.get("sandboxes") == ["mine"]:
            assert [one["id"] for one in shown["sandboxes"]] == [world.mine.id]
        else:
            assert shown == wanted
    world.victim.is_whole()


def test_the_end_of_a_run_is_the_end_of_ones_own(world: World) -> None:
    token = world.token
    path = f"/v1/runs/{RUN}-2"
    with hostile.box(world.gates, world.victim.tenant_token, image=world.victim.made["image"], run=f"{RUN}-2") as box:  # fmt: skip
        for answer in world.gates.each("DELETE", path, token):
            assert (answer.status_code, answer.json()) == (200, {"released": 0})
        box.is_whole()


def test_metrics_and_health_name_nobody(world: World) -> None:
    for path in ("/metrics", "/healthz", "/readyz"):
        for answer in world.gates.each("GET", path):
            assert answer.status_code == 200
            for secret in (
                world.victim.id,
                world.victim.pod,
                RUN,
                world.reservation,
                '"demo"',
                '"other"',
            ):
                assert secret not in answer.text, path


@pytest.mark.parametrize("port", [9464, 8080, 10250, names.DAEMON_PORT])
def test_gateways_have_one_port(world: World, port: int) -> None:
    for address in world.gates.addresses:
        with pytest.raises((ConnectionRefusedError, TimeoutError)):
            socket.create_connection((address, port), 2).close()


# --- tokens of one sandbox ----------------------------------------------------------------------


def test_a_sandboxs_token_is_for_no_other(world: World) -> None:
    for other in (world.second, world.mine):
        for tail in ("", "/info"):
            answers = world.gates.each("GET", f"/v1/sandboxes/{other.id}{tail}", world.victim.token)
            wanted = Said(404, "not_found", f"no sandbox {other.id}")
            assert {said(one) for one in answers} == {wanted}
        path = f"/v1/sandboxes/{other.id}/exec"
        answer = world.gates.ask("POST", path, world.victim.token, json=COMMAND)
        assert said(answer) == Said(404, "not_found", f"no sandbox {other.id}")


MANAGING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "allocate": ("POST", "/v1/sandboxes", {"json": {}}),
    "list": ("GET", "/v1/sandboxes", {}),
    "list workloads": ("GET", "/v1/sandboxes?attachable", {}),
    "attach": ("POST", "/v1/sandboxes/attach", {"json": {"namespace": "default", "pod": "x"}}),
    "release": ("DELETE", "/v1/sandboxes/{id}", {}),
    "make tokens": ("POST", "/v1/sandboxes/{id}/tokens", {"json": {}}),
    "open its network": ("PUT", "/v1/sandboxes/{id}/network", {"json": {"network": "open"}}),
    "networks": ("GET", "/v1/networks", {}),
    "pools": ("GET", "/v1/pools", {}),
    "overview": ("GET", "/v1/overview", {}),
    "reserve": ("POST", "/v1/reservations", {"json": {"count": 1, "for_s": 60}}),
    "reservations": ("GET", "/v1/reservations", {}),
    "end a run": ("DELETE", f"/v1/runs/{RUN}", {}),
    "keep a run": ("POST", f"/v1/runs/{RUN}/heartbeat", {}),
    "give a request up": ("DELETE", "/v1/requests", {"headers": {"Idempotency-Key": KEY}}),
}  # fmt: skip


@pytest.mark.parametrize("case", MANAGING)
def test_a_sandboxs_token_manages_nothing(world: World, case: str) -> None:
    method, path, more = MANAGING[case]
    answers = world.gates.each(method, path.format(id=world.victim.id), world.victim.token, **more)
    assert {said(one) for one in answers} == {OF_ONE}
    world.victim.is_whole()


NARROW: dict[str, tuple[list[str], str, str, str]] = {
    "files:read writes": (["files:read"], "PUT", "/files?path=/tmp/x", "files"),
    "files runs": (["files"], "POST", "/exec", "exec"),
    "ports:8080 at 8081": (["ports:8080"], "GET", "/ports/8081/", "ports:8081"),
    "exec reads": (["exec"], "GET", "/files?path=/etc/passwd", "files:read"),
    "look renews": (["look"], "POST", "/renew", "renew"),
}


@pytest.mark.parametrize("case", NARROW)
def test_a_narrow_token_is_good_for_what_it_names(world: World, case: str) -> None:
    may, method, tail, need = NARROW[case]
    narrow = world.victim.call("POST", "/tokens", json={"may": may, "ttl_s": 60}).json()["token"]
    more = {"content": b"x"} if method == "PUT" else {}
    answers = world.gates.each(method, f"/v1/sandboxes/{world.victim.id}{tail}", narrow, **more)
    detail = f"this token is good for {', '.join(may)} of its sandbox, not for {need}"
    assert {said(one) for one in answers} == {Said(403, "forbidden", detail)}


def claims_of(token: str) -> list[Any]:
    body = token.split("_", 2)[2].rpartition(".")[0]
    claims: list[Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


def written(token: str, key_id: str | None = None, mac: str | None = None, **changes: Any) -> str:
    """The token with other claims, or of another key, under the signature that it has."""
    _, its_key, rest = token.split("_", 2)
    its_mac = rest.rpartition(".")[2]
    claims = tokens.SandboxClaims(*claims_of(token))._replace(**changes)
    body = base64.urlsafe_b64encode(json.dumps(list(claims)).encode()).rstrip(b"=").decode()
    return f"sbt_{key_id or its_key}_{body}.{its_mac if mac is None else mac}"


FORGERIES = {
    "widened": lambda narrow, _: written(narrow, may=()),
    "of another tenant": lambda narrow, _: written(narrow, tenant="other"),
    "of another sandbox": lambda narrow, world: written(narrow, sandbox=world.second.id),
    "of another boot": lambda narrow, _: written(narrow, boot_id="0" * 32),
    "for ever": lambda narrow, _: written(narrow, expires_at=1e12),
    "of another maker": lambda narrow, _: written(narrow, maker="other"),
    "of another key": lambda narrow, _: written(narrow, key_id="0"),
    "of the key `current`": lambda narrow, _: written(narrow, key_id="current"),
    "without a signature": lambda narrow, _: written(narrow, mac=""),
    "half a signature": lambda narrow, _: narrow[:-20],
    "signed by myself": lambda narrow, _: signed(narrow, b"0" * 32),
    "claims that are none": lambda narrow, _: "sbt_" + narrow.split("_")[1] + "_e30.AAAA",
}


def signed(token: str, key: bytes, **changes: Any) -> str:
    key_id = token.split("_", 2)[1]
    claims = tokens.SandboxClaims(*claims_of(token))._replace(**changes)
    return tokens.make_sandbox_token(claims, {key_id: key}, key_id)


@pytest.mark.parametrize("case", FORGERIES)
def test_a_token_that_was_tampered_with_is_none(world: World, case: str) -> None:
    narrow = world.victim.call("POST", "/tokens", json={"may": ["look"], "ttl_s": 60}).json()[
        "token"
    ]
    forged = FORGERIES[case](narrow, world)
    answers = world.gates.each("GET", f"/v1/sandboxes/{world.victim.id}/info", forged)
    assert {said(one) for one in answers} == {INVALID}


def test_a_token_ends_when_it_says(world: World) -> None:
    path = f"/v1/sandboxes/{world.victim.id}/info"
    short = world.victim.call("POST", "/tokens", json={"ttl_s": 2}).json()["token"]
    assert {one.status_code for one in world.gates.each("GET", path, short)} == {200}
    time.sleep(2.1)
    wanted = Said(401, "unauthenticated", "the sandbox token has expired")
    assert {said(one) for one in world.gates.each("GET", path, short)} == {wanted}


def test_a_token_of_another_boot_is_over_even_when_it_is_signed(
    world: World, sandman: Deployed
) -> None:
    key_id = world.victim.token.split("_", 2)[1]
    output = f"jsonpath={{.data.sandbox-{key_id}}}"
    key = base64.b64decode(faults.system(sandman, "get", "secret", names.KEYS_SECRET, "-o", output))
    before = "0" * len(world.victim.made["boot_id"])
    token = signed(world.victim.token, key, boot_id=before)
    path = f"/v1/sandboxes/{world.victim.id}/exec"
    answers = world.gates.each("POST", path, token, json=COMMAND)
    detail = f"the sandbox's daemon was started anew: the call is for boot {before}"
    assert {said(one) for one in answers} == {Said(410, "died", detail)}
    world.victim.is_whole()


def test_a_token_is_worth_nothing_after_release(world: World) -> None:
    token = world.victim.tenant_token
    with hostile.box(world.gates, token, image=world.victim.made["image"]) as box:
        box.call("DELETE", "")
        path = f"/v1/sandboxes/{box.id}/info"
        world.gates.soon("both know of the release", 410, box.token, path)
        answers = world.gates.each("GET", path, box.token)
        assert {said(one) for one in answers} == {Said(410, "released", "it was released")}
