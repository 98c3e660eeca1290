"""Callers of the scale bed: their keys, whom they trust, and what a gateway tells them of the pool."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway import tokens
from sandman import names
from tests.cluster.bed.kube import kubectl
from tests.cluster.bed.shell import wait_until
from tests.scale import model

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.bed.model import Bed

CERTIFICATE_S = 60.0


def make(bed: Bed) -> dict[str, str]:
    """A key for each tenant."""
    keys = {name: tokens.make_api_key(name) for name in model.TENANTS}
    entries = {
        name: base64.b64encode(
            tokens.api_key_entry(key, name, tokens.check_share(model.WEIGHTS[name]))
        ).decode()
        for name, key in keys.items()
    }
    secret = ["secret", names.API_KEYS_SECRET, "-n", names.SYSTEM_NAMESPACE]
    patch = json.dumps({"data": entries})
    kubectl(bed, "patch", *secret, "--type=merge", "--patch-file=/dev/stdin", input=patch)
    return keys


def write_ca(bed: Bed) -> Path:
    """The gateways' authority, once they have made it."""
    found: dict[str, str] = {}
    query = ["get", "secret", names.GATEWAY_TLS_SECRET, "-n", names.SYSTEM_NAMESPACE, "-o", "json"]

    def is_there() -> bool:
        found.update(json.loads(kubectl(bed, *query)).get("data") or {})
        return "ca.crt" in found

    wait_until("the gateways have a certificate", is_there, CERTIFICATE_S, 0.2)
    path = bed.state / "gateway-ca.crt"
    path.write_bytes(base64.b64decode(found["ca.crt"]))
    return path


def free(target: model.Target, url: str) -> int:
    """Placeholders whose daemons a gateway has met: those that it would hand out; 0 while it does not answer."""
    place = urlsplit(url)
    context = ssl.create_default_context(cafile=target.ca)
    connection = http.client.HTTPSConnection(
        place.hostname or "", place.port, timeout=20, context=context
    )
    try:
        connection.request("GET", place.path)
        text = connection.getresponse().read().decode()
    except OSError:
        return 0
    finally:
        connection.close()
    return _value(text, f'sandman_pool_vetted{{pool="{target.pool}"}}')


def _value(exposition: str, series: str) -> int:
    """Of one series of a page of metrics; 0 where it is not there."""
    found = [line for line in exposition.splitlines() if line.startswith(f"{series} ")]
    return int(float(found[0].rpartition(" ")[2])) if found else 0
