"""The Kubernetes client, reflector and election against a real API server: what fakes assume, checked."""

from __future__ import annotations

import contextlib
import secrets
from functools import partial
from typing import TYPE_CHECKING

import pytest
import trio

from gateway.election import Election
from sandman.service import kube
from sandman.service.kube.watch import Driver
from tests.cluster.bed import reference

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.cluster.bed import Bed

LABELS = {"app": "sk-test"}


@contextlib.asynccontextmanager
async def working(bed: Bed) -> AsyncIterator[tuple[kube.Kube, str]]:
    """A client and a namespace of this test's own, deleted afterwards."""
    name = f"sk-test-{secrets.token_hex(4)}"
    async with kube.Kube(kube.load(kubeconfig=str(bed.kubeconfig))) as api:
        await api.create(kube.NAMESPACES, {"metadata": {"name": name}})
        try:
            yield api, name
        finally:
            with trio.move_on_after(30, shield=True):
                await api.delete(kube.NAMESPACES, name)


def pod(bed: Bed, name: str, **metadata: object) -> dict[str, object]:
    """A pod that waits."""
    return {
        "metadata": {"name": name, "labels": LABELS, **metadata},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "main", "image": reference(bed, "busybox"), "command": ["sleep", "600"]}
            ],
        },
    }


def unscheduled(name: str) -> dict[str, object]:
    """A pod that costs no node anything."""
    body = {"metadata": {"name": name, "labels": LABELS}}
    container = {"name": "main", "image": "nowhere.invalid/none:1"}
    return {**body, "spec": {"schedulerName": "nobody", "containers": [container]}}


async def until(condition, within: float = 60.0) -> None:
    with trio.fail_after(within):
        while not await condition():
            await trio.sleep(0.1)


async def test_a_pod_from_creation_to_deletion(bed: Bed):
    async with working(bed) as (api, namespace):
        dry = await api.create(kube.PODS, pod(bed, "a"), namespace=namespace, dry_run=True)
        assert dry.metadata.uid
        with pytest.raises(kube.NotFoundError):
            await api.get(kube.PODS, "a", namespace=namespace)
        made = await api.create(kube.PODS, pod(bed, "a"), namespace=namespace)
        with pytest.raises(kube.AlreadyExistsError):
            await api.create(kube.PODS, pod(bed, "a"), namespace=namespace)

        async def is_ready() -> bool:
            return (await api.get(kube.PODS, "a", namespace=namespace)).is_ready

        await until(is_ready)
        found = await api.get(kube.PODS, "a", namespace=namespace)
        [status] = found.status.container_statuses
        assert found.spec.node_name == bed.node_name
        assert found.status.pod_ip
        assert status.image_id
        assert status.state.running.started_at
        assert found.status.start_time <= found.status.conditions[0].last_transition_time

        wrong = kube.Deletion(uid="00000000-0000-0000-0000-000000000000")
        with pytest.raises(kube.ConflictError):
            await api.delete(kube.PODS, "a", wrong, namespace=namespace)
        old = kube.Deletion(resource_version=made.metadata.resource_version)
        with pytest.raises(kube.ConflictError):
            await api.delete(kube.PODS, "a", old, namespace=namespace)
        right = kube.Deletion(uid=found.metadata.uid, grace_period_s=0, propagation="Background")
        await api.delete(kube.PODS, "a", right, namespace=namespace)

        async def is_gone() -> bool:
            try:
                await api.get(kube.PODS, "a", namespace=namespace)
            except kube.NotFoundError:
                return True
            return False

        await until(is_gone)


