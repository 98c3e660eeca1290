"""The provider's calls, by the real client, to an API server that keeps state."""

from __future__ import annotations

import contextlib
import dataclasses

import msgspec
import pytest
from trio.testing import MockClock

from gateway import sizing
from gateway.model import Amounts, Assignment, Bounds, Broken, Ending, Instance, PoolSpec, Tier
from gateway.provider import BusyError, ClaimLostError, RefusedError, kubernetes, pods
from gateway.provider.kubernetes import KubernetesProvider
from sandman import names
from sandman.errors import (
    BadRequestError,
    DeletedError,
    ImageNotFoundError,
    InternalError,
    QuotaError,
    UnreachableError,
)
from sandman.service import kube
from tests.fakes.api_server import ApiServer
from tests.fakes.objects import (
    BASE,
    NAMESPACE,
    TASK,
    annotation,
    deployment,
    event,
    injected,
    placeholder,
    template,
)
from tests.unit.service.fake_api import Answer, status


@pytest.fixture
def hasty_clock():
    """Seconds of waiting pass fifty times as fast; sockets are real."""
    return MockClock(rate=50.0)


@contextlib.asynccontextmanager
async def provided():
    server = ApiServer()
    async with server.client() as api:
        yield server, KubernetesProvider(api, lambda: 1000.0), api


def assignment(**changes) -> Assignment:
    values = {
        "claim_id": "c1", "previous_boot_id": None, "tier": Tier.SWAP, "tenant": "acme",
        "image": TASK, "expires_at": 2000.0, "max_s": 100.0, "request": {},
    }  # fmt: skip
    return Assignment(**(values | changes))


async def free_one(server: ApiServer, api: kube.Kube, name: str = "p1") -> Instance:
    server.put("pods", placeholder(name))
    return pods.instance(await api.get(kube.PODS, name, namespace=NAMESPACE))


SPEC = PoolSpec(NAMESPACE, "root", BASE, swap=True, wanted=1, most=None, template=template())


async def test_a_claim_is_one_write_after_which_the_pod_says_whose_it_is():
    async with provided() as (server, provider, api):
        taken = await provider.claim(await free_one(server, api), assignment(run="r1", key="k"))
        assert (taken.state, taken.tenant, taken.run, taken.key, taken.claim_id, taken.image) == (
            names.STATE_LEASED, "acme", "r1", "k", "c1", TASK,
        )  # fmt: skip
        assert server.writes == [("PATCH", "pods", "p1")]
        assert provider.claim_writes == {"swap": 1}
        kept = server.named("pods", "p1")
        assert "ownerReferences" not in kept["metadata"]
        assert annotation(kept, names.ANNOTATION_LEASE) == {
            "expires_at": 2000.0, "max_s": 100.0, "start_s": 0.0,
        }  # fmt: skip


async def test_a_reserved_pod_is_prepared_and_then_claimed_once_more():
    async with provided() as (server, provider, api):
        wanted = assignment(reservation="r1", run="ahead")
        reserved = await provider.claim(await free_one(server, api), wanted)
        assert (reserved.state, reserved.tenant, reserved.reservation, reserved.tier) == (
            names.STATE_RESERVED, "acme", "r1", None,
        )  # fmt: skip
        assert "activeDeadlineSeconds" not in server.named("pods", "p1")["spec"]
        assert reserved.prepared is None
        ready = await provider.mark_prepared(reserved, "h1", "b1")
        assert (ready.prepared, ready.prepared_boot_id) == ("h1", "b1")
        taken = await provider.claim(ready, assignment(claim_id="c2", image="mirror/task:1"))
        assert (taken.state, taken.claim_id, taken.reservation, taken.run, taken.tier) == (
            names.STATE_LEASED, "c2", "r1", None, "swap",
        )  # fmt: skip
        # Whatever was asked for: another image now would be another, blank container.
        assert taken.image == TASK
        assert server.named("pods", "p1")["spec"]["activeDeadlineSeconds"] > 0
        assert [write[0] for write in server.writes] == ["PATCH"] * 3
        with pytest.raises(ClaimLostError):
            await provider.claim(ready, assignment(claim_id="c3"))


