"""Every key and certificate is changed by the way that docs/operations.md has for it, all of them at once, while
callers of every kind work: not one call fails. At the end the new ones are in use and the old ones are worth nothing."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import pytest

from gateway import certificates, keysets
from sandman import apikeys, grants, names
from sandman.service import pki
from tests.cluster import admissions, faults
from tests.cluster.bed.shell import wait_until
from tests.cluster.calling import (
    SLOW_S,
    cli,
    client_of,
    replicas,
    soon,
    status,
    write_rules,
)
from tests.cluster.issuer import Site
from tests.cluster.load import Load
from tests.cluster.shop import pool_pod
from tests.fakes.issuers import Signer, entry, said_by_default

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cluster.deployed import Deployed

pytestmark = pytest.mark.slow

KEY = "rotation-test"
OVERLAP_S = 30.0
LAG_S = 40.0
"""In place of `signing.LAG_S`, which is generous: the webhook looks each 30 s."""
LOOK_S = certificates.LOOK_S + 5.0
"""Seconds until every gateway has read its certificate anew."""


class Scene(NamedTuple):
    """What a rotation works on."""

    sandman: Deployed
    load: Load
    folder: Path
    site: Site
    signers: list[Signer]
    """Of the issuer; the last one signs the callers' tokens."""
    admitted: admissions.Stream

    def rule(self, path: str) -> None:
        """The issuer's entry, with its keys at this path."""
        made = entry(
            jwks_url=self.site.url + path, ca=self.site.ca,
            callers={"ci": {"claims": {"sub": "ci"}, "tenant": "demo"}},
        )  # fmt: skip
        write_rules(self.sandman, **{"issuer.rotation": made})


def _jwt(signer: Signer) -> str:
    return signer.token(said_by_default(time.time()))


class Outcomes(NamedTuple):
    """What became of each rotation, and of the callers."""

    of: dict[str, Future[float]]
    load: Load
    admitted: admissions.Stream


