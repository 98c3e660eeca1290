"""The token between gateway and daemon: derived, never stored.

The webhook gives each pod a fresh nonce and puts only the digest of the token into the container.
Who reads the pod's spec cannot call the daemon; a pod cannot compute another's token; nobody has to
keep ten thousand secrets. Pure; standard library only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

_PURPOSE = b"sandman daemon token v1"
"""Separates this use of the key from every other, so that no output can be passed off as another's."""


def daemon_token(key: bytes, namespace: str, nonce: str) -> str:
    """The bearer token for the daemon of the pod with this nonce (URL-safe text, 43 characters)."""
    message = b"\0".join((_PURPOSE, namespace.encode(), nonce.encode()))
    digest = hmac.digest(key, message, hashlib.sha256)
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def container_nonce(nonce: str, container: str) -> str:
    """The nonce of one container of a workload's pod, where several may have a daemon: what takes the
    port of one of them is told the token of that one alone."""
    return f"{nonce}/{container}"


def token_digest(token: str) -> str:
    """What the container is given: hex SHA-256 of the token."""
    return hashlib.sha256(token.encode()).hexdigest()
