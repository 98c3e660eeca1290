"""Certificates as values: make an authority, issue a leaf, ask whether a leaf still serves.

Pure but for the keys and serial numbers, which are random; the clock is handed in. PEM bytes in
and out, so that a Secret, a file and a configuration hold the same thing. For the webhook's own
certificates and for tests; the gateway's certificate comes from outside.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Iterable

BACKDATE = timedelta(hours=1)
"""A new certificate is valid from an hour ago: the verifier's clock may be behind ours."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM. The key never shows in a repr."""

    certificate: bytes
    key: bytes = field(repr=False)


def make_ca(common_name: str, now: datetime, days: int) -> Pair:
    """A self-signed authority that may sign leaves and nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name(common_name)
    builder = _builder(name, name, key.public_key(), now, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue(
    ca: Pair, dns_names: Iterable[str], ip_addresses: Iterable[str], now: datetime, days: int
) -> Pair:
    """A server certificate for these names and addresses, signed by the authority."""
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ip_addresses]
    issuer = x509.load_pem_x509_certificate(ca.certificate)
    signer = _private_key(ca.key)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(str(names[0].value))
    builder = _builder(subject, issuer.subject, key.public_key(), now, days)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    serves = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(authority, critical=False)
        .add_extension(serves, critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
    )
    return _pair(builder.sign(signer, hashes.SHA256()), key)


def not_after(certificate: bytes) -> datetime:
    """When the (first) certificate ends.

    Raises:
        ValueError: not a PEM certificate.
    """
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def needs_renewal(certificate: bytes, now: datetime, before: timedelta) -> bool:
    """Whether the certificate ends within `before` from now, or cannot be read at all."""
    try:
        return not_after(certificate) - now <= before
    except ValueError:
        return True


def verifies(bundle: bytes, certificate: bytes, name: str, now: datetime) -> bool:
    """Whether a client that trusts this bundle accepts the leaf for that DNS name or address.

    False for a bundle or certificate that cannot be read: to the client it is all one.
    """
    try:
        store = verification.Store(x509.load_pem_x509_certificates(bundle))
        leaf = x509.load_pem_x509_certificate(certificate)
        policy = verification.PolicyBuilder().store(store).time(now)
        policy.build_server_verifier(_subject(name)).verify(leaf, [])
    except (ValueError, verification.VerificationError):
        return False
    return True


def belongs(pair: Pair) -> bool:
    """Whether key and certificate can be read and are each other's."""
    try:
        public = x509.load_pem_x509_certificate(pair.certificate).public_key()
        return _public(public) == _public(_private_key(pair.key).public_key())
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def authorities(bundle: bytes, now: datetime) -> tuple[bytes, ...]:
    """The certificates of the bundle that have not ended, each as PEM; none when it is unreadable."""
    try:
        found = x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return ()
    return tuple(one.public_bytes(Encoding.PEM) for one in found if one.not_valid_after_utc > now)


def _subject(name: str) -> x509.DNSName | x509.IPAddress:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _name(common_name: str) -> x509.Name:
    # RFC 5280 allows 64 characters; what counts is in the subject alternative names.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(certificate.public_bytes(Encoding.PEM), private)


def _private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("not an elliptic-curve key")
    return key


def _public(key: object) -> bytes:
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise TypeError("not an elliptic-curve key")
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
