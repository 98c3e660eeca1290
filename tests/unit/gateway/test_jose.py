"""JSON Web Tokens and key sets, by hostile hands among others."""

from __future__ import annotations

import contextlib
import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from gateway import jose
from tests.fakes.issuers import Signer, encode, hs256, keyset, rsa_key, said_by_default

SIGNERS = {name: Signer(name, kid=f"k-{name}") for name in jose.ALGORITHMS}
KEYS = jose.read_keys(keyset(*SIGNERS.values()))
RS = SIGNERS["RS256"]
ES = SIGNERS["ES256"]
ED = SIGNERS["EdDSA"]


def is_good(token: str, keys=KEYS) -> bool:
    return jose.verify(jose.parse(token), keys)


@pytest.mark.parametrize("algorithm", jose.ALGORITHMS)
def test_what_a_key_signed_is_verified_by_it_and_by_no_other(algorithm):
    signer = SIGNERS[algorithm]
    token = signer.token()
    assert is_good(token)
    assert jose.parse(token).claims == said_by_default()
    other = Signer(algorithm, signer.kid, name="other")
    assert not is_good(other.token())
    assert not is_good(token, [key for key in KEYS if key.algorithm != algorithm])


@pytest.mark.parametrize("algorithm", jose.ALGORITHMS)
def test_no_character_of_a_token_may_be_another(algorithm):
    token = SIGNERS[algorithm].token()
    for place in range(0, len(token), 7):
        if token[place] == ".":
            continue
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        with contextlib.suppress(jose.TokenError):
            assert not is_good(changed)


def test_a_token_without_key_id_is_of_the_only_key_there_is():
    alone = Signer("ES256", kid=None)
    keys = jose.read_keys(keyset(alone, RS))
    assert is_good(alone.token(), keys)
    two = jose.read_keys(keyset(alone, Signer("ES256", "x")))
    assert not is_good(alone.token(), two)


def test_a_key_id_that_is_not_there_is_of_no_key():
    assert not is_good(RS.token(kid="k9"))
    assert not is_good(RS.token(kid=ES.kid))


# --- attacks on the algorithm ---


def test_no_signature_is_no_signature():
    for name in ("none", "None", "NONE", "nOnE"):
        head = encode({"alg": name})
        for token in (f"{head}.{encode(said_by_default())}.", f"{head}.{encode('{}')}.AA"):
            with pytest.raises(jose.TokenError):
                jose.parse(token)


@pytest.mark.parametrize("secret", [RS.pem, RS.pem.strip(), json.dumps(RS.jwk).encode(), b""])
def test_an_hmac_with_a_public_key_as_its_secret_is_refused(secret):
    with pytest.raises(jose.TokenError, match="algorithm"):
        jose.parse(hs256(secret, said_by_default(), kid=RS.kid))


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_the_key_says_the_algorithm_and_not_the_token(algorithm):
    for signer in SIGNERS.values():
        token = signer.token(alg=algorithm, kid=SIGNERS[algorithm].kid)
        assert is_good(token) is (signer.algorithm == algorithm)


@pytest.mark.parametrize(
    "header",
    [
        {"alg": 256},
        {"alg": ["RS256"]},
        {"alg": "RS512"},
        {"alg": "PS256"},
        {"alg": "rs256"},
        {"kid": 1},
        {"kid": "k" * 257},
        {"kid": {}},
        {"crit": ["exp"]},
        {"b64": False},
        {"typ": "logout+jwt"},
        {"typ": 7},
    ],
)
def test_a_header_that_asks_for_something_else_is_refused(header):
    with pytest.raises(jose.TokenError):
        jose.parse(RS.token(**header))


@pytest.mark.parametrize(
    "header", [{"jwk": Signer("RS256", "k9", "evil").jwk}, {"jku": "https://e"}, {"x5u": "x"}]
)
def test_a_key_that_a_token_brings_along_is_not_looked_at(header):
    evil = Signer("RS256", RS.kid, "evil")
    assert not is_good(evil.token(**header))


def test_an_es256_signature_has_one_form():
    token = ES.token()
    signed, _, signature = token.rpartition(".")
    der = ES.private.sign(signed.encode(), ec.ECDSA(jose.SHA256()))
    assert not is_good(f"{signed}.{encode(der)}")
    assert not is_good(f"{signed}.{encode(bytes(64))}")
    assert not is_good(f"{signed}.{signature[:80]}")


# --- attacks on the text ---


@pytest.mark.parametrize(
    "claims",
    [
        '{"sub": "a", "sub": "b"}',
        '{"a": {"sub": 1, "sub": 2}}',
        "[]",
        '"x"',
        "null",
        "",
        "{",
        '{"exp": NaN}',
        '{"exp": -Infinity}',
        '{"exp": ' + "9" * 5000 + "}",
        "[" * 3000,
        '{"a":' * 900 + "1" + "}" * 900 + "x",
    ],
)
def test_claims_that_could_be_read_in_two_ways_or_in_none_are_refused(claims):
    with pytest.raises(jose.TokenError):
        jose.parse(RS.token(claims))


