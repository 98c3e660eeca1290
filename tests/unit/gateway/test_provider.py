"""The provider's calls, by the real client, to an API server that keeps state."""

from __future__ import annotations

import contextlib
import dataclasses

import msgspec
import pytest

from gateway.changed import Changes
from gateway.model import Assignment, Ending, Instance, PoolSpec, Tier
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
from tests.fakes import clocks
from tests.fakes.api_server import ApiServer
from tests.fakes.objects import (
    BASE,
    NAMESPACE,
    TASK,
    annotation,
    deployment,
    event,
    placeholder,
    template,
)
from tests.unit.gateway.test_profiles import policy
from tests.unit.service.fake_api import Answer, status


@pytest.fixture
def jumping_clock():
    return clocks.jumping()


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


async def test_a_sandbox_is_given_another_egress_profile_by_one_write():
    async with provided() as (server, provider, api):
        taken = await provider.claim(await free_one(server, api), assignment())
        assert taken.network == "none"
        changed = await provider.set_network(taken, "open")
        assert changed.network == "open"
        assert server.named("pods", "p1")["metadata"]["labels"][names.LABEL_NETWORK] == "open"
        assert len(server.writes) == 2
        # It stays on the pod, whoever reads it: by the next change one cannot make it unsaid.
        assert (taken.network_changes, changed.network_changes) == (
            None,
            Changes(1000.0, ("none",)),
        )
        closed = await provider.set_network(changed, "none")
        assert (closed.network, closed.network_changes) == (
            "none",
            Changes(1000.0, ("none", "open")),
        )
        same = await provider.set_network(closed, "none")
        assert same.network_changes == closed.network_changes
        server.faults = [lambda _seen: status(403, "Forbidden", "no right")]
        with pytest.raises(InternalError):
            await provider.set_network(taken, "none")


async def test_whose_watch_is_behind_takes_no_change_off():
    async with provided() as (server, provider, api):
        taken = await provider.claim(await free_one(server, api), assignment())
        await provider.set_network(taken, "open")
        # This replica has not seen it: for it nothing changes.
        closed = await provider.set_network(taken, "none")
        assert (closed.network, closed.network_changes) == ("none", Changes(1000.0, ("none",)))


async def test_that_its_image_was_swapped_before_outlives_the_hand_over():
    async with provided() as (server, provider, api):
        wanted = assignment(reservation="r1", previous_boot_id="b0")
        reserved = await provider.claim(await free_one(server, api), wanted)
        assert (reserved.previous_boot_id, reserved.was_swapped) == ("b0", True)
        ready = await provider.mark_prepared(reserved, "h1", "b1")
        taken = await provider.claim(ready, assignment(claim_id="c2", swapped=ready.was_swapped))
        assert (taken.previous_boot_id, taken.was_swapped) == (None, True)
        warm = await provider.claim(await free_one(server, api, "p2"), assignment())
        assert warm.was_swapped is False


async def test_another_record_of_its_request_is_written_on_a_sandbox_that_lives():
    async with provided() as (server, provider, api):
        free = await free_one(server, api)
        with pytest.raises(DeletedError):
            await provider.agree(free, {"a": 1})
        taken = await provider.claim(free, assignment())
        changed = await provider.agree(taken, {"a": 1})
        assert changed.request == {"a": 1}
        assert (changed.claim_id, changed.tenant) == (taken.claim_id, taken.tenant)
        await provider.mark(taken, Ending("expired", "its time was over"))
        with pytest.raises(DeletedError):
            await provider.agree(taken, {"a": 2})


async def test_what_ends_or_is_nobodys_sandbox_is_given_none():
    async with provided() as (server, provider, api):
        free = await free_one(server, api)
        with pytest.raises(DeletedError):
            await provider.set_network(free, "open")
        taken = await provider.claim(free, assignment(network="open"))
        assert taken.network == "open"
        await provider.mark(taken, Ending("expired", "its time was over"))
        with pytest.raises(DeletedError):
            await provider.set_network(taken, "none")
        server.remove("pods", "p1")
        with pytest.raises(DeletedError):
            await provider.set_network(taken, "none")


async def test_egress_profiles_are_the_policies_with_the_label():
    async with provided() as (server, provider, _api):
        one = policy("open")
        one["metadata"] |= {"name": "sandman-network-open", "namespace": NAMESPACE}
        server.put("networkpolicies", one)
        server.put("networkpolicies", {"metadata": {"name": "other", "namespace": NAMESPACE}})
        known = await provider.profiles(NAMESPACE)
        assert sorted(known) == ["none", "open"]
        assert not known["open"].fault
        assert sorted(await provider.profiles("elsewhere")) == ["none"]
        server.faults = [lambda _seen: status(403, "Forbidden", "no right")]
        with pytest.raises(InternalError):
            await provider.profiles(NAMESPACE)


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


NO_RIGHT = (
    'pods is forbidden: User "system:serviceaccount:sandman-system:sandman-gateway" cannot create resource "pods"'
    ' in API group "" in the namespace "sandman-sandboxes"'
)
"""Of an API server that has just started, and has read no rule yet."""


@pytest.mark.parametrize(
    ("code", "reason", "message", "error"),
    [
        (403, "Forbidden", "exceeded quota: sandman-pods", QuotaError),
        (403, "Forbidden", "no right", InternalError),
        (403, "Forbidden", NO_RIGHT, UnreachableError),
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


# --- why a container does not start ---


async def test_the_event_that_comes_late_explains(jumping_clock):
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


async def test_what_has_a_reason_of_its_own_needs_no_event(jumping_clock):
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