async def test_what_is_gone_or_leased_meanwhile_is_not_marked_as_prepared():
    async with provided() as (server, provider, api):
        reserved = await provider.claim(await free_one(server, api), assignment(reservation="r1"))
        await provider.claim(reserved, assignment(claim_id="c2"))
        with pytest.raises(DeletedError):
            await provider.mark_prepared(reserved, "h1", "b1")
        server.remove("pods", "p1")
        with pytest.raises(DeletedError):
            await provider.mark_prepared(reserved, "h1", "b1")
        server.faults = [lambda _seen: status(403, "Forbidden", "no right")]
        with pytest.raises(InternalError):
            await provider.mark_prepared(reserved, "h1", "b1")


async def test_a_pod_can_be_made_for_a_reservation():
    async with provided() as (server, provider, _api):
        made = await provider.create(SPEC, "cold-1", assignment(reservation="r1"))
        assert (made.state, made.reservation) == (names.STATE_RESERVED, "r1")
        assert "activeDeadlineSeconds" not in server.named("pods", "cold-1")["spec"]


async def test_a_pool_is_scaled_by_its_subresource():
    async with provided() as (server, provider, _api):
        server.put("deployments", deployment())
        spec = dataclasses.replace(SPEC, deployment="sandman-pool-root")
        await provider.scale(spec, 7)
        assert server.named("deployments", "sandman-pool-root")["spec"]["replicas"] == 7
        assert server.seen[-1].path.endswith("/deployments/sandman-pool-root/scale")
        server.faults = [lambda _seen: status(403, "Forbidden", "no right")]
        with pytest.raises(InternalError):
            await provider.scale(spec, 8)
        server.remove("deployments", "sandman-pool-root")
        await provider.scale(spec, 9)
        assert len(server.writes) == 1


RESOURCES = {
    "requests": {"cpu": "250m", "memory": "512Mi", "ephemeral-storage": "1Gi"},
    "limits": {"cpu": "2", "memory": "4Gi"},
}
GI = 1024**3
GROWN = Bounds(Amounts(500, GI), Amounts(4000, 8 * GI))


async def sized_one(server: ApiServer, api: kube.Kube, resources: dict = RESOURCES) -> Instance:
    document = placeholder("p1")
    document["spec"]["containers"][0]["resources"] = resources
    server.put("pods", document)
    return pods.instance(await api.get(kube.PODS, "p1", namespace=NAMESPACE))


