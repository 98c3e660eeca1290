"""JSON Web Tokens and key sets as bytes: read strictly, verified, and nothing believed before that. Pure.

The key says which algorithm it is for, never the token alone: of a key set only public keys for RS256, ES256 and
EdDSA are taken, so that neither `none` nor an HMAC with a public key as its secret can be a signature here.
What two readers may read in two ways is refused: a name twice in an object, base64 that is not canonical.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ALGORITHMS = ("RS256", "ES256", "EdDSA")
TOKEN_MAX = 8192
"""Characters of a token. Those of a ServiceAccount have some 1,100, one with two hundred groups 6,000; the
server reads heads up to 64 KiB."""
KEYS_MAX = 100
"""Keys of a set; identity providers have two to five."""
KID_MAX = 256
RSA_BITS_LEAST, RSA_BITS_MOST = 2048, 8192
"""Below can be factored one day; above costs milliseconds for each signature."""
EC_BYTES = 32
TYPES = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
"""What `typ` may say, where it is there: logout tokens and the like are signed by the same keys."""
_PART = re.compile(r"[A-Za-z0-9_-]+")

PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


class TokenError(ValueError):
    """This is no token that could be verified; the text may be told to whoever sent it."""


class KeySetError(ValueError):
    """This is no key set that anything could be verified with."""


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """A token in its parts. `claims` are what it says, and not believed before `verify`."""

    algorithm: str
    key_id: str | None
    claims: Mapping[str, Any]
    signed: bytes = dataclasses.field(repr=False)
    signature: bytes = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """A public key, and the one algorithm that it is for."""

    key_id: str | None
    algorithm: str
    public: PublicKey = dataclasses.field(repr=False)


def looks_like(token: str) -> bool:
    """Whether this could be a token of that form at all."""
    return token.count(".") == 2 and token.startswith("eyJ")


def parse(token: str) -> Token:
    """Take a token apart.

    Raises:
        TokenError: it is none, or one of a kind that is not taken here.
    """
    if len(token) > TOKEN_MAX:
        raise TokenError(f"it has over {TOKEN_MAX} characters")
    parts = token.split(".")
    if len(parts) != 3:
        raise TokenError("it has not three parts")
    header, claims = (_object(part) for part in parts[:2])
    algorithm, key_id = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        raise TokenError(f"its algorithm is none of {', '.join(ALGORITHMS)}")
    if key_id is not None and not (isinstance(key_id, str) and len(key_id) <= KID_MAX):
        raise TokenError("its key id is no text")
    if "crit" in header or "b64" in header:
        raise TokenError("it asks for extensions")
    if "typ" in header and str(header["typ"]).lower() not in TYPES:
        raise TokenError("its type is not JWT")
    signed = ".".join(parts[:2]).encode("ascii")
    return Token(str(algorithm), key_id, claims, signed, _bytes(parts[2]))


def verify(token: Token, keys: Iterable[Key]) -> bool:
    """Whether one of these keys made its signature, by the algorithm that the key is for."""
    return any(_verifies(token, key) for key in matching(token, keys))


def matching(token: Token, keys: Iterable[Key]) -> list[Key]:
    """The keys that could have made its signature. A token that names none is of the only one there is for its
    algorithm, or of nobody."""
    fit = [key for key in keys if key.algorithm == token.algorithm]
    if token.key_id is None:
        return fit if len(fit) == 1 else []
    return [key for key in fit if key.key_id == token.key_id]


def _verifies(token: Token, key: Key) -> bool:
    try:
        match key.public:
            case rsa.RSAPublicKey() as public:
                public.verify(token.signature, token.signed, padding.PKCS1v15(), SHA256())
            case ec.EllipticCurvePublicKey() as public:
                if len(token.signature) != 2 * EC_BYTES:
                    return False
                halves = token.signature[:EC_BYTES], token.signature[EC_BYTES:]
                r, s = (int.from_bytes(half, "big") for half in halves)
                public.verify(encode_dss_signature(r, s), token.signed, ec.ECDSA(SHA256()))
            case ed25519.Ed25519PublicKey() as public:
                public.verify(token.signature, token.signed)
    except InvalidSignature:
        return False
    return True


# --- key sets -------------------------------------------------------------------------------------


def parse_keys(text: str | bytes) -> tuple[Key, ...]:
    """The keys of a JWKS document that can verify here; all others are passed over.

    Raises:
        KeySetError: it is no key set, one with a private key in it, or none of its keys is of use.
    """
    try:
        return read_keys(_load(text))
    except TokenError as error:
        raise KeySetError(str(error)) from None


def read_keys(document: object) -> tuple[Key, ...]:
    """The keys of a key set that was parsed; raises as `parse_keys`."""
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise KeySetError(f"it has no list of at most {KEYS_MAX} keys")
    found = [_key(one) for one in listed if isinstance(one, dict)]
    keys = tuple(one for one in found if one is not None)
    if not keys:
        raise KeySetError(f"it has no public key for any of {', '.join(ALGORITHMS)}")
    return keys


def _key(jwk: Mapping[str, Any]) -> Key | None:
    if "d" in jwk or jwk.get("kty") == "oct":
        # Whoever can read the set could sign: such a set proves nothing about anybody.
        raise KeySetError("it has a private key in it")
    key_id = jwk.get("kid")
    try:
        algorithm, public = _public(jwk)
        is_fit = (
            jwk.get("use", "sig") == "sig"
            and "verify" in jwk.get("key_ops", ["verify"])
            and jwk.get("alg", algorithm) == algorithm
            and (key_id is None or (isinstance(key_id, str) and len(key_id) <= KID_MAX))
        )
    except (KeyError, TypeError, ValueError, UnsupportedAlgorithm):
        return None
    return Key(key_id, algorithm, public) if is_fit else None


def _public(jwk: Mapping[str, Any]) -> tuple[str, PublicKey]:
    kind = jwk["kty"], jwk.get("crv")
    if kind[0] == "RSA":
        modulus = int.from_bytes(_bytes(jwk["n"]), "big")
        if not RSA_BITS_LEAST <= modulus.bit_length() <= RSA_BITS_MOST:
            raise ValueError(modulus.bit_length())
        exponent = int.from_bytes(_bytes(jwk["e"]), "big")
        return "RS256", rsa.RSAPublicNumbers(exponent, modulus).public_key()
    if kind == ("EC", "P-256"):
        x, y = (int.from_bytes(_bytes(jwk[name]), "big") for name in ("x", "y"))
        return "ES256", ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    if kind == ("OKP", "Ed25519"):
        return "EdDSA", ed25519.Ed25519PublicKey.from_public_bytes(_bytes(jwk["x"]))
    raise ValueError(kind)


# --- text -----------------------------------------------------------------------------------------


def _object(part: str) -> dict[str, Any]:
    document = _load(_bytes(part))
    if not isinstance(document, dict):
        raise TokenError("a part of it is no JSON object")
    return document


def _bytes(part: object) -> bytes:
    """base64url without padding, in the one way that there is to write these bytes."""
    if not isinstance(part, str) or not _PART.fullmatch(part):
        raise TokenError("a part of it is not base64url")
    try:
        data = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
    except binascii.Error:
        raise TokenError("a part of it is not base64url") from None
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != part:
        raise TokenError("a part of it is not canonical base64url")
    return data


def _load(text: str | bytes) -> object:
    try:
        text = text if isinstance(text, str) else text.decode("utf-8")
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except TokenError:
        raise
    except (ValueError, RecursionError):
        raise TokenError("a part of it is no JSON") from None


def _unique(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise TokenError("it says something twice")
    return values


def _no_number(text: str) -> NoReturn:
    raise TokenError(f"{text} is no JSON")


def number(value: object) -> float | None:
    """A claim that is a moment or a length, in seconds; None when it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) else None
