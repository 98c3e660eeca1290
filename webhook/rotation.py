"""The life of the serving certificate, decided: what the Secret should hold and what be published.

    empty or broken ──▶ current ──▶ current + next ──▶ current + previous ──▶ current …
                             published: both CAs        published: both CAs

Each leaf has an authority of its own, whose key is thrown away once it has signed: there is no CA
key to steal, and leaf and authority rotate as one. A client may see the published bundle late and a
replica may read the Secret late, so a leaf is served only once its authority has been published for
a while, and an authority is dropped only when every replica has had time to leave its leaf. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sandman.service import pki

if TYPE_CHECKING:
    from collections.abc import Mapping

VALID_DAYS = 90
"""Days that a leaf and its authority are valid: what public authorities give."""
RENEW_BEFORE = timedelta(days=7)
"""A rotation starts so long before the end: a week of an API server that refuses writes is survived."""
SETTLE = timedelta(seconds=60)
"""A new authority is published for so long before its leaf is served. API servers see the change by
their own watch, usually within a second; a minute covers one that is catching up."""
RETIRE = timedelta(minutes=15)
"""An authority is published for so long after its leaf was replaced: the replicas that have not read
the Secret since then are no longer ready."""
MAX_PREVIOUS = 16
"""Authorities kept beside those in use: repairs in a row must not let the bundle grow."""

_CURRENT = ("tls.crt", "tls.key", "ca.crt")
_NEXT = ("next-tls.crt", "next-tls.key", "next-ca.crt")
_PREVIOUS = "previous-ca.crt"
_UNTIL = "previous-until"


@dataclass(frozen=True, slots=True)
class Names:
    """Whom the certificate speaks for; the first name is what the API server asks for."""

    dns: tuple[str, ...]
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Identity:
    """A leaf with its key, and the authority that signed it."""

    leaf: pki.Pair
    authority: bytes


@dataclass(frozen=True, slots=True)
class State:
    """What the Secret holds. `previous` is PEM, `until` the moment from which it may be dropped."""

    current: Identity | None = None
    next: Identity | None = None
    previous: bytes = b""
    until: datetime | None = None


def make(names: Names, now: datetime) -> Identity:
    """A new leaf and the authority that signed it and will sign nothing more."""
    authority = pki.make_ca(f"{names.dns[0]} {now:%Y-%m-%d}", now, VALID_DAYS)
    leaf = pki.issue(authority, names.dns, names.addresses, now, VALID_DAYS)
    return Identity(leaf, authority.certificate)


def parse(data: Mapping[str, bytes], names: Names, now: datetime) -> State:
    """What the Secret's entries mean now. A part that is missing, broken or expired is absent."""
    previous = b"".join(pki.authorities(data.get(_PREVIOUS, b""), now))
    return State(
        current=_identity(data, _CURRENT, names, now),
        next=_identity(data, _NEXT, names, now),
        previous=previous,
        until=_moment(data.get(_UNTIL, b"")) if previous else None,
    )


def render(state: State) -> dict[str, bytes]:
    """The Secret's entries."""
    entries: dict[str, bytes] = {}
    for keys, identity in ((_CURRENT, state.current), (_NEXT, state.next)):
        if identity is not None:
            parts = (identity.leaf.certificate, identity.leaf.key, identity.authority)
            entries |= dict(zip(keys, parts, strict=True))
    if state.previous:
        entries[_PREVIOUS] = state.previous
        entries[_UNTIL] = (state.until.isoformat() if state.until else "").encode()
    return entries


def bundle(state: State) -> bytes:
    """What the API server must trust: every authority whose leaf some replica may be serving."""
    found = [one.authority for one in (state.current, state.next) if one is not None]
    # The order does not depend on the phase, so that a switch alone publishes nothing new.
    return b"".join(sorted({*found, *_split(state.previous)}))


def advance(
    state: State, published: bytes, names: Names, now: datetime, *, next_is_settled: bool
) -> State:
    """The state that the Secret should have; the same value when all is well.

    Args:
        state: what it has.
        published: the bundle in the live configuration, which other replicas' leaves may need.
        names: what certificates are made for.
        now: the time.
        next_is_settled: the next leaf's authority has been published for SETTLE.
    """
    if state.current is None:
        # Broken or first start. Replicas may still serve the leaf that was here: keep its authority.
        kept = pki.authorities(published, now)[-MAX_PREVIOUS:]
        return State(make(names, now), None, b"".join(kept), now + RETIRE if kept else None)
    if state.next is not None and next_is_settled:
        return State(state.next, None, state.current.authority, now + RETIRE)
    if state.previous and (state.until is None or now >= state.until):
        return replace(state, previous=b"", until=None)
    is_at_rest = state.next is None and not state.previous
    if is_at_rest and pki.needs_renewal(state.current.leaf.certificate, now, RENEW_BEFORE):
        return replace(state, next=make(names, now))
    return state


def trusts(published: bytes, identity: Identity, names: Names, now: datetime) -> bool:
    """Whether an API server with that bundle accepts the leaf."""
    return pki.verifies(published, identity.leaf.certificate, names.dns[0], now)


def _identity(
    data: Mapping[str, bytes], keys: tuple[str, str, str], names: Names, now: datetime
) -> Identity | None:
    certificate, key, authority = (data.get(name, b"") for name in keys)
    identity = Identity(pki.Pair(certificate, key), authority)
    speaks_for_all = all(
        pki.verifies(authority, certificate, name, now) for name in (*names.dns, *names.addresses)
    )
    return identity if speaks_for_all and pki.belongs(identity.leaf) else None


def _split(bundle_pem: bytes) -> tuple[bytes, ...]:
    return pki.authorities(bundle_pem, datetime.min.replace(tzinfo=UTC))


def _moment(text: bytes) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text.decode("ascii", "replace"))
    except ValueError:
        return None
    return moment if moment.tzinfo else None
