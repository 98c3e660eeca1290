"""Nothing that happens to the webhook or its certificate stops users' workloads, or lets a pool's pod through
without the daemon."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from sandman import names
from sandman.service import pki
from tests.cluster import admissions, services
from tests.cluster.admissions import Api, Stream
from tests.cluster.bed import kubectl
from tests.cluster.bed.shell import wait_until
from tests.cluster.shop import Shop, is_injected, nginx, opened, pool_pod, serves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from tests.cluster.bed import Bed
    from tests.cluster.deployed import Deployed

Json = dict[str, Any]
SYSTEM = ("-n", names.SYSTEM_NAMESPACE)
BURST = 300
AT_ONCE = int(os.environ.get("SANDMAN_TEST_AT_ONCE", "8"))
"""Connections that make them. With 16 the bar was kept beside other work, with 30 it was not."""
LATER_S = 0.1
"""Seconds between two pods of the burst's second half, which lasts about as long as the restart."""
LIMIT_S = 2.5
"""An entry's own limit is 3 s: nothing of a burst comes near it."""
ADMISSION_S = 0.1
"""The promise: 99 of 100 admissions within so many seconds."""
POOL_ENTRY = "pods.sandman.dev"


@pytest.fixture(scope="module")
def shop(sandman: Deployed) -> Iterator[Shop]:
    services.publish(sandman.bed)
    with opened(sandman, "sandman-test-outages") as made:
        yield made


def test_a_rotation_fails_no_admission(rotating: Future[Stream]) -> None:
    """It began before the tests of workloads; each of those is an admission during it, too."""
    stream = rotating.result(timeout=400)
    print(f"\n{stream.count} admissions during the rotation, {len(stream.failures)} failed")
    assert stream.failures == []
    assert stream.count > 50


# --- a burst -------------------------------------------------------------------------------------


def test_a_burst_of_pool_pods_while_both_replicas_restart(shop: Shop) -> None:
    bed = shop.sandman.bed
    with _room(bed), _measured(bed):
        restart = threading.Thread(target=_restart_webhook, args=(bed,))
        restart.start()
        made = _burst(bed)
        restart.join()
        pods = _made(bed)
    # Refused is as good as made with the daemon; made without it is what must not be.
    assert [one["metadata"]["name"] for one in pods if not is_injected(one)] == []
    assert len(pods) == made >= BURST * 0.9


