"""Who is whom, by the ConfigMap, an API server's word, and a token's claims."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import callers, jose
from gateway.model import Identity, Share
from sandman.errors import ForbiddenError, SandmanError, UnauthenticatedError
from tests.fakes.issuers import AUDIENCE, ISSUER, NOW, Signer, entry, keyset, said_by_default

SIGNER = Signer("ES256")
JWKS = keyset(SIGNER)


def parsed(**entries) -> callers.Callers:
    rules, bad = callers.parse({name: json.dumps(one) for name, one in entries.items()})
    assert bad == []
    return rules


def account(**changes) -> dict:
    return {"namespace": "ml", "name": "trainer", "tenant": "acme"} | changes


def issuer(**changes) -> callers.Issuer:
    return parsed(**{"issuer.ci": entry(JWKS, **changes)}).issuers[changes.get("issuer", ISSUER)]


def judged(claims: dict, now: float = NOW, **changes):
    return callers.judged(jose.parse(SIGNER.token(claims)), issuer(**changes), now)


# --- the ConfigMap ---


def test_entries_say_who_is_which_tenant():
    rules = parsed(
        **{
            "account.trainers": account(weight=3, images=["r.example/**"], networks=["open"]),
            "account.rest": {"namespace": "ml", "tenant": "rest"},
            "issuer.ci": entry(JWKS),
        }
    )
    named = rules.accounts[callers.Account("ml", "trainer")]
    assert (named.tenant, named.share) == (
        "acme", Share(3.0, images=("r.example/**",), networks=("open",)),
    )  # fmt: skip
    assert rules.accounts[callers.Account("ml", None)].tenant == "rest"
    assert set(rules.rules) == {"account.trainers", "account.rest", "issuer.ci.ci"}
    one = rules.issuers[ISSUER]
    assert (one.audiences, one.algorithms, one.leeway_s) == (
        (AUDIENCE,), jose.ALGORITHMS, callers.LEEWAY_S,
    )  # fmt: skip
    assert [key.key_id for key in one.keys] == ["k1"]


@pytest.mark.parametrize(
    ("name", "bad", "says"),
    [
        ("account.a", account(tenant="no label!"), "tenant"),
        ("account.a", account(namespace=""), "namespace"),
        ("account.a", account(name=7), "name"),
        ("account.a", account(audience="x"), "audience is not known"),
        ("account.a", {"name": "x", "tenant": "acme"}, "namespace is missing"),
        ("account.a", account(weight=0), "weight"),
        ("account.A", account(), "key id"),
        ("account.", account(), "key id"),
        ("tenant.a", account(), "begin with"),
        ("account.a", [account()], "not a JSON object"),
        ("issuer.a", entry(), "exactly one of jwks"),
        ("issuer.a", entry(JWKS, jwks_url="https://x"), "exactly one of jwks"),
        ("issuer.a", entry({"keys": []}), "no public key"),
        ("issuer.a", entry(JWKS, audience=[]), "audience"),
        ("issuer.a", entry(JWKS, audience=""), "audience"),
        ("issuer.a", entry(JWKS, audience=None), "audience"),
        ("issuer.a", entry(JWKS, audiences="x"), "audiences is not known"),
        ("issuer.a", entry(JWKS, issuer=""), "issuer"),
        ("issuer.a", entry(JWKS, algorithms=["HS256"]), "algorithms"),
        ("issuer.a", entry(JWKS, algorithms=["none"]), "algorithms"),
        ("issuer.a", entry(JWKS, leeway_s=301), "leeway"),
        ("issuer.a", entry(JWKS, leeway_s=-1), "leeway"),
        ("issuer.a", entry(JWKS, leeway_s=True), "leeway"),
        ("issuer.a", entry(JWKS, callers={}), "callers has no rule"),
        ("issuer.a", entry(JWKS, callers=[]), "callers has no rule"),
        ("issuer.a", entry(JWKS, callers={"X": {}}), "key id"),
        ("issuer.a", entry(JWKS, callers={"x": {"claims": {}, "tenant": "a"}}), "names no claim"),
        ("issuer.a", entry(JWKS, callers={"x": {"tenant": "a"}}), "claims is missing"),
        ("issuer.a", entry(JWKS, callers={"x": {"claims": {"sub": "y"}}}), "exactly one of tenant"),
        ("issuer.a", entry(JWKS, callers={"x": {"claims": {"sub": []}, "tenant": "a"}}), "sub is a"),
        ("issuer.a", entry(JWKS, callers={"x": {"claims": {"sub": 1}, "tenant": "a"}}), "sub is a"),
        ("issuer.a", entry(jwks_url="http://issuer.test/keys"), "https"),
        ("issuer.a", entry(jwks_url="https://user@issuer.test/keys"), "https"),
        ("issuer.a", entry(jwks_url="file:///etc/passwd"), "https"),
        ("issuer.a", entry(jwks_url="https://"), "https"),
    ],
)  # fmt: skip
def test_one_bad_entry_is_named_with_its_reason_and_locks_nobody_else_out(name, bad, says):
    good = {"account.good": json.dumps(account(name="good"))}
    rules, said = callers.parse({**good, name: json.dumps(bad)})
    assert set(rules.rules) == {"account.good"}
    [why] = said
    assert why.startswith(f"{name}: ")
    assert says in why


@pytest.mark.parametrize(
    "text", ["", "{", "null", '{"tenant": "a", "tenant": "b"}', "[" * 5000, "\x00"]
)
def test_what_is_no_json_is_a_bad_entry(text):
    rules, [bad] = callers.parse({"account.a": text, "account.good": json.dumps(account())})
    assert bad.startswith("account.a: ")
    assert set(rules.rules) == {"account.good"}


def test_two_entries_for_the_same_are_one_and_a_bad_one():
    rules, [bad] = callers.parse(
        {"account.a": json.dumps(account()), "account.b": json.dumps(account(tenant="zeta"))}
    )
    assert "account.a is for the same account" in bad
    assert set(rules.rules) == {"account.a"}
    rules, [bad] = callers.parse(
        {"issuer.a": json.dumps(entry(JWKS)), "issuer.b": json.dumps(entry(JWKS))}
    )
    assert "issuer.a has the same issuer" in bad


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=40), max_size=3))
def test_any_config_map_is_read(data):
    rules, bad = callers.parse(data)
    assert len(rules.rules) + len(bad) >= len(data) > -1
    assert not rules.rules


# --- what the API server says of a ServiceAccount's token ---

RULES = parsed(**{"account.t": account(), "account.rest": {"namespace": "ml", "tenant": "rest"}})


def status(user: object = "system:serviceaccount:ml:trainer", **changes) -> dict:
    groups = ["system:serviceaccounts", 7]
    known = {"authenticated": True, "audiences": [AUDIENCE]}
    return known | {"user": {"username": user, "groups": groups}} | changes


@pytest.mark.parametrize(
    ("user", "tenant"), [("trainer", "acme"), ("other", "rest"), ("t:r", None), ("", None)]
)
def test_the_most_exact_rule_says_the_tenant(user, tenant):
    told = status(f"system:serviceaccount:ml:{user}")
    if tenant is None:
        with pytest.raises(ForbiddenError):
            callers.reviewed(told, RULES, AUDIENCE)
        return
    found = callers.reviewed(told, RULES, AUDIENCE)
    assert (found.tenant, found.sandbox) == (tenant, None)
    assert found.identity == Identity(
        f"system:serviceaccount:ml:{user}", ("system:serviceaccounts",)
    )


@pytest.mark.parametrize(
    "told",
    [
        {},
        status(authenticated=False),
        status(authenticated="true"),
        status(authenticated=1),
        status(error="expired"),
        status(audiences=None),
        status(audiences=[]),
        status(audiences=["https://kubernetes.default.svc"]),
        status(audiences={AUDIENCE: True}),
    ],
)
def test_a_token_that_is_not_for_us_is_nobodys(told):
    with pytest.raises(UnauthenticatedError):
        callers.reviewed(told, RULES, AUDIENCE)


@pytest.mark.parametrize(
    "user",
    ["alice", "system:node:n1", "system:serviceaccount:ml", "system:serviceaccount::trainer", None,
     "system:serviceaccount:mlx:trainer", "xsystem:serviceaccount:ml:trainer", ["x"]],
)  # fmt: skip
def test_who_is_no_mapped_serviceaccount_is_no_tenants(user):
    with pytest.raises(ForbiddenError):
        callers.reviewed(status(user), RULES, AUDIENCE)


def test_a_status_without_a_user_is_nobodys():
    with pytest.raises(ForbiddenError):
        callers.reviewed(status() | {"user": None}, RULES, AUDIENCE)


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, True),
        ({"aud": ["x", AUDIENCE]}, True),
        ({"aud": "https://kubernetes.default.svc"}, False),
        ({"aud": None}, False),
        ({"sub": "alice"}, False),
        ({"sub": None}, False),
        ({"exp": NOW - 60}, False),
        ({"exp": "soon"}, False),
        ({"exp": None}, False),
    ],
)
def test_the_api_server_is_asked_about_what_could_be_good_alone(changes, due):
    claims = said_by_default(**{"sub": "system:serviceaccount:ml:trainer", **changes})
    token = jose.parse(SIGNER.token(claims))
    assert callers.is_due(token, AUDIENCE, NOW) is due


# --- claims ---

ISSUED = issuer()


def test_a_claim_that_a_rule_names_says_the_tenant():
    found = judged(said_by_default())
    assert (found.tenant, found.key_id, found.sandbox) == ("acme", "issuer.ci.ci", None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": ["other"]}, "audience"),
        ({"aud": {"sandman": 1}}, "audience"),
        ({"aud": [["sandman"]]}, "audience"),
        ({"exp": None}, "expired"),
        ({"exp": NOW - callers.LEEWAY_S}, "expired"),
        ({"exp": str(NOW + 60)}, "expired"),
        ({"exp": True}, "expired"),
        ({"nbf": NOW + callers.LEEWAY_S + 1}, "nbf"),
        ({"nbf": "now"}, "nbf"),
        ({"iat": NOW + callers.LEEWAY_S + 1}, "iat"),
        ({"iat": [NOW]}, "iat"),
    ],
)
def test_claims_that_are_not_for_here_and_now_are_nobodys(changes, reason):
    with pytest.raises(UnauthenticatedError, match=reason):
        judged(said_by_default(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": NOW - callers.LEEWAY_S + 1},
        {"nbf": NOW + callers.LEEWAY_S},
        {"iat": NOW + callers.LEEWAY_S},
        {"iat": None},
        {"aud": ["other", AUDIENCE]},
    ],
)
def test_clocks_may_differ_by_the_leeway(changes):
    assert judged(said_by_default(**changes)).tenant == "acme"


def test_the_leeway_is_the_issuers():
    claims = said_by_default(exp=NOW - 1)
    assert judged(claims, leeway_s=2).tenant == "acme"
    with pytest.raises(UnauthenticatedError):
        judged(claims, leeway_s=0)


@pytest.mark.parametrize(
    ("claims", "tenant"),
    [
        ({"sub": "a", "groups": ["dev", "rl"]}, "rl"),
        ({"sub": "b", "groups": ["dev"]}, "other"),
        ({"sub": "b", "groups": "rl"}, "other"),
        ({"sub": "c", "groups": ["rl"]}, None),
        ({"sub": "a", "groups": {"rl": 1}}, None),
        ({"sub": ["a"], "groups": "rl"}, "rl"),
        ({"groups": "rl"}, None),
        ({"sub": True, "groups": "rl"}, None),
    ],
)
def test_all_claims_of_a_rule_must_fit_and_the_first_rule_that_fits_counts(claims, tenant):
    rules = {
        "rl": {"claims": {"groups": ["rl", "rl2"], "sub": "a"}, "tenant": "rl", "weight": 2},
        "b": {"claims": {"sub": "b"}, "tenant": "other"},
    }
    said = said_by_default(sub=None) | claims
    if tenant is None:
        with pytest.raises(ForbiddenError):
            judged(said, callers=rules)
        return
    assert judged(said, callers=rules).tenant == tenant


@pytest.mark.parametrize(
    ("team", "tenant"),
    [("acme", "acme"), ("no label!", None), ("", None), (None, None), (["acme"], None), (7, None)],
)
def test_a_claim_may_be_the_tenant_where_a_rule_says_so(team, tenant):
    rule = {"claims": {"org": "us"}, "tenant_claim": "team", "kubernetes": {"user": "u"}}
    claims = said_by_default(org="us", team=team)
    if tenant is None:
        with pytest.raises(ForbiddenError, match="team"):
            judged(claims, callers={"teams": rule})
        return
    found = judged(claims, callers={"teams": rule})
    assert (found.tenant, found.identity) == (tenant, Identity("u"))


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
            | st.lists(st.text(max_size=8), max_size=2)
            for name in ("aud", "exp", "nbf", "iat", "sub")
        },
    )
)  # fmt: skip
def test_any_claims_are_judged_and_none_but_the_whole_are_taken(claims):
    token = jose.Token("ES256", None, claims, b"", b"")
    try:
        found = callers.judged(token, ISSUED, NOW)
    except SandmanError:
        return
    assert found.tenant == "acme"
    assert "ci" in callers.listed(claims["sub"])
    assert AUDIENCE in callers.listed(claims["aud"])
    assert claims["exp"] > NOW - callers.LEEWAY_S
