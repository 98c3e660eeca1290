"""Certificates of evaluations: what was measured of a sandbox, signed, and verified by whoever was not there.

The signed text is carried as it is, in an envelope of DSSE (https://github.com/secure-systems-lab/dsse): nothing has to be
written anew to be verified, and the signature covers the kind of text, too. Ed25519. What the text says: docs/evaluation.md.

Reading needs the standard library alone; signing and verifying need `cryptography`, which is in the extra `verify`.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PAYLOAD_TYPE = "application/vnd.sandman.certificate+json"
FORMAT = 1
CONTROLLED = "controlled"
UNCONTROLLED = "uncontrolled"
MAX_BYTES = 1024 * 1024
"""Of an envelope that is read: one of 64 commands has some 40 KiB."""
SEED_BYTES = 32
"""Of an Ed25519 private key."""
_MAX_SIGNATURES = 4


class CertificateError(Exception):
    """What was read is no certificate that could be believed."""


class CertificateMalformedError(CertificateError):
    """It has not the form of a certificate."""


class CertificateTypeError(CertificateError):
    """It is a signed text of another kind, or of a later format than this version knows."""


class CertificateKeyError(CertificateError):
    """None of the keys that are at hand has signed it."""


class CertificateTamperedError(CertificateError):
    """A key that is at hand shall have signed it, and did not sign this."""


class VerifierMissingError(CertificateError):
    """`cryptography` is not installed."""


class CertificateReason(NamedTuple):
    """Why what was run was not under control: a word for programs, and a line for people."""

    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


@dataclasses.dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate as it came. Only what `verify` gave back is proven.

    Args:
        payload: the signed text, byte by byte.
        signatures: ids of keys, and what each has signed.
        document: what the text says.
    """

    payload: bytes
    signatures: tuple[tuple[str, bytes], ...]
    document: Mapping[str, Any] = dataclasses.field(repr=False)

    @property
    def sandbox(self) -> str:
        """The id of the sandbox."""
        return str(self.document["sandbox"])

    @property
    def issued_at(self) -> str:
        """When it was made (RFC 3339), by the gateway's clock."""
        return str(self.document["issued_at"])

    @property
    def verdict(self) -> str:
        """`controlled` or `uncontrolled`."""
        return str(self.document["verdict"])

    @property
    def is_controlled(self) -> bool:
        """Whether all was measured and within the thresholds."""
        return self.verdict == CONTROLLED

    @property
    def reasons(self) -> tuple[CertificateReason, ...]:
        """Why it was not under control; empty when it was."""
        return tuple(
            CertificateReason(one["code"], one["detail"]) for one in self.document["reasons"]
        )

    @property
    def commands(self) -> tuple[Mapping[str, Any], ...]:
        """What is known of each command that was named."""
        return tuple(self.document["commands"])

    def to_json(self) -> dict[str, object]:
        """The envelope, to be kept."""
        return {
            "payload": base64.b64encode(self.payload).decode("ascii"),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [
                {"keyid": key_id, "sig": base64.b64encode(signature).decode("ascii")}
                for key_id, signature in self.signatures
            ],
        }

    @classmethod
    def from_json(cls, envelope: object) -> Self:
        """Read an envelope; nothing is proven by that.

        Raises:
            CertificateMalformedError: it is none.
            CertificateTypeError: it is one of something else.
        """
        if not isinstance(envelope, dict):
            raise CertificateMalformedError("an envelope is a JSON object")
        if envelope.get("payloadType") != PAYLOAD_TYPE:
            raise CertificateTypeError(f"its payloadType is not {PAYLOAD_TYPE}")
        payload = _bytes(envelope.get("payload"), "payload")
        listed = envelope.get("signatures")
        if not isinstance(listed, list) or not 1 <= len(listed) <= _MAX_SIGNATURES:
            raise CertificateMalformedError(f"signatures: a list of 1 to {_MAX_SIGNATURES}")
        return cls(payload, tuple(_signature(one) for one in listed), _document(payload))

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """The same of a file's content.

        Raises:
            CertificateError: as `from_json`.
        """
        if len(text) > MAX_BYTES:
            raise CertificateMalformedError(f"it has over {MAX_BYTES} bytes")
        return cls.from_json(_load(text))