def test_bad_utf8_is_refused():
    head, _, rest = RS.token().partition(".")
    with pytest.raises(jose.TokenError):
        jose.parse(f"{head}.{encode(bytes([0x7B, 0xFF, 0x7D]))}.{rest.rpartition('.')[2]}")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t + "=",
        lambda t: t.replace(".", "..", 1),
        lambda t: t + ".",
        lambda t: t + ".AA",
        lambda t: t[:-1] + "+",
        lambda t: t[:-1] + "\n",
        lambda t: " " + t,
        lambda t: t.replace(".", " .", 1),
        lambda t: t.rpartition(".")[0],
        lambda t: t.rpartition(".")[0] + ".",
        lambda _: "..",
        lambda _: "",
        lambda _: "a.b.c",
        lambda t: t + "A" * jose.TOKEN_MAX,
        lambda t: "e30." + t.split(".", 1)[1],
    ],
)
def test_a_token_that_is_not_three_parts_of_base64_is_refused(spoil):
    with pytest.raises(jose.TokenError):
        jose.parse(spoil(RS.token()))


def test_base64_that_says_the_same_in_another_way_is_refused():
    """The last character of a part may have bits that mean nothing: a second text of the same token would
    pass by whatever knows the first by its hash."""
    token = ED.token()
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    index = last.index(token[-1])
    assert index % 16 == 0  # 64 bytes: the last character has two bits of meaning
    with pytest.raises(jose.TokenError, match="canonical"):
        jose.parse(token[:-1] + last[index + 1])


@given(st.text(max_size=200))
def test_any_text_is_a_token_or_is_refused(text):
    with contextlib.suppress(jose.TokenError):
        assert not is_good(text)


@given(
    st.dictionaries(
        st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk", "x"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=8)
        | st.sampled_from([*jose.ALGORITHMS, "none", "HS256", "JWT", "k-RS256", [], {}]),
    )
)
def test_any_header_is_taken_or_refused_and_never_verified(header):
    text = f"{encode(json.dumps(header))}.{encode('{}')}.{encode(b'x' * 64)}"
    with contextlib.suppress(jose.TokenError):
        assert not is_good(text)


# --- key sets ---


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"keys": {}}',
        '{"keys": []}',
        '{"keys": [1]}',
        b"\xff",
        "[" * 5000,
        json.dumps({"keys": [RS.jwk] * 101}),
        '{"keys": [], "keys": []}',
    ],
)
def test_what_is_no_key_set_is_refused(text):
    with pytest.raises(jose.KeySetError):
        jose.parse_keys(text)


@pytest.mark.parametrize(
    "jwk",
    [
        {**RS.jwk, "d": "AA"},
        {"kty": "oct", "k": "AAAA", "kid": "x", "alg": "HS256"},
    ],
)
def test_a_set_with_a_secret_in_it_is_refused_whole(jwk):
    with pytest.raises(jose.KeySetError, match="private"):
        jose.parse_keys(json.dumps({"keys": [ES.jwk, jwk]}))


@pytest.mark.parametrize(
    "jwk",
    [
        {**RS.jwk, "use": "enc"},
        {**RS.jwk, "key_ops": ["encrypt"]},
        {**RS.jwk, "key_ops": 7},
        {**RS.jwk, "alg": "RS512"},
        {**RS.jwk, "alg": "ES256"},
        {**RS.jwk, "kid": 7},
        {**RS.jwk, "e": "AA"},
        {**RS.jwk, "e": "Ag"},
        {**RS.jwk, "n": "!!"},
        {**RS.jwk, "n": None},
        {"kty": "RSA", "kid": "x"},
        {**ES.jwk, "crv": "P-384"},
        {**ES.jwk, "crv": "secp256k1"},
        {**ES.jwk, "y": ES.jwk["x"]},
        {**ED.jwk, "crv": "X25519"},
        {**ED.jwk, "x": "AA"},
        {"kty": []},
        {},
    ],
)
def test_a_key_that_is_not_for_this_is_passed_over(jwk):
    [key] = jose.read_keys({"keys": [jwk, Signer("ES256", "good").jwk]})
    assert key.key_id == "good"


def test_a_short_rsa_key_is_none():
    short = Signer("RS256", "short")
    short.private = rsa_key("short", 1024)
    with pytest.raises(jose.KeySetError, match="no public key"):
        jose.read_keys(keyset(short))


def test_keys_do_not_show_in_logs():
    shown = repr(KEYS[0]) + repr(jose.parse(RS.token()))
    assert str(RS.private.public_key().public_numbers().n)[:20] not in shown
    assert "signature" not in shown


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(1, 1.0), (1.5, 1.5), (True, None), ("1", None), (None, None), ([], None), (1e999, None),
     (10**400, None)],
)  # fmt: skip
def test_a_moment_is_a_number(value, seconds):
    assert jose.number(value) == seconds