async def test_one_json_patch_claims_a_pod_once(bed: Bed):
    """The claim: of ten at the same time one wins, and the others are told apart from a bad patch."""
    async with working(bed) as (api, namespace):
        maps = kube.raw("", "v1", "configmaps", "ConfigMap")
        made = await api.create(maps, {"metadata": {"name": "o"}}, namespace=namespace)
        uid = made["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": uid}
        body = unscheduled("a")
        body["metadata"] |= {"ownerReferences": [owner], "labels": {"state": "free"}}
        free = await api.create(kube.PODS, body, namespace=namespace)
        won, lost = [], []

        async def claim(me: str) -> None:
            operations = [
                {"op": "test", "path": "/metadata/uid", "value": free.metadata.uid},
                {"op": "test", "path": "/metadata/labels/state", "value": "free"},
                {"op": "test", "path": "/metadata/deletionTimestamp", "value": None},
                {"op": "replace", "path": "/metadata/labels/state", "value": "leased"},
                {"op": "remove", "path": "/metadata/ownerReferences"},
                {"op": "add", "path": "/metadata/annotations", "value": {"by": me}},
                {
                    "op": "replace",
                    "path": "/spec/containers/0/image",
                    "value": "nowhere.invalid/b:2",
                },
                {"op": "add", "path": "/spec/activeDeadlineSeconds", "value": 600},
            ]
            try:
                won.append(await api.patch_json(kube.PODS, "a", operations, namespace=namespace))
            except kube.InvalidError as error:
                lost.append(error)

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(claim, str(number))
        [winner] = won
        assert len(lost) == 9
        assert all(error.is_patch_failure for error in lost)
        assert winner.metadata.owner_references is None
        assert winner.spec.active_deadline_seconds == 600
        assert winner.spec.containers[0].image == "nowhere.invalid/b:2"
        bad = [{"op": "replace", "path": "/spec/activeDeadlineSeconds", "value": 900}]
        with pytest.raises(kube.InvalidError) as caught:
            await api.patch_json(kube.PODS, "a", bad, namespace=namespace)
        assert not caught.value.is_patch_failure


async def test_a_merge_patch_is_conditional_by_version(bed: Bed):
    async with working(bed) as (api, namespace):
        made = await api.create(kube.PODS, unscheduled("a"), namespace=namespace)
        version = made.metadata.resource_version
        patch = {"metadata": {"resourceVersion": version, "annotations": {"a": "1"}}}
        await api.patch_merge(kube.PODS, "a", patch, namespace=namespace)
        with pytest.raises(kube.ConflictError):
            await api.patch_merge(kube.PODS, "a", patch, namespace=namespace)


async def test_a_secret_is_replaced_whole(bed: Bed):
    async with working(bed) as (api, namespace):
        body = kube.Secret(metadata=kube.ObjectMeta(name="s"), data={"k": b"\x00\xff"})
        await api.create(kube.SECRETS, body, namespace=namespace)
        raw = kube.as_raw(kube.SECRETS)
        whole = await api.get(raw, "s", namespace=namespace)
        await api.replace(raw, "s", {**whole, "data": {"k": "AQI="}}, namespace=namespace)
        assert (await api.get(kube.SECRETS, "s", namespace=namespace)).data == {"k": b"\x01\x02"}
        with pytest.raises(kube.ConflictError):
            await api.replace(raw, "s", whole, namespace=namespace)


async def test_nodes_images_version_and_reviews(bed: Bed):
    async with working(bed) as (api, namespace):
        [node] = (await api.list(kube.NODES)).items
        assert node.is_ready
        assert node.status.node_info.container_runtime_version.startswith("containerd://")
        assert node.status.images
        assert (await api.get_path("/version"))["major"] == "1"
        review = await api.create(kube.TOKEN_REVIEWS, {"spec": {"token": "nonsense"}})
        assert not review["status"].get("authenticated")
        with pytest.raises(kube.BadRequestError):
            await api.list(kube.PODS, namespace=namespace, label_selector="=(")
        await api.list(kube.EVENTS, namespace=namespace)


