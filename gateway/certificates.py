"""The gateway's own certificate: from its Secret, made there when the operator gave none.

An operator's certificate is used as it is and reloaded when it changes. One that was made here comes
with its authority's key beside it (`ca.key`), by which it is told apart and renewed. Replicas race
for the write with resourceVersion; whoever loses takes what the other wrote.

Another authority is made where that key was emptied, and stands beside the old one in `ca.crt`: callers and
replicas trust both before anybody serves a leaf of it, which is made when the old leaf is taken away.
"""

from __future__ import annotations

import base64
import dataclasses
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import structlog
import trio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sandman import names
from sandman.service import kube, pki, tls

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from datetime import datetime

log = structlog.get_logger()

CA_DAYS = 3650
"""Ten years: callers pin this authority in their configuration, so it outlives a deployment."""
LEAF_DAYS = 397
"""The longest that common TLS clients accept of any authority."""
RENEW_BEFORE = timedelta(days=30)
LOOK_S = 30.0
"""Seconds between two looks at the Secret: a certificate that was changed is served within it."""
RETRY_S = 2.0
OLD_MAX = 4
"""Authorities of before that `ca.crt` keeps: changes in a row must not let it grow."""

CERTIFICATE, KEY, CA, CA_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """What the Secret holds."""

    pair: pki.Pair
    authority: bytes
    """What verifies the certificate: the Secret's `ca.crt`, else the certificate itself. ASCII."""


def read(data: Mapping[str, bytes]) -> Found | None:
    """The certificate in the Secret's entries; None when there is none that could be served."""
    pair = pki.Pair(data.get(CERTIFICATE, b""), data.get(KEY, b""))
    if not _can_be_served(pair):
        return None
    return Found(pair, _bundle(data.get(CA, b"")) or _bundle(pair.certificate))


def _can_be_served(pair: pki.Pair) -> bool:
    """Whether TLS takes it, of whatever algorithm: operators' keys are RSA as often as not."""
    if b"ENCRYPTED" in pair.key:
        # OpenSSL would ask a terminal for the password, and wait.
        return False
    try:
        tls.server_context(pair.certificate, pair.key)
    except (OSError, ValueError):
        return False
    return True


def _bundle(pem: bytes) -> bytes:
    """The certificates alone, without what people write between them."""
    try:
        found = x509.load_pem_x509_certificates(pem)
    except ValueError:
        return b""
    return b"".join(one.public_bytes(Encoding.PEM) for one in found)


def _names(certificate: bytes) -> set[str]:
    """DNS names that the certificate is for."""
    leaf = x509.load_pem_x509_certificate(certificate)
    try:
        value = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return set(value.get_values_for_type(x509.DNSName))


def wanted(data: Mapping[str, bytes], name: str, now: datetime) -> dict[str, bytes] | None:
    """The entries that the Secret should hold instead; None when they are well as they are.

    An operator's certificate (no `ca.key` beside it) is never replaced, not even when it has ended:
    that is theirs to know.
    """
    ours = CA_KEY in data or not data.get(CERTIFICATE)
    if not ours:
        return None
    authority, trusted = _authority(data, now)
    better = {**data, CA: trusted, CA_KEY: authority.key}
    if not _is_well(read(better), name, now):
        leaf = _leaf(authority, name, now)
        better |= {CERTIFICATE: leaf.certificate, KEY: leaf.key}
    return None if better == data else better


def _authority(data: Mapping[str, bytes], now: datetime) -> tuple[pki.Pair, bytes]:
    """Who signs leaves, and what is to be trusted: its certificate first, then those of before."""
    trusted = data.get(CA, b"")
    found = pki.Pair(trusted, data.get(CA_KEY, b""))
    if pki.belongs(found):
        return found, trusted
    made = pki.make_ca("Sandman gateway", now, CA_DAYS)
    old = pki.authorities(trusted, now)[:OLD_MAX]
    return made, b"".join((made.certificate, *old))


def _leaf(authority: pki.Pair, name: str, now: datetime) -> pki.Pair:
    short = name.removesuffix(".svc")
    return pki.issue(
        authority,
        [name, f"{name}.cluster.local", short, "localhost"],
        ["127.0.0.1"],
        now,
        LEAF_DAYS,
    )


def _is_well(found: Found | None, name: str, now: datetime) -> bool:
    if found is None or name not in _names(found.pair.certificate):
        return False
    return not pki.needs_renewal(found.pair.certificate, now, RENEW_BEFORE)


class Certificates:
    """Keeps the served certificate in step with the Secret.

    Args:
        api: the API server.
        namespace: where the Secret is.
        name: DNS name that callers and replicas verify.
        clock: the time of day.
    """

    def __init__(
        self, api: kube.Kube, namespace: str, name: str, clock: Callable[[], datetime]
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._clock = clock
        self._found: Found | None = None
        self._served: tls.Certificate | None = None

    def __repr__(self) -> str:
        return f"<Certificates {self._name} served={self._served is not None}>"

    def current(self) -> ssl.SSLContext:
        """The context for a new connection; only after `run` has started."""
        if self._served is None:
            raise RuntimeError("there is no certificate yet")
        return self._served.current()

    @property
    def authority(self) -> bytes:
        """PEM of what verifies the gateways' certificate."""
        return b"" if self._found is None else self._found.authority

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look again and again; started once there is a certificate to serve."""
        is_started = False
        while True:
            try:
                await self.look()
            except (kube.KubeError, OSError) as error:
                log.warning("the certificate's Secret could not be used", error=str(error))
            if self._served is not None and not is_started:
                is_started = True
                task_status.started()
            await trio.sleep(LOOK_S if is_started else RETRY_S)

    async def look(self) -> None:
        """Read the Secret once; fill or renew it where that is ours to do; serve what it holds.

        Raises:
            KubeError: the API server could not be read or written.
        """
        secrets = kube.as_raw(kube.SECRETS)
        raw = await self._api.get(secrets, names.GATEWAY_TLS_SECRET, namespace=self._namespace)
        data = _decode(raw)
        better = wanted(data, self._name, self._clock())
        if better is not None:
            try:
                raw = await self._api.replace(
                    secrets,
                    names.GATEWAY_TLS_SECRET,
                    {**raw, "data": _encode(better)},
                    namespace=self._namespace,
                )
                log.info("certificate written", name=self._name)
            except kube.ConflictError:
                raw = await self._api.get(
                    secrets, names.GATEWAY_TLS_SECRET, namespace=self._namespace
                )
        self._serve(read(_decode(raw)))

    def _serve(self, found: Found | None) -> None:
        if found is None:
            log.warning("the Secret holds no usable certificate", secret=names.GATEWAY_TLS_SECRET)
        elif found != self._found:
            if self._served is None:
                self._served = tls.Certificate(found.pair.certificate, found.pair.key)
            else:
                self._served.replace(found.pair.certificate, found.pair.key)
            self._found = found


def _decode(raw: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: base64.b64decode(text) for name, text in (raw.get("data") or {}).items()}


def _encode(data: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in data.items()}