async def test_a_resize_is_a_write_of_its_own_and_touches_nothing_else():
    async with provided() as (server, provider, api):
        taken = await provider.claim(await sized_one(server, api), assignment())
        assert taken.bounds == Bounds(Amounts(250, GI // 2), Amounts(2000, 4 * GI))
        await provider.resize(taken, GROWN)
        assert server.writes == [("PATCH", "pods", "p1"), ("PATCH", "pods/resize", "p1")]
        assert provider.claim_writes == {"swap": 2}
        [container] = server.named("pods", "p1")["spec"]["containers"]
        assert container["resources"] == {
            "requests": {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1Gi"},
            "limits": {"cpu": "4", "memory": "8Gi"},
        }
        assert container["image"] == TASK


async def test_a_resize_of_another_pod_of_that_name_is_refused():
    async with provided() as (server, provider, api):
        taken = await sized_one(server, api)
        for changes in ({"uid": "another"}, {"name": "gone"}):
            with pytest.raises(RefusedError):
                await provider.resize(dataclasses.replace(taken, **changes), GROWN)
        server.faults = [lambda _seen: status(503, "ServiceUnavailable")] * 10
        with pytest.raises(UnreachableError):
            await provider.resize(taken, GROWN)


async def test_a_new_pod_has_the_resources_that_were_asked_for():
    template_ = template()
    template_["spec"]["containers"][0]["resources"] = RESOURCES
    spec = dataclasses.replace(SPEC, template=template_, bounds=sizing.of_template(template_))
    async with provided() as (server, provider, _):
        wanted = assignment(tier=Tier.COLD, resources=Amounts(4000, 8 * GI))
        made = await provider.create(spec, "cold", wanted)
        assert made.bounds == GROWN
        [container] = server.named("pods", "cold")["spec"]["containers"]
        assert container["resources"]["requests"]["ephemeral-storage"] == "1Gi"
        assert RESOURCES["limits"] == {"cpu": "2", "memory": "4Gi"}, (
            "the pool's own template changed"
        )
        nothing = template()
        nothing["spec"]["containers"][0]["resources"] = None
        unsized = dataclasses.replace(SPEC, template=nothing)
        bare = await provider.create(unsized, "bare", assignment(resources=Amounts(500)))
        assert bare.bounds == Bounds(Amounts(500), Amounts(500))


async def test_of_two_claims_of_one_placeholder_one_is_lost():
    async with provided() as (server, provider, api):
        free = await free_one(server, api)
        await provider.claim(free, assignment(claim_id="first"))
        with pytest.raises(ClaimLostError):
            await provider.claim(free, assignment(claim_id="second"))
        claim = annotation(server.named("pods", "p1"), names.ANNOTATION_CLAIM)
        assert claim == {"id": "first"}


@pytest.mark.parametrize("change", ["gone", "deleting", "another of that name"])
async def test_a_placeholder_that_is_not_what_it_was_is_lost(change):
    async with provided() as (server, provider, api):
        free = await free_one(server, api)
        if change == "deleting":
            mark = {"deletionTimestamp": "2026-11-29T12:00:00Z"}
            server.change("pods", "p1", lambda pod: pod["metadata"].update(mark))
        else:
            server.remove("pods", "p1")
        if change == "another of that name":
            server.put("pods", placeholder("p1"))
        with pytest.raises(ClaimLostError):
            await provider.claim(free, assignment())
        assert server.writes == []


async def test_an_image_that_the_server_refuses_is_the_callers_fault_and_nothing_is_taken():
    async with provided() as (server, provider, api):
        free = await free_one(server, api)
        with pytest.raises(RefusedError) as caught:
            await provider.claim(free, assignment(image="a b"))
        assert isinstance(caught.value.error, BadRequestError)
        assert caught.value.error.field == "image"
        assert server.writes == []


def once(code: int, reason: str, method: str, message: str = ""):
    return lambda seen: status(code, reason, message) if seen.method == method else None


async def test_a_claim_that_met_another_writer_is_tried_again():
    async with provided() as (server, provider, api):
        free = await free_one(server, api)
        server.faults = [once(409, "Conflict", "PATCH")] * 2
        assert (await provider.claim(free, assignment())).claim_id == "c1"
        other = await free_one(server, api, "p2")
        server.faults = [once(409, "Conflict", "PATCH")] * 3
        with pytest.raises(RefusedError, match="Conflict"):
            await provider.claim(other, assignment())
        server.faults = [once(409, "Conflict", "PATCH")] * 3
        with pytest.raises(BusyError):
            await provider.claim(other, assignment())


async def test_a_creation_that_met_others_at_the_quota_is_tried_again_and_then_by_fewer():
    """The quota's count is one object, which all creations of a namespace write: nothing was made."""
    race = 'Operation cannot be fulfilled on resourcequotas "sandman-pods"'
    async with provided() as (server, provider, _):
        server.faults = [once(409, "Conflict", "POST", race)] * 2
        assert (await provider.create(SPEC, "cold-1", assignment(tier=Tier.COLD))).name == "cold-1"
        assert provider.claim_writes["cold"] == 3
        server.faults = [once(409, "Conflict", "POST", race)] * 3
        with pytest.raises(BusyError, match="resourcequotas"):
            await provider.create(SPEC, "cold-2", assignment(tier=Tier.COLD))
        assert len(server.all("pods")) == 1


@pytest.mark.parametrize(
    ("code", "reason", "message", "error"),
    [
        (403, "Forbidden", "exceeded quota: sandman-pods", QuotaError),
        (403, "Forbidden", "no right", InternalError),
        (422, "Invalid", "spec.containers[0].image: bad", ImageNotFoundError),
        (422, "Invalid", "metadata.name: bad", InternalError),
        (429, "TooManyRequests", "later", UnreachableError),
        (503, "ServiceUnavailable", "away", UnreachableError),
        (504, "Timeout", "request did not complete", UnreachableError),
        (408, "", "of a proxy", InternalError),
    ],
)
async def test_what_a_caller_hears_when_a_pod_cannot_be_made(code, reason, message, error):
    async with provided() as (server, provider, _):
        server.faults = [once(code, reason, "POST", message)]
        with pytest.raises((RefusedError, error)) as caught:
            await provider.create(SPEC, "cold-1", assignment())
        # Only the server's own refusal says for certain that there is no pod.
        is_refused = isinstance(caught.value, RefusedError)
        assert is_refused == (code < 500 and code != 408)
        assert type(caught.value.error if is_refused else caught.value) is error
        assert server.all("pods") == []


async def test_no_wait_that_a_caller_is_told_is_endless():
    async with provided() as (server, provider, api):
        free = await free_one(server, api)
        answer = Answer(429, {"kind": "Status"}, {"Retry-After": "9" * 400})
        server.faults = [lambda seen: answer if seen.method == "PATCH" else None]
        with pytest.raises(RefusedError) as caught:
            await provider.claim(free, assignment())
        assert caught.value.error.retry_after == kubernetes.RETRY_MAX_S


async def test_a_cold_pod_is_made_from_the_template_and_carries_the_claim():
    async with provided() as (server, provider, _):
        server.admit = injected
        made = await provider.create(SPEC, "cold-1", assignment(tier=Tier.COLD))
        assert (made.name, made.state, made.tier, made.image, made.nonce, made.address) == (
            "cold-1", names.STATE_LEASED, "cold", TASK, "nonce-1", None,
        )  # fmt: skip
        server.quota = 1
        with pytest.raises(RefusedError, match="quota"):
            await provider.create(SPEC, "cold-2", assignment())


async def held_one(server: ApiServer, api: kube.Kube, *gates: str) -> Instance:
    server.put("pods", placeholder("p1"))
    server.named("pods", "p1")["spec"]["schedulingGates"] = [{"name": one} for one in gates]
    return pods.instance(await api.get(kube.PODS, "p1", namespace=NAMESPACE))


async def test_a_held_placeholder_is_let_go_and_gates_of_others_stay():
    async with provided() as (server, provider, api):
        one = await held_one(server, api, "example.com/theirs", names.GATE_REFILL)
        assert one.hold == 1
        await provider.start(one)
        left = pods.instance(await api.get(kube.PODS, "p1", namespace=NAMESPACE))
        assert server.named("pods", "p1")["spec"]["schedulingGates"] == [
            {"name": "example.com/theirs"}
        ]
        assert left.hold is None
        # Told late that it is held, the write finds nothing of ours to take away.
        await provider.start(one)
        await provider.start(dataclasses.replace(one, hold=0))
        await provider.start(dataclasses.replace(one, uid="another"))
        assert len(server.named("pods", "p1")["spec"]["schedulingGates"]) == 1
        await provider.delete(one)
        await provider.start(one)


async def test_a_pod_that_somebody_waits_for_is_not_held():
    gates = [{"name": names.GATE_REFILL}, {"name": "example.com/theirs"}]
    held = template()
    held["spec"]["schedulingGates"] = gates
    async with provided() as (server, provider, _):
        server.admit = injected
        await provider.create(dataclasses.replace(SPEC, template=held), "cold-1", assignment())
        assert server.named("pods", "cold-1")["spec"]["schedulingGates"] == gates[1:]
    assert held["spec"]["schedulingGates"] == gates


async def test_a_delete_never_hits_another_pod_of_the_name():
    async with provided() as (server, provider, api):
        one = await free_one(server, api)
        await provider.delete(dataclasses.replace(one, uid="another"))
        assert len(server.all("pods")) == 1
        await provider.delete(one)
        await provider.delete(one)
        assert server.writes == [("DELETE", "pods", "p1")]
        body = [seen.json for seen in server.seen if seen.method == "DELETE"][-1]
        assert (body["preconditions"], body["gracePeriodSeconds"]) == ({"uid": one.uid}, 1)


async def test_a_delete_that_the_server_refuses_is_told():
    async with provided() as (server, provider, api):
        one = await free_one(server, api)
        server.faults = [once(403, "Forbidden", "DELETE")]
        with pytest.raises(InternalError):
            await provider.delete(one)


async def test_only_what_carries_the_claim_is_discarded():
    async with provided() as (server, provider, api):
        taken = await provider.claim(await free_one(server, api), assignment())
        assert await provider.discard(NAMESPACE, "p1", "another claim") is None
        assert await provider.discard(NAMESPACE, "p2", "c1") is None
        assert len(server.all("pods")) == 1
        gone = await provider.discard(NAMESPACE, "p1", "c1")
        assert gone is not None
        assert gone.uid == taken.uid
        assert server.all("pods") == []


async def test_a_read_tells_none_from_an_error():
    async with provided() as (server, provider, api):
        one = await free_one(server, api)
        assert await provider.read(NAMESPACE, "p1") == one
        assert await provider.read(NAMESPACE, "p2") is None
        server.faults = [once(403, "Forbidden", "GET")]
        with pytest.raises(InternalError):
            await provider.read(NAMESPACE, "p1")


# --- why a container does not start ---


async def test_the_event_that_comes_late_explains(hasty_clock):
    async with provided() as (server, provider, api):
        one = await free_one(server, api)
        late = []

        def tell(seen):
            if seen.path.endswith("/events"):
                late.append(seen.params["fieldSelector"])
            if len(late) == 2:
                document = server.named("pods", "p1")
                server.put("events", event(document, "Failed", "Failed to pull image: not found"))

        server.faults = [tell]
        ending = await provider.explain(one)
        assert ending is not None
        assert ending.reason == "image_not_found"
        assert late == [f"involvedObject.uid={one.uid}"] * 2


async def test_a_stuck_container_speaks_for_itself_though_events_cannot_be_read():
    async with provided() as (server, provider, api):
        one = await free_one(server, api)
        stuck = dataclasses.replace(one, waiting=("ErrImagePull", "pull access denied"))
        server.faults = [lambda seen: status(403, "Forbidden") if "events" in seen.path else None]
        ending = await provider.explain(stuck)
        assert ending is not None
        assert ending.reason == "image_denied"


async def test_what_has_a_reason_of_its_own_needs_no_event(hasty_clock):
    async with provided() as (server, provider, api):
        one = await free_one(server, api)
        evicted = dataclasses.replace(one, ending=Ending("evicted", "disk"))
        assert await provider.explain(evicted) is None
        died = dataclasses.replace(one, ending=Ending("died", "exit code 1"))
        asked = len(server.seen)
        assert await provider.explain(died) is None
        assert len(server.seen) - asked == kubernetes.EXPLAIN_TRIES


def test_a_pool_whose_template_has_no_image_is_none():
    document = deployment()
    for broken in (None, {}, {"spec": None}, {"spec": {"containers": []}}):
        document["spec"]["template"] = broken
        assert pods.pool(kube_deployment(document)) is None


def kube_deployment(document: dict) -> kube.Deployment:
    return msgspec.convert(document, kube.Deployment)


# --- pools that are stopped ---


def no_write_of(plural: str):
    """The API server forbids the next one."""

    def refuse(seen):
        is_it = seen.method != "GET" and f"/{plural}" in seen.path
        return status(403, "Forbidden", "no") if is_it else None

    return refuse


async def known_pool(server: ApiServer, api: kube.Kube) -> PoolSpec:
    server.put("deployments", deployment())
    found = pods.pool(await api.get(kube.DEPLOYMENTS, "sandman-pool-root", namespace=NAMESPACE))
    assert found is not None
    return found


async def test_a_pool_is_stopped_by_one_write_that_says_why_and_told_as_an_event():
    async with provided() as (server, provider, api):
        spec = await known_pool(server, api)
        why = Broken("they die: " + "x" * 2000, 1000.0, 7, pods.fingerprint(spec.template))
        await provider.stop_pool(spec, why)
        assert server.writes[0] == ("PATCH", "deployments", "sandman-pool-root")
        stopped = pods.pool(
            await api.get(kube.DEPLOYMENTS, "sandman-pool-root", namespace=NAMESPACE)
        )
        assert stopped is not None
        assert (stopped.wanted, stopped.broken, stopped.stopped) == (0, why, True)
        [told] = server.all("events")
        assert told["involvedObject"]["uid"] == spec.uid
        assert told["reason"] == "PoolStopped"
        assert len(told["message"]) <= 1024
        assert told["message"].endswith("--replicas=7")
        assert (
            f"annotate deployment sandman-pool-root {names.ANNOTATION_BROKEN}- " in told["message"]
        )

        await provider.restart_pool(stopped)
        again = pods.pool(await api.get(kube.DEPLOYMENTS, "sandman-pool-root", namespace=NAMESPACE))
        assert again is not None
        assert (again.wanted, again.broken, again.stopped) == (7, None, False)


async def test_one_that_somebody_scaled_keeps_that_and_one_that_is_gone_is_no_error():
    async with provided() as (server, provider, api):
        spec = await known_pool(server, api)
        why = Broken("they die", 1000.0, 7, "another template")
        await provider.restart_pool(dataclasses.replace(spec, broken=why, wanted=2))
        assert server.named("deployments", "sandman-pool-root")["spec"]["replicas"] == 1
        server.remove("deployments", "sandman-pool-root")
        await provider.restart_pool(spec)
        await provider.stop_pool(spec, why)


async def test_a_stop_that_cannot_be_written_is_an_error_and_an_event_that_cannot_is_none():
    async with provided() as (server, provider, api):
        spec = await known_pool(server, api)
        why = Broken("they die", 1000.0, 7, "t")
        server.faults.append(no_write_of("events"))
        await provider.stop_pool(spec, why)
        assert server.named("deployments", "sandman-pool-root")["spec"]["replicas"] == 0
        server.faults.append(no_write_of("deployments"))
        with pytest.raises(InternalError):
            await provider.stop_pool(spec, why)


# --- leases ---


async def leased_one(server: ApiServer, api: kube.Kube) -> Instance:
    document = placeholder("p1")
    document["metadata"]["labels"][names.LABEL_STATE] = names.STATE_LEASED
    server.put("pods", document)
    return pods.instance(await api.get(kube.PODS, "p1", namespace=NAMESPACE))


EXPIRED = Ending("expired", "nobody renewed its lease", at=5.0)


async def test_a_renewal_changes_one_annotation_and_nothing_on_one_that_ends():
    async with provided() as (server, provider, api):
        one = await leased_one(server, api)
        await provider.renew(one, 2.0)
        meta = server.named("pods", "p1")["metadata"]
        assert meta["annotations"][names.ANNOTATION_RENEWED] == "1000.000 2"
        await provider.mark(one, EXPIRED)
        await provider.renew(one, 0.0)
        meta = server.named("pods", "p1")["metadata"]
        assert meta["annotations"][names.ANNOTATION_RENEWED] == "1000.000 2"
        await provider.renew(dataclasses.replace(one, name="gone"), 0.0)
        assert [write[0] for write in server.writes] == ["PATCH", "PATCH"]


async def test_a_sandbox_is_reclaimed_with_its_reason_first():
    async with provided() as (server, provider, api):
        one = await leased_one(server, api)
        server.holds_deleted = True
        assert await provider.reclaim(one, EXPIRED)
        assert [write[0] for write in server.writes] == ["PATCH", "DELETE"]
        left = pods.instance(await api.get(kube.PODS, "p1", namespace=NAMESPACE))
        assert (left.ending.reason, left.deleting) == ("expired", True)
        server.remove("pods", "p1")
        assert await provider.reclaim(one, EXPIRED)


async def test_a_kubelet_that_reports_meanwhile_saves_nobody():
    async with provided() as (server, provider, api):
        one = await leased_one(server, api)
        report = lambda: server.change("pods", "p1", lambda pod: pod["status"].update(phase="Running"))  # noqa: E731  # fmt: skip
        report()  # before the mark

        def between(seen):
            if seen.method == "DELETE":
                report()
                return status(409, "Conflict")
            return None

        server.faults = [between]
        assert await provider.reclaim(one, EXPIRED)
        assert server.all("pods") == []


async def test_a_renewal_at_the_last_moment_saves_it():
    async with provided() as (server, provider, api):
        one = await leased_one(server, api)
        await provider.renew(one, 0.0)
        assert not await provider.reclaim(one, EXPIRED)
        assert [write[0] for write in server.writes] == ["PATCH"]
        # Nor does the same name do for another pod.
        assert await provider.reclaim(dataclasses.replace(one, uid="other"), EXPIRED)
        assert len(server.all("pods")) == 1


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_reclaim_that_fails_is_told(method):
    async with provided() as (server, provider, api):
        one = await leased_one(server, api)
        server.faults = [lambda seen: status(500, "InternalError") if seen.method == method else None] * 9  # fmt: skip
        with pytest.raises((InternalError, UnreachableError)):
            await provider.reclaim(one, EXPIRED)
        server.faults = [lambda seen: status(409, "Conflict") if seen.method == method else None] * 9  # fmt: skip
        assert not await provider.reclaim(
            pods.instance(await api.get(kube.PODS, "p1", namespace=NAMESPACE)), EXPIRED
        )


async def test_a_pod_of_a_lost_node_is_deleted_without_its_kubelet():
    async with provided() as (server, provider, api):
        one = await leased_one(server, api)
        await provider.bury(dataclasses.replace(one, uid="other"))
        assert len(server.all("pods")) == 1
        await provider.bury(one)
        deletion = [seen.json for seen in server.seen if seen.method == "DELETE"][-1]
        assert (deletion["gracePeriodSeconds"], deletion["preconditions"]["uid"]) == (0, one.uid)
        assert server.all("pods") == []


async def test_an_owner_is_a_job_that_is_there_and_stays():
    async with provided() as (server, provider, _):
        job = server.put("jobs", {"metadata": {"name": "trainer", "namespace": NAMESPACE}})
        assert await provider.owner(NAMESPACE, "trainer") == job["metadata"]["uid"]
        assert await provider.owner("elsewhere", "trainer") is None
        going = {"deletionTimestamp": "2026-11-29T12:00:00Z"}
        server.change("jobs", "trainer", lambda one: one["metadata"].update(going))
        assert await provider.owner(NAMESPACE, "trainer") is None
        server.faults = [lambda _seen: status(403, "Forbidden", "no")]
        with pytest.raises(InternalError):
            await provider.owner(NAMESPACE, "trainer")