async def test_lists_in_pages_and_a_reflector_agree(bed: Bed, monkeypatch):
    monkeypatch.setattr("sandman.service.kube.client.PAGE_SIZE", 7)
    monkeypatch.setattr("sandman.service.kube.reflector.PAGE_SIZE", 7)
    async with working(bed) as (api, namespace):
        async with trio.open_nursery() as nursery:
            for number in range(30):
                create = partial(api.create, namespace=namespace)
                nursery.start_soon(create, kube.PODS, unscheduled(f"p{number:02}"))
        selection = {"namespace": namespace, "label_selector": "app=sk-test"}
        first = await api.list_page(kube.PODS, kube.Selection(namespace), limit=7)
        assert len(first.items) == 7
        assert first.metadata.remaining_item_count == 23
        assert len((await api.list(kube.PODS, **selection)).items) == 30
        made = kube.Reflector(api, kube.PODS, **selection)
        known: dict[str, str] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, made, known)
            await made.synced.wait()
            assert len(known) == 30
            patch = {"metadata": {"labels": {"app": None}}}
            await api.patch_merge(kube.PODS, "p00", patch, namespace=namespace)  # deselected
            await api.delete(kube.PODS, "p01", kube.Deletion(grace_period_s=0), namespace=namespace)
            await api.create(kube.PODS, unscheduled("new"), namespace=namespace)

            async def agree() -> bool:
                now = (await api.list(kube.PODS, **selection)).items
                return known == {item.metadata.name: item.metadata.resource_version for item in now}

            await until(agree)
            assert len(known) == 29
            assert made.statistics()["lists"] == 1
            nursery.cancel_scope.cancel()


async def follow(made: kube.Reflector[kube.Pod], known: dict[str, str]) -> None:
    send, receive = trio.open_memory_channel[kube.Change[kube.Pod]](8)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run, send)
        async for change in receive:
            match change:
                case kube.Added(item) | kube.Modified(item):
                    known[item.metadata.name] = item.metadata.resource_version
                case kube.Deleted(item):
                    known.pop(item.metadata.name)


async def test_a_version_that_is_too_old_is_told(bed: Bed):
    """Whether by status or inside of the stream, it arrives as GoneError."""
    async with working(bed) as (api, namespace):
        params = {"resourceVersion": "1", "allowWatchBookmarks": "true", "timeoutSeconds": "5"}

        async def watch() -> None:
            driver = Driver(kube.PODS)
            async with api.open_watch(kube.PODS, kube.Selection(namespace), params) as body:
                while data := await body.receive():
                    list(driver.receive_data(data))
            pytest.skip("the server still has its whole history")

        with pytest.raises(kube.GoneError):
            await watch()


async def test_bookmarks_come_before_the_read_deadline(bed: Bed):
    """What READ_DEADLINE_S rests on: a quiet watch is not silent. Asked for ten seconds, which makes
    the server send its last bookmark before the end."""
    async with working(bed) as (api, namespace):
        version = (await api.list(kube.PODS, namespace=namespace)).resource_version
        params = {
            "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": "10",
        }  # fmt: skip
        heard = b""
        with trio.fail_after(30):
            async with api.open_watch(kube.PODS, kube.Selection(namespace), params) as body:
                while data := await body.receive():
                    heard += data
        assert b'"BOOKMARK"' in heard


async def test_two_candidates_and_a_hand_over(bed: Bed):
    async with working(bed) as (api, namespace):

        def candidate(name: str) -> Election:
            return Election(
                api, namespace=namespace, name="l", identity=name, address=f"{name}:8443"
            )

        first, second = candidate("a"), candidate("b")
        async with trio.open_nursery() as nursery:
            leaving = trio.CancelScope()

            async def run_first() -> None:
                with leaving:
                    await first.run()

            nursery.start_soon(run_first)

            async def first_leads() -> bool:
                return first.is_leader

            await until(first_leads)
            nursery.start_soon(second.run)
            with trio.move_on_after(8):
                while True:
                    await trio.sleep(0.05)
                    assert first.is_leader
                    assert not second.is_leader
            assert second.address == "a:8443"
            leaving.cancel()
            began = trio.current_time()

            async def second_leads() -> bool:
                return second.is_leader

            await until(second_leads)
            assert trio.current_time() - began < 2
            lease = await api.get(kube.LEASES, "l", namespace=namespace)
            assert lease.spec.holder_identity == second.identity
            assert lease.spec.lease_transitions == 1
            nursery.cancel_scope.cancel()
