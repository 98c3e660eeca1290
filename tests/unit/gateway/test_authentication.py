"""Who calls, whatever his token is; what is kept of it, and who is made to wait."""

from __future__ import annotations

import json

import pytest
import trio

from gateway import authentication, callers, tokens, verdicts
from gateway.authentication import Authentication
from gateway.failures import BURST
from gateway.keysets import KeySets
from gateway.model import Identity
from sandman.errors import (
    ForbiddenError,
    SandmanError,
    ThrottledError,
    UnauthenticatedError,
    UnreachableError,
)
from tests.fakes.issuers import AUDIENCE, ISSUER, NOW, Signer, entry, hs256, keyset, said_by_default

SIGNER = Signer("RS256")
CLUSTER = Signer("RS256", "cluster", "cluster")
TRAINER = "system:serviceaccount:ml:trainer"
GOOD = {"authenticated": True, "audiences": [AUDIENCE], "user": {"username": TRAINER}}
HERE = "192.0.2.1"
ELSEWHERE = "192.0.2.2"


class Bed:
    """An authentication, its keys and rules, and an API server that takes a second for each review."""

    def __init__(self) -> None:
        self.key = tokens.make_api_key("ci")
        self.api_keys, _ = tokens.parse_api_keys({"ci": tokens.api_key_entry(self.key, "acme")})
        self.sandbox_keys = {"k1": b"1" * 32, "k2": b"2" * 32}
        self.current_key = "k1"
        self.callers = callers.NOBODY
        self.rules(
            **{
                "account.t": {"namespace": "ml", "name": "trainer", "tenant": "ml"},
                "issuer.ci": entry(keyset(SIGNER)),
            }
        )
        self.status: dict | SandmanError = GOOD
        self.asked: list[str] = []
        self.begun = trio.current_time()
        self.all = Authentication(
            self, self, KeySets(), audience=AUDIENCE, verdict_s=30.0, wall=self.now
        )

    def rules(self, **entries) -> None:
        self.callers, bad = callers.parse({k: json.dumps(v) for k, v in entries.items()})
        assert bad == []

    def now(self) -> float:
        return NOW + trio.current_time() - self.begun

    async def ask(self, token: str) -> dict:
        self.asked.append(token)
        await trio.sleep(1)
        if isinstance(self.status, SandmanError):
            raise self.status
        return self.status

    def account(self, **changes) -> str:
        said = said_by_default(self.now(), iss="https://cluster", sub=TRAINER)
        return CLUSTER.token(said | changes)

    async def who(self, token: str, address: str = HERE):
        return await self.all.principal(f"Bearer {token}", address)


@pytest.fixture
async def bed() -> Bed:
    return Bed()


async def refused(bed: Bed, token: str, address: str = HERE) -> SandmanError:
    with pytest.raises(SandmanError) as caught:
        await bed.who(token, address)
    return caught.value


# --- whose tokens ---


async def test_each_kind_of_token_has_its_principal(autojump_clock, bed):
    assert (await bed.who(bed.key)).tenant == "acme"
    assert (await bed.who(SIGNER.token())).tenant == "acme"
    found = await bed.who(bed.account())
    assert (found.tenant, found.key_id, found.identity) == ("ml", "account.t", Identity(TRAINER))
    assert bed.all.counts == {("key", "ok"): 1, ("jwt", "ok"): 2}
    for principal in (found, await bed.who(bed.key)):
        assert bed.all.is_in_force(principal)


async def test_a_token_for_another_audience_never_reaches_the_api_server(autojump_clock, bed):
    """The usual token of a pod is for the API server: whoever it was sent to could send it on to here."""
    for aud in ("https://kubernetes.default.svc", ["x"], None, {"sandman": 1}):
        assert isinstance(await refused(bed, bed.account(aud=aud)), UnauthenticatedError)
    assert bed.asked == []


