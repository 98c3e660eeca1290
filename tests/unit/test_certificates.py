"""Certificates: what was signed is what is read, and nothing else is believed."""

from __future__ import annotations

import base64
import builtins
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandman import certificates
from sandman.certificates import (
    Certificate,
    CertificateKeyError,
    CertificateMalformedError,
    CertificateTamperedError,
    CertificateTypeError,
    VerifierMissingError,
)

SEED, OTHER = b"s" * 32, b"o" * 32
PUBLIC = certificates.public_key(SEED)
KEYS = {certificates.key_id(PUBLIC): PUBLIC}


def document(**more: object) -> dict[str, Any]:
    return {
        "format": 1,
        "sandbox": "sandbox-1-12345678",
        "issued_at": "2026-11-30T12:00:00.000Z",
        "verdict": "uncontrolled",
        "reasons": [{"code": "qos", "detail": "its class is Burstable, not Guaranteed"}],
        "commands": [{"exec_id": "e1", "state": "ended"}],
        **more,
    }


SIGNED = certificates.sign(document(), SEED)


def test_what_was_signed_is_read_back():
    found = certificates.verify(json.loads(json.dumps(SIGNED.to_json())), KEYS)
    assert found == SIGNED
    assert (found.sandbox, found.verdict, found.is_controlled) == (
        "sandbox-1-12345678",
        "uncontrolled",
        False,
    )
    assert found.issued_at == "2026-11-30T12:00:00.000Z"
    assert [str(one) for one in found.reasons] == ["qos: its class is Burstable, not Guaranteed"]
    assert found.commands[0]["exec_id"] == "e1"
    assert Certificate.from_text(json.dumps(SIGNED.to_json())) == SIGNED


def test_the_text_is_canonical_and_the_signature_is_of_dsse():
    assert certificates.canonical({"b": 1, "a": "ü\udc80"}) == b'{"a":"\\u00fc\\udc80","b":1}'
    kind = certificates.PAYLOAD_TYPE
    assert certificates.encoded(b"{}") == f"DSSEv1 {len(kind)} {kind} 2 {{}}".encode()
    with pytest.raises(ValueError, match="JSON"):
        certificates.canonical({"a": float("nan")})


@given(st.integers(min_value=0), st.integers(1, 255))
def test_no_byte_of_text_or_signature_may_be_another(place, change):
    name, signature = SIGNED.signatures[0]
    both = bytearray(SIGNED.payload + signature)
    both[place % len(both)] ^= change
    size = len(SIGNED.payload)
    envelope = SIGNED.to_json()
    envelope["payload"] = base64.b64encode(both[:size]).decode()
    envelope["signatures"] = [{"keyid": name, "sig": base64.b64encode(both[size:]).decode()}]
    with pytest.raises((CertificateTamperedError, CertificateMalformedError, CertificateTypeError)):
        certificates.verify(envelope, KEYS)


@given(st.integers(min_value=0), st.characters(min_codepoint=32, max_codepoint=126))
def test_no_character_of_the_envelope_may_be_another(place, character):
    """Base64 has several spellings of the same bytes: one of them is a certificate."""
    text = json.dumps(SIGNED.to_json())
    place %= len(text)
    changed = f"{text[:place]}{character}{text[place + 1 :]}"
    if changed == text:
        return
    try:
        envelope = json.loads(changed)
    except ValueError:
        return
    if envelope == SIGNED.to_json():  # a blank between its parts
        return
    with pytest.raises(certificates.CertificateError):
        certificates.verify(envelope, KEYS)


def test_a_text_of_another_kind_cannot_be_passed_off():
    other = certificates.PAYLOAD_TYPE.replace("certificate", "receipt")
    with pytest.raises(CertificateTypeError, match="payloadType"):
        certificates.verify({**SIGNED.to_json(), "payloadType": other}, KEYS)
    later = certificates.sign(document(), SEED).payload.replace(b'"format":1', b'"format":2')
    envelope = {**SIGNED.to_json(), "payload": base64.b64encode(later).decode()}
    with pytest.raises(CertificateTypeError, match="format 1"):
        certificates.verify(envelope, KEYS)


