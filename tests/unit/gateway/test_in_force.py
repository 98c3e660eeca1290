"""What a call began with, while it goes on: keys that are rotated, revoked or end, and the sandbox tokens made for them."""

from __future__ import annotations

import json

import pytest
import trio

from gateway import jose, tokens
from sandman import apikeys
from sandman.errors import UnauthenticatedError
from tests.fakes.issuers import NOW
from tests.unit.gateway.test_authentication import SIGNER, Bed, refused


@pytest.fixture
async def bed() -> Bed:
    return Bed()


async def test_what_a_call_began_with_is_in_force_while_it_would_be_taken(autojump_clock, bed):
    by_key, by_jwt, by_account = [
        await bed.who(token) for token in (bed.key, SIGNER.token(), bed.account())
    ]
    for principal in (by_key, by_jwt, by_account):
        assert bed.all.is_in_force(principal)
    bed.rules()
    assert not bed.all.is_in_force(by_jwt)
    assert not bed.all.is_in_force(by_account)
    assert bed.all.is_in_force(by_key)
    bed.api_keys = {}
    assert not bed.all.is_in_force(by_key)


async def test_a_rule_for_another_tenant_is_another_rule(autojump_clock, bed):
    by_account = await bed.who(bed.account())
    bed.rules(**{"account.t": {"namespace": "ml", "name": "trainer", "tenant": "other"}})
    assert not bed.all.is_in_force(by_account)


def entry_of(token: str, tenant: str = "acme", **more) -> dict[str, bytes]:
    raw = json.loads(tokens.api_key_entry(token, tenant)) | more
    return {"ci": json.dumps(raw).encode()}


async def test_a_key_that_was_rotated_is_good_for_a_while_yet(autojump_clock, bed):
    before = await bed.who(bed.key)
    new = tokens.make_api_key("ci")
    until = apikeys.moment(bed.now() + 60)
    old = {"sha256": apikeys.digest(bed.key), "until": until}
    bed.api_keys, bad = tokens.parse_api_keys(entry_of(new, previous=old))
    assert bad == []
    assert bed.all.is_in_force(before)
    for token in (bed.key, new):
        assert (await bed.who(token)).key_id == "ci"
    await trio.sleep(61)
    assert not bed.all.is_in_force(before)
    assert isinstance(await refused(bed, bed.key), UnauthenticatedError)
    assert (await bed.who(new)).tenant == "acme"


async def test_a_key_has_an_end(autojump_clock, bed):
    bed.api_keys, _ = tokens.parse_api_keys(entry_of(bed.key, expires_at=apikeys.moment(NOW + 60)))
    before = await bed.who(bed.key)
    assert bed.all.is_in_force(before)
    await trio.sleep(60)
    assert not bed.all.is_in_force(before)
    assert "expired" in (await refused(bed, bed.key)).detail
    # Who has not the secret does not hear of it.
    assert "expired" not in (await refused(bed, "smk_ci_x")).detail


@pytest.mark.parametrize(
    "more",
    [
        {"expires_at": "tomorrow"},
        {"expires_at": "2027-01-01T00:00:00"},
        {"expires_at": 1},
        {"previous": {"sha256": "00", "until": "2027-01-01T00:00:00Z"}},
        {"previous": {"sha256": "0" * 64}},
        {"previous": []},
        {"previous": {"sha256": 7, "until": "2027-01-01T00:00:00Z"}},
    ],
)
async def test_an_end_that_cannot_be_read_is_a_bad_entry(autojump_clock, bed, more):
    assert tokens.parse_api_keys(entry_of(bed.key, **more)) == ({}, ["ci"])


# --- tokens of sandboxes ---


def sandbox_token(bed: Bed, maker: str = "ci", **changes) -> str:
    claims = tokens.SandboxClaims("a-1", "boot", "acme", bed.now() + 60, maker)
    return tokens.make_sandbox_token(claims._replace(**changes), bed.sandbox_keys, bed.current_key)


async def test_a_sandboxes_token_ends_with_the_key_that_it_was_made_for(autojump_clock, bed):
    token = sandbox_token(bed)
    before = await bed.who(token)
    assert (before.sandbox, before.tenant, before.may) == ("a-1", "acme", ())
    bed.api_keys = {}
    assert not bed.all.is_in_force(before)
    assert "revoked" in (await refused(bed, token)).detail


async def test_a_sandboxes_token_is_no_other_tenants_when_its_key_is(autojump_clock, bed):
    token = sandbox_token(bed)
    bed.api_keys, _ = tokens.parse_api_keys(entry_of(bed.key, "zeta"))
    await refused(bed, token)


@pytest.mark.parametrize("maker", ["issuer.ci.ci", "account.t"])
async def test_a_sandboxes_token_ends_with_the_rule_that_it_was_made_for(
    autojump_clock, bed, maker
):
    tenant = bed.callers.rules[maker].tenant
    token = sandbox_token(bed, maker, tenant=tenant)
    assert (await bed.who(token)).tenant == tenant
    bed.rules()
    await refused(bed, token)


async def test_a_token_of_an_earlier_version_is_of_no_key(autojump_clock, bed):
    token = sandbox_token(bed, "")
    assert len(jose.json.loads(tokens._decode(token.split("_")[2].split(".")[0]))) == 4
    bed.api_keys = {}
    assert bed.all.is_in_force(await bed.who(token))


async def test_tokens_of_both_signing_keys_are_taken_until_one_is_gone(autojump_clock, bed):
    old = sandbox_token(bed)
    by_old = await bed.who(old)
    bed.current_key = "k2"
    new = sandbox_token(bed)
    assert (old.split("_")[1], new.split("_")[1]) == ("k1", "k2")
    assert (await bed.who(new)).sandbox == (await bed.who(old)).sandbox == "a-1"
    bed.sandbox_keys = {"k2": b"2" * 32}
    assert not bed.all.is_in_force(by_old)
    await refused(bed, old)
    assert (await bed.who(new)).sandbox == "a-1"


async def test_a_token_ends_for_a_call_that_goes_on_too(autojump_clock, bed):
    before = await bed.who(sandbox_token(bed, may=("exec",)))
    assert before.may == ("exec",)
    await trio.sleep(60)
    assert not bed.all.is_in_force(before)
