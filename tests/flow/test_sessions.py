"""Sessions through the real gateway: the calls, and the client. Point 27."""

from __future__ import annotations

import pytest

from sandman import sessions
from sandman.client import Client

pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")


async def test_27_the_calls_about_a_session(bed):
    made = await bed.allocate()
    acme, path = bed.as_("acme"), f"/v1/sandboxes/{made['id']}/sessions"
    post = bed.client.post
    begun = await post(path, json={"name": "one", "rc": False}, headers=acme)
    assert begun.status_code == 200, begun.text
    assert sessions.SessionInfo.from_json(begun.json()).state == "idle"
    ran = await post(f"{path}/one/run", json={"command": "cd /; pwd"}, headers=acme)
    assert ran.json()["output"] == "/\n"
    body = {"command": "cat", "interactive": True, "timeout_s": 0.1}
    left = await post(f"{path}/one/run", params={"wait_s": 20}, json=body, headers=acme)
    assert (left.json()["state"], left.json()["timed_out"]) == ("running", True)
    typed = await post(f"{path}/one/input", json={"data": "x\n", "expect": ["x"]}, headers=acme)
    assert typed.json()["expected"] == "x"
    stopped = await post(f"{path}/one/interrupt", json={}, headers=acme)
    assert (stopped.json()["state"], stopped.json()["exit_code"]) == ("idle", 130)
    listed = await bed.client.get(path, headers=acme)
    assert [one["name"] for one in listed.json()["sessions"]] == ["one"]
    for _ in range(2):
        gone = await bed.client.delete(f"{path}/one", headers=acme)
        assert gone.status_code == 204
    assert (await bed.client.get(f"{path}/one", headers=acme)).status_code == 404


async def test_27_a_session_is_its_tenants_and_its_name_is_a_name(bed):
    made = await bed.allocate()
    path = f"/v1/sandboxes/{made['id']}/sessions"
    zeta, acme = bed.as_("zeta"), bed.as_("acme")
    for name, who in (
        ("one", zeta),
        ("%2e%2e", acme),
        ("a%2Fb", acme),
        ("a%62", acme),
        ("-;", acme),
    ):
        refused = await bed.client.get(f"{path}/{name}", headers=who)
        assert (refused.status_code, refused.json()["reason"]) == (404, "not_found")
        refused = await bed.client.post(f"{path}/{name}/run", json={"command": "x"}, headers=who)
        assert refused.status_code == 404


async def test_27_a_session_by_the_client(bed):
    async with Client(bed.url, bed.credentials.texts["acme"], ca=bed.trust) as client:
        box = await client.create(image="registry.test/task:1")
        async with await box.session(rc=False) as session:
            assert (await session.run("x=1; false")).exit_code == 1
            assert (await session.run("echo $? $x")).output == b"1 1\n"
            result = await session.run("python3 -q", interactive=True, expect=[">>> "])
            assert result.expected == ">>> "
            said = await session.input("print(6*7)\n", expect=[">>> "])
            assert said.output == b"42\n>>> "
            ended = await session.input("exit()\n")
            assert (ended.state, ended.exit_code) == ("idle", 0)