@pytest.fixture(scope="module")
def outcomes(sandman: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    folder = tmp_path_factory.mktemp("rotation")
    token = folder / "token"
    cli(sandman, "keys", "new", KEY, "--tenant", "demo", "--token-file", str(token))
    signers = [Signer("ES256", "first")]
    with contextlib.ExitStack() as stack:
        stack.callback(cli, sandman, "keys", "revoke", KEY)
        stack.callback(write_rules, sandman)
        site = stack.enter_context(Site(sandman.bed.node_ip))
        site.serve(*signers)
        stream = admissions.Stream(sandman.bed, pool_pod("rotation"))
        callers = {
            "api key": lambda: sandman.installation.token,
            "rotated api key": lambda: token,
            "jwt": lambda: _jwt(signers[-1]),
        }
        load = Load(sandman, callers)
        scene = Scene(sandman, load, folder, site, signers, stream)
        scene.rule("/first")
        for known in (token.read_text().strip(), _jwt(signers[-1])):
            soon("all replicas know it", lambda one=known: _told(sandman, one) == {200})
        with stream, load, ThreadPoolExecutor(len(ROTATIONS)) as pool:
            begun = time.monotonic()
            done = {name: pool.submit(_timed, job, scene) for name, job in ROTATIONS.items()}
            for one in done.values():
                one.exception()
        spans = ", ".join(
            f"{name} {one.result():.0f} s" for name, one in done.items() if not one.exception()
        )
        print(f"\n{time.monotonic() - begun:.0f} s: {spans}\n{load.told()}")
        print(f"{stream.count} admissions, {len(stream.failures)} failed")
        yield Outcomes(done, load, stream)
    sandman.wait_nothing_leased(60)


def _timed(job: Callable[[Scene], None], scene: Scene) -> float:
    begun = time.monotonic()
    job(scene)
    return time.monotonic() - begun


def _told(sandman: Deployed, token: str, path: str = "/v1/sandboxes") -> set[int]:
    """What the replicas say to it, to one who trusts what callers are told to trust now."""
    with replicas(sandman) as all_of_them:
        return {status(one, token, path) for one in all_of_them}


# --- the rotations -------------------------------------------------------------------------------


def authority_of_the_gateways(scene: Scene) -> None:
    """Certificate and authority, in the three steps."""
    sandman, old = scene.sandman, _gateway_tls(scene.sandman)
    before = _leaves(sandman, old["ca.crt"])
    _patch_tls(sandman, {"ca.key": ""})
    count = old["ca.crt"].count(b"BEGIN")
    wait_until(
        "another authority is beside the old one",
        lambda: _gateway_tls(sandman)["ca.crt"].count(b"BEGIN") == count + 1,
        LOOK_S,
        1.0,
    )
    both = _gateway_tls(sandman)
    assert both["tls.crt"] == old["tls.crt"]
    [new, *_] = pki.authorities(both["ca.crt"], datetime.now(UTC))
    _tell_callers(sandman, both["ca.crt"])
    time.sleep(LOOK_S)
    assert _leaves(sandman, both["ca.crt"]) == before
    _patch_tls(sandman, {"tls.crt": None, "tls.key": None})

    def is_served() -> bool:
        return before.isdisjoint(_leaves(sandman, both["ca.crt"]))

    wait_until("every gateway serves a leaf of the new authority", is_served, 2 * LOOK_S, 1.0)
    _patch_tls(sandman, {"ca.crt": base64.b64encode(new).decode()})
    _tell_callers(sandman, new)
    now = _gateway_tls(sandman)
    assert now["ca.crt"] == new
    leaf = ssl.PEM_cert_to_DER_cert(now["tls.crt"].decode())
    assert _leaves(sandman, new) == {leaf}
    for address in _addresses(sandman):
        with pytest.raises(ssl.SSLCertVerificationError):
            _leaf(sandman, address, old["ca.crt"])


def _gateway_tls(sandman: Deployed) -> dict[str, bytes]:
    return _secret(sandman, names.GATEWAY_TLS_SECRET)


def _secret(sandman: Deployed, name: str) -> dict[str, bytes]:
    data = json.loads(faults.system(sandman, "get", "secret", name, "-o", "json"))["data"]
    return {key: base64.b64decode(value) for key, value in data.items()}


def _patch_tls(sandman: Deployed, data: dict[str, str | None]) -> None:
    patch = json.dumps({"data": data})
    faults.system(
        sandman, "patch", "secret", names.GATEWAY_TLS_SECRET, "--type", "merge", "-p", patch
    )


def _tell_callers(sandman: Deployed, authorities: bytes) -> None:
    """Their file, whole at any moment."""
    file = sandman.installation.ca
    fresh = file.with_suffix(".new")
    fresh.write_bytes(authorities)
    fresh.replace(file)


def _addresses(sandman: Deployed) -> list[str]:
    query = "jsonpath={.items[*].status.podIP}"
    label = ("-l", "app.kubernetes.io/name=sandman-gateway")
    return faults.system(sandman, "get", "pods", *label, "-o", query).split()


def _leaf(sandman: Deployed, address: str, authorities: bytes) -> bytes:
    """What this gateway serves to one who trusts these, DER.

    Raises:
        SSLCertVerificationError: it is of none of them, or for another name.
    """
    trust = ssl.create_default_context(cadata=authorities.decode())
    with (
        socket.create_connection((address, names.GATEWAY_PORT), timeout=10) as plain,
        trust.wrap_socket(plain, server_hostname=sandman.installation.server_name) as connection,
    ):
        served = connection.getpeercert(binary_form=True)
    assert served is not None
    return served


def _leaves(sandman: Deployed, authorities: bytes) -> set[bytes]:
    return {_leaf(sandman, one, authorities) for one in _addresses(sandman)}


def certificate_of_the_webhook(scene: Scene) -> None:
    """At once, by deleting the Secret. What takes a quarter of an hour, the end of the old authority, is brought
    forward."""
    bed = scene.sandman.bed
    wait_until(
        "no rotation is under way", lambda: "next-tls.crt" not in admissions.secret(bed), 150
    )
    old, published = admissions.secret(bed), admissions.bundle(bed)
    before = admissions.served(bed)
    assert _is_trusted(published, old["tls.crt"])
    faults.system(scene.sandman, "delete", "secret", names.WEBHOOK_TLS_SECRET)
    wait_until("there is another", lambda: admissions.is_whole(bed), 60, 1.0)
    new = admissions.secret(bed)["tls.crt"]
    assert new != old["tls.crt"]
    assert _is_trusted(admissions.bundle(bed), old["tls.crt"])
    der = ssl.PEM_cert_to_DER_cert(new.decode())
    wait_until("every replica serves it", lambda: set(admissions.served(bed)) == {der}, 120, 1.0)
    assert der not in before
    past = base64.b64encode(b"2026-01-01T00:00:00+00:00").decode()
    faults.system(
        scene.sandman, "patch", "secret", names.WEBHOOK_TLS_SECRET, "--type", "merge",
        "-p", json.dumps({"data": {"previous-until": past}}),
    )  # fmt: skip
    wait_until(
        "the old authority is gone",
        lambda: not _is_trusted(admissions.bundle(bed), old["tls.crt"]),
        60,
        1.0,
    )
    assert _is_trusted(admissions.bundle(bed), new)


def _is_trusted(bundle: bytes, leaf: bytes) -> bool:
    return pki.verifies(bundle, leaf, admissions.NAMES.dns[0], datetime.now(UTC))


def api_key(scene: Scene) -> None:
    """By the command, into a file that takes the place of the one that callers read."""
    sandman, token, new = scene.sandman, scene.folder / "token", scene.folder / "new"
    old, digest = token.read_text().strip(), _entry(sandman)["sha256"]
    cli(
        sandman, "keys", "rotate", KEY, "--overlap", f"{OVERLAP_S:.0f}s", "--token-file", str(new)
    )  # fmt: skip
    for one in (old, new.read_text().strip()):
        assert _told(sandman, one) == {200}
    new.replace(token)
    ends = apikeys.read_moment(_entry(sandman)["previous"]["until"])
    time.sleep(max(0.0, ends - time.time()) + 1)
    assert _told(sandman, old) == {401}
    assert _told(sandman, token.read_text().strip()) == {200}
    assert _entry(sandman)["sha256"] != digest
    assert apikeys.digest(token.read_text().strip()) == _entry(sandman)["sha256"]


def _entry(sandman: Deployed) -> dict:
    return json.loads(_secret(sandman, names.API_KEYS_SECRET)[KEY])


def keys_of_the_issuer(scene: Scene) -> None:
    """The issuer adds a key, signs with it, takes the old one away; and its address is changed, so that the old one
    is refused at once and not within ten minutes."""
    sandman, site = scene.sandman, scene.site
    old, new = scene.signers[0], Signer("ES256", "second")
    before = len(site.asked)
    site.serve(old, new)
    scene.signers.append(new)
    wait_until("it was asked for the new key", lambda: len(site.asked) > before, SLOW_S, 1.0)
    assert _told(sandman, _jwt(old)) == {200}
    time.sleep(keysets.LEAST_S)  # who was told to come again came again
    site.serve(new)
    scene.rule("/second")
    token = _jwt(old)
    soon("the old key is refused", lambda: _told(sandman, token) == {401})
    assert _told(sandman, _jwt(new)) == {200}
    assert "/second" in site.asked


def signing_keys(scene: Scene) -> None:
    """Of daemons' and sandboxes' tokens: two are good at a time, and the old one lives as long as a free placeholder
    that knows no other."""
    sandman, load = scene.sandman, scene.load
    ring = _secret(sandman, names.KEYS_SECRET)
    old = ring["current"].decode()
    veteran = (load.veteran.info.token, f"/v1/sandboxes/{load.veteran.id}")
    cli(sandman, "signing-keys", "rotate", "--settle", "10s")
    switched = time.monotonic()
    new = _secret(sandman, names.KEYS_SECRET)["current"].decode()
    assert new != old
    load.exchange()  # placeholders of before are claimed after: their daemons know the old key's token alone
    cli(sandman, "signing-keys", "prune", lag_s=LAG_S)
    assert _states(sandman)[new] == "current"
    assert _states(sandman)[old] == "needed"
    assert _told(sandman, *veteran) == {200}
    time.sleep(max(0.0, switched + LAG_S + 2 - time.monotonic()))
    sandman.kubectl("rollout", "restart", "deployment", "-l", names.LABEL_POOL)
    load.retire()
    soon("no pod needs the old key", lambda: _states(sandman)[old] == "unused", 120)
    cli(sandman, "signing-keys", "prune", lag_s=LAG_S)
    assert old not in _states(sandman)
    soon("the old key's token is refused", lambda: _told(sandman, *veteran) == {401})
    load.exchange()
    with client_of(sandman, sandman.installation.token) as client:
        box = client.create(wait_s=120)
        pod = faults.document(sandman, faults.pod_of(box.id))
        own = f"/v1/sandboxes/{box.id}"
        assert pod["metadata"]["annotations"][names.ANNOTATION_KEY_ID] == new
        keys = _secret(sandman, names.KEYS_SECRET)
        assert _asked(pod, keys[f"daemon-{new}"]) == 200
        assert _asked(pod, ring[f"daemon-{old}"]) == 401
        assert _told(sandman, box.info.token, own) == {200}
        box.release()


def _states(sandman: Deployed) -> dict[str, str]:
    shown = json.loads(cli(sandman, "signing-keys", "list", "--json", lag_s=LAG_S))
    return {one["id"]: one["state"] for one in shown}


def _asked(pod: dict, key: bytes) -> int:
    """What the pod's daemon says to a token that this key makes."""
    nonce = pod["metadata"]["annotations"][names.ANNOTATION_NONCE]
    token = grants.daemon_token(key, names.SANDBOX_NAMESPACE, nonce)
    connection = http.client.HTTPConnection(pod["status"]["podIP"], names.DAEMON_PORT, timeout=10)
    try:
        connection.request("GET", "/v1/info", headers={"Authorization": f"Bearer {token}"})
        return connection.getresponse().status
    finally:
        connection.close()


ROTATIONS: dict[str, Callable[[Scene], None]] = {
    one.__name__: one
    for one in (
        authority_of_the_gateways, certificate_of_the_webhook, api_key, keys_of_the_issuer, signing_keys,
    )
}  # fmt: skip


# --- what came of it -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROTATIONS)
def test_the_new_one_is_in_use_and_the_old_one_refused(outcomes: Outcomes, name: str) -> None:
    outcomes.of[name].result()


def test_no_call_failed(outcomes: Outcomes) -> None:
    assert outcomes.load.failures == []
    assert outcomes.load.calls.total() > 300
    assert outcomes.load.lines > 60
    assert set(outcomes.load.rounds) == {"api key", "rotated api key", "jwt"}


def test_no_admission_failed(outcomes: Outcomes) -> None:
    assert outcomes.admitted.failures == []
    assert outcomes.admitted.count > 100
