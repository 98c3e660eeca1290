"""Callers of every kind against a gateway as `python -m gateway` puts it together: an API server over real sockets, an
issuer over real TLS, a real daemon. And every key of it changed while sandboxes live."""

from __future__ import annotations

import base64
import contextlib
import json
import time

import pytest
import trio

from gateway import keysets, tokens
from sandman import apikeys, names, wire
from sandman.service import keyring
from tests.fakes import jwks_site
from tests.fakes.issuers import Signer, entry, keyset, said_by_default
from tests.fakes.objects import placeholder, secret
from tests.flow.test_gateway import frames_of
from tests.flow.test_whole import KEY, Bed, answers, bed, encoded, fast_clock, has_free, until

__all__ = ["bed", "fast_clock"]
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")

CLUSTER = Signer("RS256", "cluster", "cluster")
TRAINER = "system:serviceaccount:ml:trainer"
ACCOUNTS = {"account.t": {"namespace": "ml", "name": "trainer", "tenant": "ml", "concurrent": 5}}


def config_map(**entries) -> dict:
    meta = {"name": names.CALLERS_CONFIG, "namespace": names.SYSTEM_NAMESPACE}
    return {"metadata": meta, "data": {name: json.dumps(one) for name, one in entries.items()}}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def account_token(**changes) -> str:
    return CLUSTER.token(said_by_default(time.time(), iss="https://cluster", sub=TRAINER) | changes)


def reviewer(bed: Bed, user: str = TRAINER) -> list[dict]:
    """What the API server was asked, from now on."""
    asked: list[dict] = []

    def review(spec) -> dict:
        asked.append(spec)
        known = spec["token"].startswith("eyJ") and spec["audiences"] == ["sandman"]
        if not known:
            return {"authenticated": False}
        return {"authenticated": True, "audiences": ["sandman"], "user": {"username": user}}

    bed.server.reviewed = review
    return asked


async def test_a_serviceaccount_allocates_and_lists_and_ends_with_its_rule(bed, fast_clock):
    bed.give_keys()
    bed.server.put("configmaps", config_map(**ACCOUNTS))
    asked = reviewer(bed)
    token = account_token()
    async with bed.server.links(1) as [link], bed.replica(link) as one:
        await has_free(one)
        made = await answers(one.client, bearer(token))
        assert made.status_code == 201, made.text
        listed = await one.client.get("/v1/sandboxes", headers=bearer(token))
        assert [box["id"] for box in listed.json()["sandboxes"]] == [made.json()["id"]]
        assert (await one.client.get("/v1/sandboxes")).json() == {"sandboxes": []}  # acme's key
        assert asked == [{"token": token, "audiences": ["sandman"]}]
        # For the API server, as every pod has one: nobody is asked about it.
        usual = account_token(aud="https://kubernetes.default.svc.cluster.local")
        got = await one.client.get("/v1/sandboxes", headers=bearer(usual))
        assert (got.status_code, got.headers["www-authenticate"]) == (401, "Bearer")
        assert len(asked) == 1

        path = f"/v1/sandboxes/{made.json()['id']}/exec"
        call = one.client.stream(
            "POST", path, json={"shell": "echo begun; sleep 60"},
            headers={**bearer(token), "accept": names.MEDIA_FRAMES},
        )  # fmt: skip
        async with call as begun:
            bed.server.put("configmaps", config_map())
            with trio.fail_after(20):
                frames = await frames_of(begun)
        assert frames[-1][0] == wire.ERROR
        assert json.loads(frames[-1][1])["reason"] == "unauthenticated"
        for headers in (bearer(token), bearer(made.json()["token"])):
            over = await one.client.get(path.removesuffix("/exec"), headers=headers)
            assert over.status_code == 401
        text = (await one.client.get("/metrics")).text
        assert 'sandman_authentications_total{kind="jwt",outcome="unauthenticated"}' in text


async def test_an_issuer_changes_its_keys_and_callers_hear_nothing_of_it(
    bed, fast_clock, monkeypatch
):
    monkeypatch.setattr(keysets, "LEAST_S", 0.5)
    bed.give_keys()
    old, new = Signer("ES256", "old"), Signer("EdDSA", "new")
    async with jwks_site.serving() as site, bed.server.links(1) as [link]:
        site.document = keyset(old)
        bed.server.put(
            "configmaps", config_map(**{"issuer.ci": entry(jwks_url=site.url, ca=site.ca)})
        )
        async with bed.replica(link) as one:
            await has_free(one)
            said = said_by_default(time.time())

            async def status(signer: Signer, **changes) -> int:
                headers = bearer(signer.token(said | changes))
                return (await one.client.get("/v1/sandboxes", headers=headers)).status_code

            made = await answers(one.client, bearer(old.token(said)))
            assert made.status_code == 201, made.text
            assert await status(new) in {401, 503}
            site.document = keyset(old, new)
            await trio.sleep(1.0)
            for number in range(5):
                assert await status(new, jti=str(number)) == 200
                assert await status(old, jti=str(number)) == 200
            assert await status(old, aud="other") == 401
            assert await status(old, sub="other") == 403
            assert await status(old, exp=time.time() - 60) == 401


