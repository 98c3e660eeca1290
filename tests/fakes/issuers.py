"""An issuer of JWTs: real keys, its key set, and tokens as it, or somebody who is not it, would write them."""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

if TYPE_CHECKING:
    from collections.abc import Mapping

ISSUER = "https://issuer.test"
AUDIENCE = "sandman"
NOW = 1_800_000_000.0


def encode(data: bytes | Mapping[str, Any] | str) -> str:
    """base64url without padding, of bytes or of a document."""
    if isinstance(data, str):
        data = data.encode()
    if not isinstance(data, bytes):
        data = json.dumps(data).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def of_number(number: int) -> str:
    return encode(number.to_bytes((number.bit_length() + 7) // 8, "big"))


@functools.cache
def rsa_key(name: str = "", bits: int = 2048) -> rsa.RSAPrivateKey:
    """One for each name: they take a tenth of a second to make."""
    return rsa.generate_private_key(65537, bits)


class Signer:
    """A key pair with a name."""

    def __init__(self, algorithm: str, kid: str | None = "k1", name: str = "") -> None:
        self.algorithm = algorithm
        self.kid = kid
        self.private: Any = {
            "RS256": lambda: rsa_key(name),
            "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate,
        }[algorithm]()

    @property
    def jwk(self) -> dict[str, Any]:
        """The public half as it stands in a key set."""
        public = self.private.public_key()
        named = {"use": "sig", "alg": self.algorithm} | ({"kid": self.kid} if self.kid else {})
        if self.algorithm == "RS256":
            numbers = public.public_numbers()
            return {"kty": "RSA", "n": of_number(numbers.n), "e": of_number(numbers.e), **named}
        if self.algorithm == "ES256":
            numbers = public.public_numbers()
            x, y = (encode(one.to_bytes(32, "big")) for one in (numbers.x, numbers.y))
            return {"kty": "EC", "crv": "P-256", "x": x, "y": y, **named}
        raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
        return {"kty": "OKP", "crv": "Ed25519", "x": encode(raw), **named}

    @property
    def pem(self) -> bytes:
        return self.private.public_key().public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        )

    def sign(self, data: bytes) -> bytes:
        if self.algorithm == "RS256":
            return self.private.sign(data, padding.PKCS1v15(), SHA256())
        if self.algorithm == "ES256":
            r, s = decode_dss_signature(self.private.sign(data, ec.ECDSA(SHA256())))
            return r.to_bytes(32, "big") + s.to_bytes(32, "big")
        return self.private.sign(data)

    def token(self, claims: Mapping[str, Any] | str | None = None, **header: Any) -> str:
        """A token that says these claims; members of the header that are None are left out."""
        head = {"alg": self.algorithm, "typ": "JWT", "kid": self.kid, **header}
        head = {name: value for name, value in head.items() if value is not None}
        said = said_by_default() if claims is None else claims
        signed = f"{encode(head)}.{encode(said)}"
        return f"{signed}.{encode(self.sign(signed.encode()))}"


def said_by_default(now: float = NOW, **changes: Any) -> dict[str, Any]:
    """The claims of a good token; those that are None are left out."""
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ci", "iat": now, "exp": now + 600} | changes
    return {name: value for name, value in said.items() if value is not None}


def keyset(*signers: Signer) -> dict[str, Any]:
    return {"keys": [one.jwk for one in signers]}


def hs256(secret: bytes, claims: Mapping[str, Any], **header: Any) -> str:
    """A token with an HMAC, as of somebody who knows public keys alone."""
    signed = f"{encode({'alg': 'HS256', 'typ': 'JWT', **header})}.{encode(claims)}"
    return f"{signed}.{encode(hmac.digest(secret, signed.encode(), hashlib.sha256))}"


def entry(jwks: object = None, **changes: Any) -> dict[str, Any]:
    """An issuer's entry of the ConfigMap, whose token of `sub: ci` is tenant acme's."""
    whole = {
        "issuer": ISSUER, "audience": AUDIENCE,
        "callers": {"ci": {"claims": {"sub": "ci"}, "tenant": "acme"}},
    }  # fmt: skip
    if jwks is not None:
        whole["jwks"] = jwks
    return whole | changes
