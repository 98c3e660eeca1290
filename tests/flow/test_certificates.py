"""Certificates through the real gateway, of commands in a real daemon."""

from __future__ import annotations

import contextlib
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import trio

from gateway import certified, certifier
from gateway.model import Ending
from sandman import certificates
from sandman.version import __version__
from tests.fakes.daemons import answer, says
from tests.flow.conftest import KEYS
from tests.flow.test_version_skew import skewed

if TYPE_CHECKING:
    import httpx

    from tests.flow.conftest import Bed


# httpx lets go of what a daemon says that never ends.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")


async def ask(bed: Bed, made: dict, *exec_ids: str, tenant: str = "acme", **more) -> httpx.Response:
    path = f"/v1/sandboxes/{made['id']}/certificate"
    body = {"exec_ids": list(exec_ids)} if exec_ids else None
    return await bed.client.post(path, json=body, headers=bed.as_(tenant), **more)


async def keys_of(bed: Bed) -> dict[str, bytes]:
    """As somebody gets them who has no token."""
    told = await bed.client.get("/v1/certificate-keys")
    assert told.status_code == 200, told.text
    return certificates.read_keys(told.json())


async def certified_by(bed: Bed, made: dict, *exec_ids: str) -> certificates.Certificate:
    told = await ask(bed, made, *exec_ids)
    assert told.status_code == 200, told.text
    return certificates.verify(told.json(), await keys_of(bed))


async def execute(bed: Bed, made: dict, name: str, shell: str, **more) -> None:
    body = {"shell": shell, "exec_id": name, **more}
    path = f"/v1/sandboxes/{made['id']}/exec"
    told = await bed.client.post(path, json=body, headers=bed.as_("acme"))
    assert told.status_code == 200, told.text


async def test_a_certificate_says_what_ran_and_what_each_witness_knows(bed):
    made = await bed.allocate(purpose="eval", labels={"task": "t1"}, network_wait=False)
    await execute(bed, made, "tests", "seq 1 100000; exit 7", output_limit=100)
    found = await certified_by(bed, made, "tests", "never")
    told: Any = found.document
    assert (found.sandbox, told["format"]) == (made["id"], 1)
    assert told["gateway"] == {"version": __version__, "replica": "gateway-1"}
    assert (told["asked"]["purpose"], told["asked"]["labels"]) == ("eval", {"task": "t1"})
    api, inside = told["api"], told["inside"]
    assert (api["purpose"], api["tenant"], api["tier"]) == ("eval", "acme", made["tier"])
    assert api["node"]["kernel"]
    assert api["neighbours"]["pods"] >= 0
    assert api["times"]["pod_created_at"]
    assert "may have changed" in inside["note"]
    assert inside["boot_id"] == made["boot_id"]
    assert abs(inside["clock_offset_s"]) < 5
    assert "clock" not in inside
    first, second = found.commands
    whole = b"".join(b"%d\n" % n for n in range(1, 100_001))
    assert (first["exit_code"], first["stdout_sha256"]) == (7, hashlib.sha256(whole).hexdigest())
    assert second["state"] == "unknown"
    assert told["thresholds"]["throttled_share"] == 0.01
    # Nobody sets anything aside for a process of this machine.
    assert {"qos", "commands", "neighbours"} <= {one.code for one in found.reasons}
    assert found.verdict == "uncontrolled"


async def test_it_is_the_tenants_own_business(bed):
    made = await bed.allocate()
    assert (await ask(bed, made, tenant="zeta")).status_code == 404
    token = {"authorization": f"Bearer {made['token']}"}
    path = f"/v1/sandboxes/{made['id']}"
    own = await bed.client.post(f"{path}/certificate", headers=token)
    assert own.status_code == 200
    for may, status in (("look", 403), ("exec", 200)):
        narrow = await bed.client.post(
            f"{path}/tokens", json={"may": [may]}, headers=bed.as_("acme")
        )
        bearer = {"authorization": f"Bearer {narrow.json()['token']}"}
        got = await bed.client.post(f"{path}/certificate", headers=bearer)
        assert got.status_code == status, may