async def test_a_key_taken_out_of_the_secret_ends_what_it_has_open(bed, fast_clock):
    bed.give_keys()
    async with bed.server.links(1) as [link], bed.replica(link) as one:
        await has_free(one)
        made = await answers(one.client)
        call = one.client.stream(
            "POST", f"/v1/sandboxes/{made.json()['id']}/exec",
            json={"shell": "echo begun; sleep 60"}, headers={"accept": names.MEDIA_FRAMES},
        )  # fmt: skip
        async with call as begun:
            bed.server.put("secrets", secret(names.API_KEYS_SECRET))
            with trio.fail_after(20):
                frames = await frames_of(begun)
        assert frames[-1][0] == wire.ERROR
        assert (await one.client.get("/v1/sandboxes")).status_code == 401
        # Both ends of the command know of it: it does not run on unseen.
        await until(lambda: len(one.gateway.calls) == 0)


async def test_a_key_is_rotated_and_its_reservations_and_tokens_live_on(bed, fast_clock):
    bed.give_keys()
    async with bed.server.links(1) as [link], bed.replica(link) as one:
        await has_free(one)
        made = await answers(one.client)
        new = tokens.make_api_key("acme")
        raw = json.loads(tokens.api_key_entry(new, "acme"))
        raw["previous"] = {
            "sha256": apikeys.digest(bed.token), "until": apikeys.moment(time.time() + 3600),
        }  # fmt: skip
        both = encoded({"acme": json.dumps(raw).encode()})
        bed.server.put("secrets", secret(names.API_KEYS_SECRET, **both))
        path = f"/v1/sandboxes/{made.json()['id']}"

        async def works(token: str) -> bool:
            return (await one.client.get(path, headers=bearer(token))).status_code == 200

        await until(lambda: works(new))
        assert await works(bed.token)
        assert await works(made.json()["token"])


async def test_before_keys_and_callers_were_read_nobody_is_refused(bed, fast_clock):
    """A replica that has just begun would tell good callers that they are not known."""
    bed.give_keys()
    async with bed.server.links(1) as [link], bed.replica(link) as one:
        await until(lambda: not one.gateway.not_ready())
        one.gateway.credentials.told = trio.Event()
        assert one.gateway.not_ready() == ["the API keys"]
        got = await one.client.get("/v1/sandboxes")
        assert (got.status_code, got.json()["reason"]) == (503, "unreachable")
        assert "the API keys" in got.json()["detail"]


# --- the signing keys ---


def ring(current: str, *ids: str) -> dict:
    """The Secret with these keys; k1's are those that the placeholders were made with."""
    daemon = {key: KEY if key == "k1" else key.encode() * 16 for key in ids}
    sandbox = {key: key[::-1].encode() * 16 for key in ids}
    return secret(names.KEYS_SECRET, **encoded(keyring.Keyring(current, daemon, sandbox).to_data()))


async def test_signing_keys_are_changed_under_sandboxes_and_placeholders(bed, fast_clock):
    """A placeholder's daemon knows the hash of one token, made with the key of its time: it is claimed and
    used after the rotation by that key, which therefore stays until nothing of its time lives."""
    bed.server.put("secrets", ring("k1", "k1"))
    bed.server.put("pods", placeholder("p2"))
    async with bed.server.links(2) as links, contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(bed.replica(links[0], "gw-1"))
        await has_two(one)
        before = (await answers(one.client)).json()

        async def runs(box: dict) -> int:
            got = await one.client.post(
                f"/v1/sandboxes/{box['id']}/exec",
                json={"argv": ["true"]},
                headers=bearer(box["token"]),
            )
            return got.status_code

        assert before["token"].startswith("sbt_k1_")
        assert await runs(before) == 200
        # First every replica knows the new one, then it is used.
        bed.server.put("secrets", ring("k1", "k1", "k2"))
        await until(lambda: set(one.gateway.credentials.sandbox_keys) == {"k1", "k2"})
        bed.server.put("secrets", ring("k2", "k1", "k2"))
        await until(lambda: one.gateway.credentials.current_key == "k2")
        assert await runs(before) == 200
        # A placeholder of before, claimed after.
        bed.daemon.restart()
        after = (await answers(one.client)).json()
        assert after["token"].startswith("sbt_k2_")
        assert await runs(after) == 200
        # The old one goes: what was made with it is out of reach, and says so.
        bed.server.put("secrets", ring("k2", "k2"))
        await until(lambda: set(one.gateway.credentials.sandbox_keys) == {"k2"})
        assert await runs(before) == 401
        assert await runs(after) == 503


async def has_two(one) -> None:
    await until(lambda: not one.gateway.not_ready())
    await until(lambda: one.gateway.pool._allocation.statistics().free == 2)


def test_the_rings_of_this_file_are_whole():
    data = {name: base64.b64decode(value) for name, value in ring("k1", "k1", "k2")["data"].items()}
    assert keyring.parse(data).current == "k1"
