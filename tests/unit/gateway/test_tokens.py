"""API keys and sandbox tokens."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import auth, callers, policy, scopes, tokens
from gateway.model import Identity, Principal, Share
from sandman.errors import ForbiddenError, ImageDeniedError, NotFoundError, UnauthenticatedError

KEYS = {"k1": b"1" * 32, "k2": b"2" * 32}
CLAIMS = tokens.SandboxClaims("pod-1-abcdef01", "boot", "acme", 1000.0)


class Credentials:
    """Keys of a test."""

    def __init__(self, *, api: dict[str, tokens.ApiKey]) -> None:
        self.api_keys = api
        self.sandbox_keys = KEYS
        self.daemon_keys = KEYS
        self.current_key = "k1"
        self.callers = callers.NOBODY


def key_for(tenant: str, key_id: str = "ci-1") -> tuple[str, dict[str, tokens.ApiKey]]:
    token = tokens.make_api_key(key_id)
    keys, bad = tokens.parse_api_keys({key_id: tokens.api_key_entry(token, tenant)})
    assert bad == []
    return token, keys


def test_an_api_key_is_known_by_its_hash_alone():
    token, keys = key_for("acme")
    assert keys["ci-1"].sha256 == hashlib.sha256(token.encode()).hexdigest()
    assert token not in repr(keys)
    assert auth.authenticate(f"Bearer {token}", Credentials(api=keys), 0.0) == Principal(
        "acme", "ci-1"
    )


@pytest.mark.parametrize(
    ("told", "share"),
    [
        ({}, Share()),
        ({"weight": 3}, Share(3.0)),
        ({"weight": 0.01, "concurrent": 1}, Share(0.01, 1)),
        ({"weight": 100, "concurrent": None}, Share(100.0)),
        ({"concurrent": 8, "eval_reserved": 8}, Share(concurrent=8, eval_reserved=8)),
        *(({"concurrent": 8, "eval_reserved": bad}, None) for bad in (0, -1, 2.5, "3", 9)),
        ({"eval_reserved": 1}, None),
        *(({"weight": bad}, None) for bad in (0, -1, 1e9, "3", True, float("nan"), [])),
        ({"images": ["r.example/team/**"]}, Share(images=("r.example/team/**",))),
        ({"images": []}, Share(images=())),
        ({"networks": ["open", "model"]}, Share(networks=("open", "model"))),
        ({"networks": []}, Share(networks=())),
        *(({"networks": bad}, None) for bad in ("open", [1], {}, ["a b"], [""])),
        *(({"images": bad}, None) for bad in ("r.example/a", ["*"], [1], {})),
        *(({"concurrent": bad}, None) for bad in (0, -1, 2.5, "3", True)),
        ({"rate": 0.5, "cpu": 64, "memory": 2**40}, Share(rate=0.5, cpu=64, memory=2**40)),
        *(({name: bad}, None) for name in ("rate", "cpu") for bad in (0, -1, "3", True, 1e10)),
        *(({"memory": bad}, None) for bad in (0, 1.5, "1Gi")),
    ],
)
def test_what_a_key_says_of_its_tenants_share_is_within_bounds(told, share):
    entry = json.loads(tokens.api_key_entry("smk_ci-1_x", "acme")) | told
    if not told:
        del entry["weight"]
    keys, bad = tokens.parse_api_keys({"ci-1": json.dumps(entry).encode()})
    assert (keys["ci-1"].share if keys else None) == share
    assert bad == ([] if share else ["ci-1"])


@pytest.mark.parametrize(
    "image", ["evil.example/a", "r.example.evil/a", "debian@sha256:" + "a" * 64]
)
def test_a_key_with_an_allowlist_has_no_other_images(image):
    principal = Principal("acme", "ci-1", share=Share(images=("r.example/**", "debian:12")))
    with pytest.raises(ImageDeniedError, match=r"r\.example") as caught:
        policy.may_run(principal, image)
    assert (caught.value.field, caught.value.retryable) == ("image", False)
    policy.may_run(principal, "r.example/team/a:1")
    policy.may_run(principal, "docker.io/library/debian:12")
    policy.may_run(principal, None)
    policy.may_run(Principal("acme", "ci-1"), image)
    with pytest.raises(ImageDeniedError, match="none"):
        policy.may_run(Principal("acme", "ci-1", share=Share(images=())), image)


def test_a_principal_has_the_share_of_its_key():
    token = tokens.make_api_key("ci-1")
    share = Share(3.0, 8, ("r.example/**", "debian"))
    keys, _ = tokens.parse_api_keys({"ci-1": tokens.api_key_entry(token, "acme", share)})
    principal = auth.authenticate(f"Bearer {token}", Credentials(api=keys), 0.0)
    assert principal.share == share


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Basic abc", "Bearer smk_ci-1_wrong", "Bearer smk_nope_x",
     "Bearer x", "Bearer sbt_", "Bearer sbt_k1_e30.x", "Bearer sbt_k9_e30.x", "Bearer " + "x" * 2000,
     "Bearer smk__", "Bearer caf\u00e9"],
)  # fmt: skip
def test_every_other_token_is_unauthenticated(header):
    _, keys = key_for("acme")
    with pytest.raises(UnauthenticatedError) as caught:
        auth.authenticate(header, Credentials(api=keys), 0.0)
    # The gateway does not know where its caller has it from.
    assert "SANDMAN_TOKEN" not in str(caught.value)


def test_a_revoked_key_is_unknown():
    token, _ = key_for("acme")
    with pytest.raises(UnauthenticatedError):
        auth.authenticate(f"Bearer {token}", Credentials(api={}), 0.0)


def test_a_key_of_one_id_is_not_good_for_another():
    token, keys = key_for("acme")
    other = {"ci-2": keys["ci-1"]._replace(key_id="ci-2")}
    with pytest.raises(UnauthenticatedError):
        tokens.check_api_key(token, other, 0.0)


@pytest.mark.parametrize("key_id", ["", "UPPER", "under_score", "-a", "a-", "a" * 41, "a b"])
def test_a_key_id_that_could_not_be_told_from_the_rest_is_refused(key_id):
    with pytest.raises(ValueError, match="key id"):
        tokens.make_api_key(key_id)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}", b"[]", b"null", b'{"sha256": "00", "tenant": "a"}', b'{"sha256": 1, "tenant": "a"}',
     json.dumps({"sha256": "0" * 64, "tenant": "no label!"}).encode(),
     json.dumps({"sha256": "z" * 64, "tenant": "a"}).encode()],
)  # fmt: skip
def test_one_bad_entry_is_named_and_locks_nobody_else_out(raw):
    token, good = key_for("acme")
    entry = tokens.api_key_entry(token, "acme")
    keys, bad = tokens.parse_api_keys({"ci-1": entry, "broken": raw})
    assert (keys, bad) == (good, ["broken"])


# --- sandbox tokens ---


def test_a_sandbox_token_says_which_sandbox_boot_and_tenant():
    token = tokens.make_sandbox_token(CLAIMS, KEYS, "k1")
    assert tokens.check_sandbox_token(token, KEYS, 999.0) == CLAIMS
    principal = auth.authenticate(f"Bearer {token}", Credentials(api={}), 999.0)
    assert principal == Principal("acme", "sandbox", "pod-1-abcdef01", "boot")


def test_it_ends():
    token = tokens.make_sandbox_token(CLAIMS, KEYS, "k1")
    with pytest.raises(UnauthenticatedError, match="expired"):
        tokens.check_sandbox_token(token, KEYS, 1000.0)


def test_the_old_key_is_good_until_it_is_taken_away():
    token = tokens.make_sandbox_token(CLAIMS, KEYS, "k1")
    assert tokens.check_sandbox_token(token, KEYS, 0.0) == CLAIMS
    with pytest.raises(UnauthenticatedError):
        tokens.check_sandbox_token(token, {"k2": KEYS["k2"]}, 0.0)


def test_another_key_under_the_same_id_is_not_accepted():
    token = tokens.make_sandbox_token(CLAIMS, KEYS, "k1")
    with pytest.raises(UnauthenticatedError):
        tokens.check_sandbox_token(token, {"k1": KEYS["k2"]}, 0.0)


@given(st.data())
def test_no_changed_token_is_accepted(data):
    token = tokens.make_sandbox_token(CLAIMS, KEYS, "k1")
    place = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("abcXYZ019-_."))
    changed = token[:place] + letter + token[place + 1 :]
    # The prefix only chooses the reader; everything behind it is signed.
    if changed != token and place >= len("sbt_"):
        with pytest.raises(UnauthenticatedError):
            tokens.check_sandbox_token(changed, KEYS, 0.0)


# --- what a principal may do ---


def test_a_sandbox_token_manages_nothing():
    with pytest.raises(ForbiddenError):
        policy.may_manage(Principal("acme", "sandbox", "a-1", "boot"))
    policy.may_manage(Principal("acme", "ci-1"))


@pytest.mark.parametrize(
    ("principal", "sandbox", "tenant", "allowed"),
    [
        (Principal("acme", "k"), "a-1", "acme", True),
        (Principal("acme", "k"), "a-1", "zeta", False),
        (Principal("acme", "k"), "a-1", None, False),
        (Principal("acme", "sandbox", "a-1", "b"), "a-1", "acme", True),
        (Principal("acme", "sandbox", "a-1", "b"), "a-2", "acme", False),
    ],
)
def test_another_tenants_sandbox_does_not_exist(principal, sandbox, tenant, allowed):
    if principal.sandbox not in (None, sandbox):
        with pytest.raises(NotFoundError) as caught:
            policy.may_ask(principal, sandbox, scopes.LOOK)
        assert str(caught.value) == f"not_found: no sandbox {sandbox}"
        return
    policy.may_ask(principal, sandbox, scopes.LOOK)
    assert policy.owns(principal, tenant) is allowed


class TestIdentity:
    """Whom the cluster knows a key's caller as."""

    def test_it_is_kept_with_the_key(self):
        who = Identity("alice", ("dev", "ops"))
        token = tokens.make_api_key("k")
        keys, bad = tokens.parse_api_keys({"k": tokens.api_key_entry(token, "acme", identity=who)})
        assert bad == []
        assert tokens.check_api_key(token, keys, 0.0).identity == who

    def test_most_keys_have_none(self):
        keys, _ = tokens.parse_api_keys(
            {"k": tokens.api_key_entry(tokens.make_api_key("k"), "acme")}
        )
        assert keys["k"].identity is None

    @pytest.mark.parametrize(
        "told",
        [
            {},
            [],
            {"user": ""},
            {"user": 1},
            {"user": "a", "groups": "b"},
            {"user": "a", "groups": [""]},
        ],
    )
    def test_what_is_none_locks_that_key_out_and_no_other(self, told):
        entry = json.loads(tokens.api_key_entry(tokens.make_api_key("k"), "acme"))
        good = json.dumps(entry).encode()
        keys, bad = tokens.parse_api_keys(
            {"k": json.dumps({**entry, "kubernetes": told}).encode(), "g": good}
        )
        assert (set(keys), bad) == ({"g"}, ["k"])
