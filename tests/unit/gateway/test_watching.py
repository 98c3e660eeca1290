"""What the watches tell the pool, from an API server that keeps state."""

from __future__ import annotations

import contextlib

import pytest
import trio

from gateway.provider import Gone, NodeSeen, PoolGone, PoolSeen, Seen, Synced, watching
from sandman import names
from tests.fakes.api_server import ApiServer
from tests.fakes.objects import NAMESPACE, deployment, node, placeholder


@contextlib.asynccontextmanager
async def watched(server: ApiServer, namespaces=(NAMESPACE,), buffer: float = 100):
    async with server.client() as api, trio.open_nursery() as nursery:
        send, receive = trio.open_memory_channel(buffer)
        nursery.start_soon(watching.watch, api, namespaces, send)
        yield receive
        nursery.cancel_scope.cancel()


async def until(receive, kind: type) -> list:
    """News up to the first of that kind."""
    found = []
    with trio.fail_after(5):
        while not (found and isinstance(found[-1], kind)):
            found.append(await receive.receive())
    return found


async def test_all_that_was_there_is_told_before_synced_however_slowly_it_is_taken():
    server = ApiServer()
    server.put("nodes", node())
    server.put("deployments", deployment())
    for number in range(200):
        server.put("pods", placeholder(f"p{number}"))
    async with watched(server, buffer=0) as receive:
        told = await until(receive, Synced)
    assert sum(isinstance(one, Seen) for one in told) == 200
    assert sum(isinstance(one, PoolSeen) for one in told) == 1
    assert NodeSeen("n1", closed=False) in told


async def test_what_has_no_pool_label_is_not_told():
    server = ApiServer()
    stranger = placeholder("stranger")
    del stranger["metadata"]["labels"][names.LABEL_POOL]
    server.put("pods", stranger)
    async with watched(server) as receive:
        assert await until(receive, Synced) == [Synced()]


async def test_changes_and_ends_are_told_as_they_come():
    server = ApiServer()
    server.put("nodes", node())
    server.put("deployments", deployment())
    pod = server.put("pods", placeholder("p1"))
    async with watched(server) as receive:
        await until(receive, Synced)
        server.change("nodes", "n1", lambda one: one["spec"].update(unschedulable=True))
        assert (await until(receive, NodeSeen))[-1] == NodeSeen("n1", closed=True)
        server.remove("nodes", "n1")
        gone = NodeSeen("n1", closed=False, gone=True, lost=True)
        assert (await until(receive, NodeSeen))[-1] == gone
        server.change("pods", "p1", lambda one: one["status"].update(phase="Failed"))
        assert (await until(receive, Seen))[-1].instance.ending.reason == "died"
        server.remove("pods", "p1")
        gone = (await until(receive, Gone))[-1]
        assert (gone.uid, gone.ending.reason) == (pod["metadata"]["uid"], "died")
        server.remove("deployments", "sandman-pool-root")
        assert (await until(receive, PoolGone))[-1] == PoolGone(NAMESPACE, "root")


async def test_a_pod_that_somebody_deletes_is_told_as_deleted_and_a_silent_node_as_closed():
    server = ApiServer()
    server.put("pods", placeholder("p1"))
    server.put("nodes", node(ready="Unknown"))
    async with watched(server) as receive:
        assert NodeSeen("n1", closed=True, lost=True) in await until(receive, Synced)
        server.remove("pods", "p1")
        assert (await until(receive, Gone))[-1].ending.reason == "deleted"


async def test_a_pool_without_an_image_is_not_told():
    server = ApiServer()
    broken = deployment()
    broken["spec"]["template"]["spec"]["containers"] = []
    server.put("deployments", broken)
    async with watched(server) as receive:
        assert await until(receive, Synced) == [Synced()]


async def test_every_namespace_is_watched():
    server = ApiServer()
    for namespace in ("a", "b"):
        pod = placeholder(f"p-{namespace}")
        pod["metadata"]["namespace"] = namespace
        server.put("pods", pod)
    async with watched(server, namespaces=("a", "b")) as receive:
        told = await until(receive, Synced)
    assert {one.instance.namespace for one in told if isinstance(one, Seen)} == {"a", "b"}


async def test_pods_with_annotations_of_every_wrong_kind_are_told_like_others():
    odd = [
        "[" * 100_000, '{"expires_at": 1e400}', '{"expires_at": ' + "9" * 400 + "}",
        '{"expires_at": NaN}', '{"expires_at": -1e300}', '{"expires_at": true}', "null", "\ud83d",
        '{"id": 5, "previous_boot_id": []}', '{"labels": NaN}', "{", "1" * 5000,
    ]  # fmt: skip
    server = ApiServer()
    for number, text in enumerate(odd):
        pod = placeholder(f"p{number}")
        for key in (names.ANNOTATION_CLAIM, names.ANNOTATION_LEASE, names.ANNOTATION_REQUEST):
            pod["metadata"]["annotations"][key] = text.encode("utf-8", "replace").decode()
        server.put("pods", pod)
    async with watched(server) as receive:
        told = [one.instance for one in await until(receive, Synced) if isinstance(one, Seen)]
    assert len(told) == len(odd)
    assert {one.expires_at for one in told} == {None}
    assert {one.claim_id for one in told} == {None}


@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("Evicted", "Pod ephemeral local storage usage exceeds the total limit of containers 30Mi.", ("evicted", "sandbox")),
        ("Evicted", "The node was low on resource: memory.", ("evicted", None)),
        ("Killing", "Stopping container sandbox", ("died", None)),
    ],
)  # fmt: skip
async def test_an_eviction_that_only_an_event_tells_of(kind, message, expected):
    """A kubelet whose pod's first process ends with 0 may write phase Succeeded and no reason."""
    ended = {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-11-30T04:01:10Z"}
    status = {"containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
    server = ApiServer()
    uid = server.put("pods", placeholder("p1"))["metadata"]["uid"]
    server.put(
        "events",
        {
            "metadata": {"name": "e1", "namespace": NAMESPACE},
            "involvedObject": {"uid": uid},
            "reason": kind,
            "message": message,
        },
    )
    async with watched(server) as receive:
        await until(receive, Synced)
        server.change("pods", "p1", lambda one: one["status"].update(status, phase="Succeeded"))
        ending = (await until(receive, Seen))[-1].instance.ending
    assert (ending.reason, ending.cause) == expected
    assert ending.at is not None


async def test_without_its_events_it_has_died():
    ended = {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-11-30T04:01:10Z"}
    status = {"containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}
    server = ApiServer()
    server.put("pods", placeholder("p1"))
    async with watched(server) as receive:
        await until(receive, Synced)
        server.change("pods", "p1", lambda one: one["status"].update(status, phase="Succeeded"))
        assert (await until(receive, Seen))[-1].instance.ending.reason == "died"