@pytest.mark.parametrize(
    "status",
    [
        {"authenticated": False},
        {**GOOD, "audiences": ["https://kubernetes.default.svc"]},
        {**GOOD, "audiences": None},
        {},
    ],
)
async def test_what_the_api_server_does_not_vouch_for_is_nobodys(autojump_clock, bed, status):
    bed.status = status
    assert isinstance(await refused(bed, bed.account()), UnauthenticatedError)


async def test_an_account_without_a_rule_may_nothing(autojump_clock, bed):
    bed.status = GOOD | {"user": {"username": "system:serviceaccount:ml:other"}}
    assert isinstance(await refused(bed, bed.account()), ForbiddenError)
    bed.rules(**{"issuer.ci": entry(keyset(SIGNER))})
    bed.all.forget()
    assert isinstance(await refused(bed, bed.account()), UnauthenticatedError)
    assert len(bed.asked) == 1  # nobody is mapped: nothing to ask


@pytest.mark.parametrize(
    "token",
    [
        hs256(SIGNER.pem, said_by_default(), kid="k1"),
        hs256(json.dumps(SIGNER.jwk).encode(), said_by_default(), kid="k1"),
        Signer("RS256", "k1", "evil").token(),
        Signer("ES256", "k1").token(),
        SIGNER.token(said_by_default(iss="https://evil")),
        SIGNER.token(said_by_default(iss=None)),
        SIGNER.token(said_by_default(iss=[ISSUER])),
        SIGNER.token(said_by_default(aud="other")),
        SIGNER.token(said_by_default(exp=NOW - 3600)),
        SIGNER.token(said_by_default(nbf=NOW + 3600)),
        SIGNER.token(f'{{"iss": "{ISSUER}", "iss": "x", "aud": "sandman", "exp": 9e9}}'),
        SIGNER.token(kid="k9"),
        SIGNER.token(crit=["x"]),
        SIGNER.token()[:-4] + "AAAA",
        "eyJhbGciOiJub25lIn0." + SIGNER.token().split(".")[1] + ".",
        "eyJ.." + "A" * 100,
        "eyJ..",
        "eyJ" + "A" * 9000 + "..",
    ],
)
async def test_a_token_that_is_not_its_issuers_is_nobodys(autojump_clock, bed, token):
    error = await refused(bed, token)
    assert isinstance(error, UnauthenticatedError)
    assert token[-20:] not in error.detail
    assert bed.asked == []


async def test_an_issuer_is_taken_with_its_algorithms_alone(autojump_clock, bed):
    bed.rules(**{"issuer.ci": entry(keyset(SIGNER), algorithms=["ES256"])})
    assert "RS256" in (await refused(bed, SIGNER.token())).detail


async def test_a_serviceaccount_of_an_issuer_is_judged_as_its_token(autojump_clock, bed):
    """Who has the cluster's own issuer in the ConfigMap needs no TokenReview."""
    rule = {"claims": {"sub": TRAINER}, "tenant": "own"}
    bed.rules(**{"issuer.c": entry(keyset(CLUSTER), issuer="https://cluster", callers={"t": rule})})
    assert (await bed.who(bed.account())).tenant == "own"
    assert bed.asked == []


# --- what is kept ---


async def test_a_verdict_is_kept_for_a_while_and_asked_for_once_by_all(autojump_clock, bed):
    token = bed.account()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(bed.who, token)
    assert len(bed.asked) == 1
    await trio.sleep(28)
    await bed.who(token)
    assert len(bed.asked) == 1
    await trio.sleep(3)
    await bed.who(token)
    assert len(bed.asked) == 2
    assert len(bed.all._locks) == 0


async def test_a_verdict_ends_with_its_token(autojump_clock, bed):
    token = bed.account(exp=bed.now() + 2 - callers.LEEWAY_S)
    await bed.who(token)
    await trio.sleep(2)
    assert isinstance(await refused(bed, token), UnauthenticatedError)