def test_a_pool_that_grows_by_hundreds_at_once_while_both_replicas_restart(shop: Shop) -> None:
    """By one write; this bed's controller manager then makes up to 128 side by side, within a second. How long
    each admission takes is then a matter of what else the API server does on two cores."""
    bed = shop.sandman.bed
    with _room(bed), _measured(bed, bar_s=LIMIT_S):
        kubectl(bed, "apply", "-f", "-", input=json.dumps(_replicas(BURST)))
        wait_until("the middle of the burst", lambda: len(_made(bed)) >= BURST // 5, 60, 0.2)
        _restart_webhook(bed)
        wait_until("all of the burst", lambda: len(_made(bed)) == BURST, 120, 1)
        pods = _made(bed)
    assert [one["metadata"]["name"] for one in pods if not is_injected(one)] == []


@contextlib.contextmanager
def _measured(bed: Bed, bar_s: float = ADMISSION_S) -> Iterator[None]:
    """What the API server measured of the pools' entry meanwhile, a stream of dry runs among it."""
    before = admissions.histogram(bed, POOL_ENTRY)
    with Stream(bed, pool_pod("beside")) as stream:
        yield
    after = admissions.histogram(bed, POOL_ENTRY)
    p99 = admissions.quantile(before, after, 0.99)
    since = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    print(
        f"\n{stream.count} admissions beside it, {len(stream.failures)} refused; p99 ≤ {p99 * 1000:.0f} ms; "
        "within so many seconds: " + ", ".join(f"{one:g}: {since[one]:.0f}" for one in since)
    )
    assert p99 <= bar_s


def _burst(bed: Bed) -> int:
    """How many were made: half as fast as AT_ONCE connections take them, half while the replicas change."""

    def make(first: int) -> int:
        made = 0
        with Api(bed) as api:
            for index in range(first, BURST, AT_ONCE):
                if index >= BURST // 2:
                    time.sleep(LATER_S * AT_ONCE)
                made += api.create(pool_pod(f"burst-{index}"), dry_run=False).object is not None
        return made

    with ThreadPoolExecutor(AT_ONCE) as threads:
        return sum(threads.map(make, range(AT_ONCE)))


def _replicas(count: int) -> Json:
    """As many of them, by one write."""
    pod = pool_pod("burst")
    template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    selector = {"matchLabels": {names.LABEL_POOL: "burst"}}
    return {
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": {"name": "burst", "namespace": names.SANDBOX_NAMESPACE},
        "spec": {"replicas": count, "selector": selector, "template": template},
    }  # fmt: skip


def _made(bed: Bed) -> list[Json]:
    found: list[Json] = json.loads(kubectl(bed, *_of_burst("get"), "-o", "json"))["items"]
    return found


def _restart_webhook(bed: Bed) -> None:
    kubectl(bed, *SYSTEM, "rollout", "restart", "deployment", "sandman-webhook")
    kubectl(bed, *SYSTEM, "rollout", "status", "deployment", "sandman-webhook", "--timeout=180s")


def _of_burst(verb: str) -> tuple[str, ...]:
    return ("-n", names.SANDBOX_NAMESPACE, verb, "pods", "-l", f"{names.LABEL_POOL}=burst")


@contextlib.contextmanager
def _room(bed: Bed) -> Iterator[None]:
    """Quota for a burst, and the burst's end."""
    quota = (
        "-n",
        names.SANDBOX_NAMESPACE,
        "patch",
        "resourcequota",
        "sandman-pods",
        "--type=merge",
    )
    kubectl(bed, *quota, "-p", '{"spec":{"hard":{"count/pods":"1000"}}}')
    try:
        yield
    finally:
        path = f"/api/v1/namespaces/{names.SANDBOX_NAMESPACE}/pods"
        query = f"?labelSelector={names.LABEL_POOL}%3Dburst&gracePeriodSeconds=0"
        # What keeps their number first, or it makes them anew.
        gone = ("delete", "replicaset", "burst", "--cascade=orphan", "--ignore-not-found")
        kubectl(bed, "-n", names.SANDBOX_NAMESPACE, *gone)
        with Api(bed) as api:
            assert api.call("DELETE", path + query).status == 200
        kubectl(bed, *quota, "-p", '{"spec":{"hard":{"count/pods":"300"}}}')


# --- certificates --------------------------------------------------------------------------------


def _overwrite(bed: Bed) -> None:
    wrong = base64.b64encode(pki.make_ca("wrong", datetime.now(UTC), 9).certificate).decode()
    steps = [
        {"op": "replace", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": wrong}
        for index in range(2)
    ]
    hook = ("patch", "mutatingwebhookconfiguration", names.WEBHOOK_CONFIGURATION, "--type=json")
    kubectl(bed, *hook, "-p", json.dumps(steps))


def _delete_secret(bed: Bed) -> None:
    kubectl(bed, *SYSTEM, "delete", "secret", names.WEBHOOK_TLS_SECRET)


BREAKAGES: dict[str, Callable[[Bed], object]] = {
    "secret deleted": _delete_secret,
    "leaf expired": lambda bed: admissions.put_certificate(bed, days=-1),
    "bundle overwritten": _overwrite,
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_certificate_that_was_broken_is_healed_within_a_minute(shop: Shop, breakage: str) -> None:
    bed = shop.sandman.bed
    wait_until("all is well before", lambda: admissions.is_whole(bed), 90, 1)
    BREAKAGES[breakage](bed)
    started = time.monotonic()

    with Api(bed) as api:

        def is_healed() -> bool:
            return api.create(pool_pod("healed")).object is not None and admissions.is_whole(bed)

        wait_until(f"healed after: {breakage}", is_healed, 60, 0.5)
    print(f"\n{breakage}: healed in {time.monotonic() - started:.1f} s")


# --- away ----------------------------------------------------------------------------------------


def test_while_it_is_away_pools_wait_workloads_start_and_all_comes_back_by_itself(
    shop: Shop,
) -> None:
    """Both replicas are gone, and their certificate; then they start at once and make one."""
    bed = shop.sandman.bed
    kubectl(bed, *SYSTEM, "scale", "deployment", "sandman-webhook", "--replicas=0")
    webhook = ("pods", "-l", "app.kubernetes.io/name=sandman-webhook")
    kubectl(bed, *SYSTEM, "delete", *webhook, "--grace-period=1")
    try:
        with Api(bed) as api:
            refused = api.create(pool_pod("away"))
            _is_told_and_others_are_not(shop, api)
        assert refused.object is None
        assert POOL_ENTRY in refused.body["message"]
        shop.create(nginx(shop, "outage"))
        assert serves("nginx", shop.one_ready("outage", injected=False))
        _delete_secret(bed)
        # At the end: a ReplicaSet tries again after twice the time each time.
        _lose_a_placeholder(shop)
    finally:
        kubectl(bed, *SYSTEM, "scale", "deployment", "sandman-webhook", "--replicas=2")
        kubectl(
            bed, *SYSTEM, "rollout", "status", "deployment", "sandman-webhook", "--timeout=180s"
        )
    wait_until("there is one certificate", lambda: admissions.is_whole(bed), 60, 1)
    assert len(set(admissions.served(bed))) == 1
    with Api(bed) as api:
        assert [api.create(pool_pod("fresh")).status for _ in range(20)] == [201] * 20
    shop.kubectl("rollout", "restart", "deployment", "outage")
    assert serves("nginx", shop.one_ready("outage", injected=True))
    wait_until("the pool is whole again", lambda: _waiting(shop) >= _wanted(shop), 120, 0.5)


def _is_told_and_others_are_not(shop: Shop, api: Api) -> None:
    labelled = json.loads(json.dumps(nginx(shop, "told")["spec"]["template"]))
    labelled |= {"apiVersion": "v1", "kind": "Pod"}
    labelled["metadata"] |= {"name": "told", "namespace": shop.namespace}
    told = api.create(labelled)
    assert told.object is not None
    assert any("runs without the daemon" in one for one in told.warnings), told.warnings
    labelled["metadata"] |= {"namespace": "default", "labels": {}}
    elsewhere = api.create(labelled)
    assert elsewhere.object is not None
    assert elsewhere.warnings == ()


def _lose_a_placeholder(shop: Shop) -> None:
    """Its ReplicaSet cannot make another, and says why."""
    sandman, began = shop.sandman, datetime.now(UTC) - timedelta(seconds=1)
    query = ("get", "pods", "-l", f"{names.LABEL_POOL}=root,{names.LABEL_STATE}=free", "-o", "name")
    sandman.kubectl("delete", sandman.kubectl(*query).split()[0], "--wait=false")
    events = ("get", "events", "--field-selector=reason=FailedCreate", "-o", "json")

    def is_said() -> bool:
        found = json.loads(sandman.kubectl(*events))["items"]
        return any(
            f'failed calling webhook "{POOL_ENTRY}"' in one["message"]
            and datetime.fromisoformat(one["lastTimestamp"]) >= began
            for one in found
        )

    wait_until("the ReplicaSet says why", is_said, 60, 0.5)


def _root(shop: Shop) -> Json:
    [found] = json.loads(
        shop.sandman.kubectl("get", "deployments", "-l", f"{names.LABEL_POOL}=root", "-o", "json")
    )["items"]
    return found


def _waiting(shop: Shop) -> int:
    return int(_root(shop).get("status", {}).get("readyReplicas", 0))


def _wanted(shop: Shop) -> int:
    return int(_root(shop)["spec"]["replicas"])