@pytest.mark.parametrize(
    "body", [{"exec_ids": ["e"] * 65}, {"exec_ids": ["a b"]}, {"exec_ids": [1]}, {"more": 1}]
)
async def test_what_makes_no_sense_is_refused(bed, body):
    made = await bed.allocate()
    path = f"/v1/sandboxes/{made['id']}/certificate"
    told = await bed.client.post(path, json=body, headers=bed.as_("acme"))
    assert (told.status_code, told.json()["reason"]) == (400, "bad_request")


async def test_a_sandbox_that_has_ended_has_none_and_the_reason_is_told(bed):
    made = await bed.allocate()
    [pod] = bed.cluster.leased()
    bed.cluster.end(pod.uid, Ending("oom", "killed for want of memory"))
    with trio.fail_after(10):
        while (told := await ask(bed, made)).status_code == 200:
            await trio.sleep(0.05)
    assert (told.status_code, told.json()["reason"]) == (410, "oom")


EVIL = {"inside": {"boot_id": "b2"}, "commands": []}


@pytest.mark.parametrize("said", [b"no json", b"{}", json.dumps(EVIL).encode(), b"x" * 200_000])
async def test_what_answers_nonsense_is_not_certified(odd_bed, said):
    made = await odd_bed.allocate()
    odd_bed.daemon.script = says(answer(said))
    told = await ask(odd_bed, made)
    assert (told.status_code, told.json()["reason"]) == (410, "died")


async def test_without_keys_yet_nobody_is_told_that_there_are_none(bed):
    bed.roster.synced = trio.Event()
    told = await bed.client.get("/v1/certificate-keys")
    assert (told.status_code, told.json()["reason"]) == (503, "unreachable")


async def test_after_a_rotation_old_ones_are_verified_and_new_ones_have_another_key(bed):
    made = await bed.allocate()
    old = await ask(bed, made)
    bed.credentials.sandbox_keys = {**KEYS, "k2": b"n" * 32}
    bed.credentials.current_key = "k2"
    both = await keys_of(bed)
    assert len(both) == 2
    assert certificates.verify(old.json(), both).sandbox == made["id"]
    new = await certified_by(bed, made)
    assert new.signatures[0][0] == certificates.key_id(
        certificates.public_key(certified.seed_of(b"n" * 32))
    )
    assert new.signatures[0][0] != old.json()["signatures"][0]["keyid"]


async def test_a_daemon_that_is_older_than_certificates_is_named():
    async with skewed("0.0.7") as bed:
        made = await bed.allocate()
        told = await ask(bed, made)
        assert (told.status_code, told.json()["reason"]) == (503, "version_skew")


async def test_who_goes_away_leaves_no_place_in_the_line(bed):
    made = await bed.allocate(network_wait=False)
    path = f"/v1/sandboxes/{made['id']}/certificate"
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(certifier.AT_ONCE_OF_ONE):
            await stack.enter_async_context(bed.certifier.turns.of("acme"))
        async with bed.raw() as stream:
            await stream.send_all(bed.head("POST", path, b"Content-Length: 0"))
            share = bed.certifier.turns._shares["acme"]
            with trio.fail_after(certifier.TURN_S / 2):
                while share.users == certifier.AT_ONCE_OF_ONE:
                    await trio.sleep(0.01)
        with trio.fail_after(certifier.TURN_S / 2):
            while share.users > certifier.AT_ONCE_OF_ONE:
                await trio.sleep(0.01)
    assert (await ask(bed, made)).status_code == 200


async def test_whose_turn_does_not_come_is_told_to_ask_again(bed, monkeypatch):
    monkeypatch.setattr(certifier, "TURN_S", 0.05)
    made = await bed.allocate(network_wait=False)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(certifier.AT_ONCE_OF_ONE):
            await stack.enter_async_context(bed.certifier.turns.of("acme"))
        told = await ask(bed, made)
    assert (told.status_code, told.json()["reason"], told.json()["retryable"]) == (
        429,
        "capacity",
        True,
    )
    assert told.headers["retry-after"] == "2"