async def test_a_refusal_is_kept_for_less_long(autojump_clock, bed):
    bed.status = {"authenticated": False}
    token = bed.account()
    for _ in range(3):
        await refused(bed, token)
    assert len(bed.asked) == 1
    bed.status = GOOD
    await trio.sleep(verdicts.REFUSED_S)
    assert (await bed.who(token)).tenant == "ml"


async def test_other_rules_count_at_once(autojump_clock, bed):
    token = SIGNER.token()
    assert (await bed.who(token)).tenant == "acme"
    bed.rules(
        **{
            "issuer.ci": entry(
                keyset(SIGNER), callers={"x": {"claims": {"sub": "ci"}, "tenant": "z"}}
            )
        }
    )
    bed.all.forget()
    assert (await bed.who(token)).tenant == "z"
    bed.rules()
    bed.all.forget()
    await refused(bed, token)


async def test_a_verdict_by_rules_that_changed_meanwhile_is_not_kept(autojump_clock, bed):
    token = bed.account()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.who, token)
        await trio.sleep(0.5)
        bed.rules(**{"account.t": {"namespace": "ml", "name": "trainer", "tenant": "new"}})
        bed.all.forget()
    assert (await bed.who(token)).tenant == "new"
    assert len(bed.asked) == 2


async def test_an_api_server_that_is_away_is_no_refusal(autojump_clock, bed):
    bed.status = UnreachableError("away", retry_after=1.0)
    token = bed.account()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(refused, bed, token)
    assert len(bed.asked) == 1  # those that waited need not wait one after the other
    bed.status = GOOD
    await trio.sleep(verdicts.AWAY_S)
    assert (await bed.who(token)).tenant == "ml"
    assert bed.all._failures.wait("192.0.2.1", trio.current_time()) == 0


async def test_nobody_waits_for_ever(autojump_clock, bed, monkeypatch):
    monkeypatch.setattr(authentication, "WAIT_S", 0.5)
    error = await refused(bed, bed.account())
    assert isinstance(error, UnreachableError)
    assert len(bed.all._locks) == 0


# --- failures ---


async def test_who_fails_often_hears_that_he_is_to_wait_and_for_how_long(autojump_clock, bed):
    errors = [await refused(bed, "smk_ci_wrong") for _ in range(BURST + 5)]
    assert [type(error) for error in errors] == [UnauthenticatedError] * BURST + [
        ThrottledError
    ] * 5
    wait = errors[-1].retry_after
    assert wait >= 1
    await trio.sleep(wait)
    assert isinstance(await refused(bed, "smk_ci_wrong"), UnauthenticatedError)


async def test_who_has_a_good_token_is_not_held_up_by_his_neighbours(autojump_clock, bed):
    external = SIGNER.token()
    await bed.who(external)
    for _ in range(3 * BURST):
        await refused(bed, "smk_ci_wrong")
    assert (await bed.who(bed.key)).tenant == "acme"
    assert (await bed.who(external)).tenant == "acme"
    # What is not known yet waits here, and not elsewhere.
    assert isinstance(await refused(bed, bed.account()), ThrottledError)
    assert bed.asked == []
    assert (await bed.who(bed.account(), ELSEWHERE)).tenant == "ml"


async def test_a_flood_of_made_up_tokens_asks_the_api_server_little(autojump_clock, bed):
    bed.status = {"authenticated": False}
    for number in range(500):
        await refused(bed, bed.account(jti=str(number)))
    # A second each: some 250 came within the rate, over 500 s; the first twenty at once.
    assert len(bed.asked) <= BURST + (bed.now() - NOW) / 2 + 1


@pytest.mark.parametrize("header", [None, "", "Basic x", "Bearer", "Bearer " + "x" * 9000])
async def test_no_token_is_counted_too(autojump_clock, bed, header):
    for _ in range(BURST):
        with pytest.raises(UnauthenticatedError):
            await bed.all.principal(header, None)
    with pytest.raises(ThrottledError):
        await bed.all.principal(header, None)
    assert bed.all.counts == {("none", "unauthenticated"): BURST + 1}