def test_only_a_key_at_hand_counts_and_old_ones_do_for_as_long_as_they_are():
    with pytest.raises(CertificateKeyError, match="none of the 0 keys"):
        certificates.verify(SIGNED.to_json(), {})
    new = certificates.public_key(OTHER)
    both = certificates.read_keys(certificates.keys_to_json([new, PUBLIC]))
    assert certificates.verify(SIGNED.to_json(), both) == SIGNED
    with pytest.raises(CertificateKeyError):
        certificates.verify(SIGNED.to_json(), {certificates.key_id(new): new})
    # Another's signature under the name of a key of ours.
    forged = certificates.sign(document(), OTHER).to_json()
    name = next(iter(KEYS))
    forged["signatures"][0]["keyid"] = name  # type: ignore[index]
    with pytest.raises(CertificateTamperedError, match="changed after"):
        certificates.verify(forged, KEYS)


def test_a_set_of_keys_is_a_jwk_set():
    told = certificates.keys_to_json([PUBLIC])
    assert told["keys"][0] == {  # type: ignore[index]
        "kty": "OKP",
        "crv": "Ed25519",
        "alg": "EdDSA",
        "use": "sig",
        "kid": certificates.key_id(PUBLIC),
        "x": base64.urlsafe_b64encode(PUBLIC).decode().rstrip("="),
    }
    mixed = {"keys": [{"kty": "RSA", "n": "x"}, *told["keys"]]}  # type: ignore[misc]
    assert certificates.read_keys_text(json.dumps(mixed)) == KEYS
    for broken in ([], {"keys": 1}, {"keys": [{"crv": "Ed25519", "x": "short"}]}):
        with pytest.raises(CertificateMalformedError):
            certificates.read_keys(broken)
    with pytest.raises(CertificateMalformedError):
        certificates.read_keys({"keys": [{"crv": "Ed25519", "x": "\u00fc"}]})


@pytest.mark.parametrize(
    "change",
    [
        {"payload": ""},
        {"payload": 7},
        {"payload": "e30="},
        {"payload": base64.b64encode(b"[1]").decode()},
        {"payload": base64.b64encode(b"no json").decode()},
        {"signatures": []},
        {"signatures": [{"keyid": "k", "sig": "AAAA"}] * 5},
        {"signatures": [{"sig": "AAAA"}]},
        {"signatures": ["AAAA"]},
        {"signatures": [{"keyid": "k", "sig": "AA A"}]},
    ],
)
def test_what_has_not_the_form_is_no_certificate(change):
    with pytest.raises((CertificateMalformedError, CertificateTypeError)):
        Certificate.from_json({**SIGNED.to_json(), **change})


@pytest.mark.parametrize(
    "change",
    [
        {"sandbox": 1},
        {"verdict": None},
        {"reasons": {}},
        {"reasons": [{"code": "x"}]},
        {"reasons": ["x"]},
        {"commands": None},
    ],
)
def test_a_text_without_what_is_needed_is_none_though_it_be_signed(change):
    payload = json.dumps(document(**change)).encode()
    envelope = {**SIGNED.to_json(), "payload": base64.b64encode(payload).decode()}
    with pytest.raises(CertificateMalformedError):
        Certificate.from_json(envelope)


@pytest.mark.parametrize("text", ["", "[]", "NaN", "{" * 5000, "x" * (1024 * 1024 + 1)])
def test_what_is_no_envelope_is_told_so(text):
    with pytest.raises((CertificateMalformedError, CertificateTypeError)):
        Certificate.from_text(text)


def test_without_cryptography_it_is_said_what_to_install(monkeypatch):
    real = builtins.__import__

    def without(name: str, *rest: Any) -> object:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    # What it says can be read all the same.
    assert Certificate.from_json(SIGNED.to_json()).verdict == "uncontrolled"
    for act in (
        lambda: certificates.verify(SIGNED.to_json(), KEYS),
        lambda: certificates.sign(document(), SEED),
    ):
        with pytest.raises(VerifierMissingError, match=r"pip install 'sandman-sandbox\[verify\]'"):
            act()