def canonical(document: Mapping[str, object]) -> bytes:
    """The text that is signed: keys sorted, no white space, ASCII.

    Raises:
        ValueError: a number is none that JSON has.
    """
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def encoded(payload: bytes) -> bytes:
    """What a signature is made over: DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode("ascii")
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def key_id(public: bytes) -> str:
    """What a public key is called. It follows from the key, so that no two of them share a name."""
    return f"ed25519-{hashlib.sha256(public).hexdigest()[:16]}"


def public_key(seed: bytes) -> bytes:
    """The public key of a private one, 32 bytes each."""
    return _private(seed).public_key().public_bytes_raw()


def sign(document: Mapping[str, object], seed: bytes) -> Certificate:
    """A certificate that says so.

    Args:
        document: what is signed.
        seed: the private key, SEED_BYTES.
    """
    payload = canonical(document)
    signature = _private(seed).sign(encoded(payload))
    return Certificate(payload, ((key_id(public_key(seed)), signature),), _document(payload))


def verify(envelope: object, keys: Mapping[str, bytes]) -> Certificate:
    """The certificate in an envelope, when one of these keys has signed it.

    Args:
        envelope: as `Certificate.to_json` gives it.
        keys: public keys by id, as `read_keys` gives them.

    Raises:
        CertificateMalformedError, CertificateTypeError: it is no certificate.
        CertificateKeyError: none of the keys has signed it.
        CertificateTamperedError: it is not what was signed.
        VerifierMissingError: `cryptography` is not installed.
    """
    found = Certificate.from_json(envelope)
    known = [(keys[name], signature) for name, signature in found.signatures if name in keys]
    if not known:
        named = ", ".join(name for name, _ in found.signatures)
        raise CertificateKeyError(f"none of the {len(keys)} keys at hand is {named}")
    for public, signature in known:
        _check(public, signature, encoded(found.payload))
    return found


def keys_to_json(publics: Iterable[bytes]) -> dict[str, object]:
    """Public keys as a JWK set (RFC 8037)."""
    return {
        "keys": [
            {
                "kty": "OKP",
                "crv": "Ed25519",
                "alg": "EdDSA",
                "use": "sig",
                "kid": key_id(public),
                "x": base64.urlsafe_b64encode(public).rstrip(b"=").decode("ascii"),
            }
            for public in publics
        ]
    }


def read_keys(document: object) -> dict[str, bytes]:
    """Public keys by id, out of a JWK set; those of other kinds are passed over.

    Raises:
        CertificateMalformedError: it is none, or a key of our kind is broken.
    """
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise CertificateMalformedError("a set of keys is a JSON object with a list `keys`")
    ours = [one for one in listed if isinstance(one, dict) and one.get("crv") == "Ed25519"]
    publics = [_public(one.get("x")) for one in ours]
    return {key_id(public): public for public in publics}


def read_keys_text(text: str | bytes) -> dict[str, bytes]:
    """The same of a file's content; raises as `read_keys`."""
    return read_keys(_load(text))


def _public(text: object) -> bytes:
    try:
        public = base64.urlsafe_b64decode(str(text).encode("ascii") + b"=")
    except (ValueError, binascii.Error):
        public = b""
    if len(public) != SEED_BYTES:
        raise CertificateMalformedError(f"a key of Ed25519 has {SEED_BYTES} bytes as base64url")
    return public


def _load(text: str | bytes) -> object:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise CertificateMalformedError(f"it is no JSON: {error}") from error


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")


def _bytes(text: object, what: str) -> bytes:
    """Base64, and written as everybody writes it: no two texts are the same bytes."""
    try:
        data = base64.b64decode(str(text).encode("ascii"), validate=True)
    except (ValueError, binascii.Error):
        data = b""
    if not data or base64.b64encode(data).decode("ascii") != text:
        raise CertificateMalformedError(f"{what}: not base64")
    return data


def _signature(one: object) -> tuple[str, bytes]:
    name = one.get("keyid") if isinstance(one, dict) else None
    if not isinstance(one, dict) or not isinstance(name, str):
        raise CertificateMalformedError("a signature is an object with keyid and sig")
    return name, _bytes(one.get("sig"), "sig")


_NEEDED = {"sandbox": str, "issued_at": str, "verdict": str, "reasons": list, "commands": list}


def _document(payload: bytes) -> Mapping[str, Any]:
    document = _load(payload)
    if not isinstance(document, dict):
        raise CertificateMalformedError("what is signed is a JSON object")
    if document.get("format") != FORMAT:
        raise CertificateTypeError(f"it is not of format {FORMAT}, which this version reads")
    for name, kind in _NEEDED.items():
        if not isinstance(document.get(name), kind):
            raise CertificateMalformedError(f"{name}: a {kind.__name__} is needed")
    if not all(map(_is_reason, document["reasons"])):
        raise CertificateMalformedError("reasons: each has a code and a detail")
    return document


def _is_reason(one: object) -> bool:
    return isinstance(one, dict) and all(
        isinstance(one.get(part), str) for part in CertificateReason._fields
    )


def _private(seed: bytes) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - an extra's
    except ImportError as error:
        raise _missing() from error
    return ed25519.Ed25519PrivateKey.from_private_bytes(seed)


def _check(public: bytes, signature: bytes, signed: bytes) -> None:
    try:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - an extra's
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415
    except ImportError as error:
        raise _missing() from error
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, signed)
    except InvalidSignature:
        raise CertificateTamperedError(
            "the signature is not of this text: it was changed after it was signed"
        ) from None


def _missing() -> VerifierMissingError:
    return VerifierMissingError(
        "certificates need `cryptography`: pip install 'sandman-sandbox[verify]'"
    )
