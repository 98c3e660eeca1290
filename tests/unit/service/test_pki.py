"""Certificates as values, checked by two verifiers: cryptography's and OpenSSL's own."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from sandman.service import pki, tls

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
DNS = "sandman-webhook.sandman-system.svc"


@pytest.fixture(scope="module")
def ca() -> pki.Pair:
    return pki.make_ca("authority", NOW, 90)


@pytest.fixture(scope="module")
def leaf(ca: pki.Pair) -> pki.Pair:
    return pki.issue(ca, [DNS, "other.example"], ["127.0.0.1", "::1"], NOW, 30)


@pytest.mark.parametrize("name", [DNS, "other.example", "127.0.0.1", "::1"])
def test_the_leaf_serves_its_names_and_addresses(ca, leaf, name):
    assert pki.verifies(ca.certificate, leaf.certificate, name, NOW)


@pytest.mark.parametrize("name", ["example", "x." + DNS, "127.0.0.2"])
def test_and_no_others(ca, leaf, name):
    assert not pki.verifies(ca.certificate, leaf.certificate, name, NOW)


def test_a_bundle_with_the_authority_among_others_verifies(ca, leaf):
    other = pki.make_ca("authority", NOW, 90)
    assert not pki.verifies(other.certificate, leaf.certificate, DNS, NOW)
    for bundle in (other.certificate + ca.certificate, ca.certificate + other.certificate):
        assert pki.verifies(bundle, leaf.certificate, DNS, NOW)


@pytest.mark.parametrize(
    "spoilt", [b"", b"junk", b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"]
)
def test_what_cannot_be_read_verifies_nothing(ca, leaf, spoilt):
    assert not pki.verifies(spoilt, leaf.certificate, DNS, NOW)
    assert not pki.verifies(ca.certificate, spoilt, DNS, NOW)
    assert not pki.belongs(pki.Pair(spoilt, leaf.key))
    assert not pki.belongs(pki.Pair(leaf.certificate, spoilt))
    assert pki.needs_renewal(spoilt, NOW, timedelta(0))


def test_a_certificate_is_valid_from_an_hour_ago_until_its_days_are_over(ca, leaf):
    end = NOW + timedelta(days=30)
    assert pki.not_after(leaf.certificate) == end
    for moment, is_valid in [
        (NOW - timedelta(minutes=61), False),
        (NOW - timedelta(minutes=59), True),
        (end, True),
        (end + timedelta(seconds=1), False),
    ]:
        assert pki.verifies(ca.certificate, leaf.certificate, DNS, moment) is is_valid


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 20))
def test_renewal_is_due_when_less_than_so_much_is_left(elapsed, before):
    certificate = pki.make_ca("x", NOW, 30).certificate
    due = pki.needs_renewal(certificate, NOW + timedelta(days=elapsed), timedelta(days=before))
    assert due is (30 - elapsed <= before)


def test_a_leaf_cannot_act_as_an_authority(ca, leaf):
    forged = pki.issue(leaf, ["victim.example"], [], NOW, 30)
    bundle = leaf.certificate + ca.certificate
    assert not pki.verifies(bundle, forged.certificate, "victim.example", NOW)


def test_key_and_certificate_must_be_each_others(ca, leaf):
    assert pki.belongs(leaf)
    assert not pki.belongs(pki.Pair(leaf.certificate, ca.key))


def test_other_kinds_of_keys_are_not_ours(leaf):
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    assert not pki.belongs(pki.Pair(leaf.certificate, pem))
    assert not pki.belongs(pki.Pair(_rsa_certificate(key), leaf.key))


def _rsa_certificate(key: rsa.RSAPrivateKey) -> bytes:
    name = x509.Name([])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def test_authorities_are_told_apart_and_expired_ones_left_out(ca):
    short = pki.make_ca("short", NOW, 1)
    bundle = ca.certificate + short.certificate
    assert pki.authorities(bundle, NOW) == (ca.certificate, short.certificate)
    assert pki.authorities(bundle, NOW + timedelta(days=2)) == (ca.certificate,)
    assert pki.authorities(b"junk", NOW) == ()


def test_serial_numbers_are_random():
    made = [pki.make_ca("x", NOW, 1) for _ in range(3)]
    serials = {x509.load_pem_x509_certificate(one.certificate).serial_number for one in made}
    assert len(serials) == 3


def test_the_key_does_not_show_in_the_repr(leaf):
    assert "PRIVATE" not in repr(leaf)


def test_openssl_shakes_hands_with_it():
    now = datetime.now(UTC)
    authority = pki.make_ca("authority", now, 1)
    pair = pki.issue(authority, [DNS], [], now, 1)
    client = ssl.create_default_context(cadata=authority.certificate.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = tls.server_context(pair.certificate, pair.key)
    assert _handshake(client, server, DNS)
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(client, server, "other.example")


def test_of_an_encrypted_key_nobody_is_asked_the_password(leaf):
    key = load_pem_private_key(leaf.key, password=None)
    locked = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a password")
    )
    with pytest.raises(ssl.SSLError):
        tls.server_context(leaf.certificate, locked)


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> str | None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[0].version()
