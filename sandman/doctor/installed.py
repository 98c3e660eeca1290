"""Is everything there: the server's version, the programs, the webhook's configuration, certificates' dates."""

from __future__ import annotations

import base64
import binascii
import json
import re
import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sandman import names
from sandman.doctor.cluster import ClusterError
from sandman.doctor.findings import Finding, failure, ok, skipped, warning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sandman.doctor.cluster import Cluster

LEAST_MINOR = 33
"""Of Kubernetes 1.x: what the manifests use."""
SOON = timedelta(days=5)
"""A certificate that ends so soon was not renewed: that begins a week before its end."""
PROGRAMS = ("sandman-gateway", "sandman-webhook")
ABSENT = f"Sandman is not installed in this cluster: there is no namespace {names.SYSTEM_NAMESPACE}"
"""Nothing else has to be asked then."""


def server(cluster: Cluster) -> Iterator[Finding]:
    """Whether there is one, and new enough."""
    version = json.loads(cluster.raw("/version"))
    minor = re.match(r"\d+", str(version.get("minor", "")))
    told = version.get("gitVersion", "?")
    if minor is None or int(minor[0]) < LEAST_MINOR:
        yield failure(
            "API server", f"it is {told}", f"Sandman needs Kubernetes 1.{LEAST_MINOR} or newer"
        )
    else:
        yield ok("API server", f"it answers, version {told}")


def programs(cluster: Cluster) -> Iterator[Finding]:
    """Whether gateway and webhook run, and as often as they should."""
    if not _is_there(cluster):
        yield failure("programs", ABSENT, "docs/quickstart-cluster.md is the way to it")
        return
    for name in PROGRAMS:
        found = cluster.get("-n", names.SYSTEM_NAMESPACE, "deployment", name)
        wanted = (found.get("spec") or {}).get("replicas", 1)
        ready = (found.get("status") or {}).get("readyReplicas") or 0
        text = f"{ready} of {wanted} replicas of {name} are ready"
        advice = (
            f"kubectl -n {names.SYSTEM_NAMESPACE} describe pods -l app.kubernetes.io/name={name}"
        )
        if ready == 0:
            yield failure("programs", text, advice)
        elif ready < wanted or wanted < 2:
            yield warning("programs", text, f"one that is lost stops all; {advice}")
        else:
            yield ok("programs", text)


def _is_there(cluster: Cluster) -> bool:
    """Whoever may not look at the namespace itself is told by the programs."""
    try:
        cluster.get("namespace", names.SYSTEM_NAMESPACE)
    except ClusterError as error:
        return f'namespaces "{names.SYSTEM_NAMESPACE}" not found' not in str(error)
    return True


def configuration(cluster: Cluster) -> Iterator[Finding]:
    """Whether the API server knows of the webhook, and whom it trusts there."""
    found = cluster.get("mutatingwebhookconfiguration", names.WEBHOOK_CONFIGURATION)
    hooks = found.get("webhooks") or []
    if not hooks:
        yield failure("webhook", "its configuration has no entry", "apply the manifests again")
    for hook in hooks:
        yield _entry(hook)


def _entry(hook: dict[str, Any]) -> Finding:
    name = hook.get("name", "?")
    bundle = (hook.get("clientConfig") or {}).get("caBundle") or ""
    if not bundle:
        advice = "the webhook publishes it when it runs: see its logs (certificate_look_failed)"
        return failure("webhook", f"entry {name} has no caBundle", advice)
    try:
        authorities = _authorities(bundle)
    except (ValueError, ssl.SSLError) as error:
        advice = "take it away: the webhook publishes another within seconds"
        return failure("webhook", f"the caBundle of entry {name} cannot be read: {error}", advice)
    return ok("webhook", f"entry {name} trusts {len(authorities)} authorities")


def _authorities(bundle: str) -> list[Any]:
    try:
        text = base64.b64decode(bundle, validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None
    return ssl.create_default_context(cadata=text).get_ca_certs()


def certificate(
    cluster: Cluster, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Iterator[Finding]:
    """What the webhook itself says of its certificate: whether it is trusted, and for how long."""
    service = (
        f"/api/v1/namespaces/{names.SYSTEM_NAMESPACE}/services/https:sandman-webhook:443/proxy"
    )
    said = cluster.raw(f"{service}/readyz").strip()
    if said != "ok":
        yield failure("certificate", f"the webhook is not ready: {said}", "see its logs")
        return
    metric = re.search(
        r"^sandman_webhook_certificate_not_after_seconds (\S+)$",
        cluster.raw(f"{service}/metrics"),
        re.MULTILINE,
    )
    if metric is None:
        yield skipped("certificate", "the webhook does not say when its certificate ends")
        return
    yield dated(
        "certificate", "the webhook's", datetime.fromtimestamp(float(metric[1]), UTC), now()
    )


def dated(hop: str, whose: str, ends: datetime, now: datetime) -> Finding:
    """A certificate by its end."""
    text = f"{whose} certificate is good until {ends:%Y-%m-%d %H:%M} UTC"
    if ends <= now:
        return failure(hop, f"{whose} certificate ended at {ends:%Y-%m-%d %H:%M} UTC", "renew it")
    if ends - now < SOON:
        return warning(hop, text, "it should have been renewed by now: see the logs of who does it")
    return ok(hop, text)
