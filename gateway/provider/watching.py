"""Watches pods, pools and nodes of the cluster and tells the pool of them."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import trio

from gateway.provider import Gone, NodeSeen, PoolGone, PoolSeen, Seen, Synced, endings, pods
from sandman import names
from sandman.service import kube

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.provider import News

BUFFER = 64
"""Changes between a watch and the pool: one TCP read brings about as many; a full channel stops the
reading, and the API server copes with that."""
EVENTS_S = 2.0
"""Seconds for the events of a pod whose end is unexplained: others' news wait behind it."""


async def watch(
    api: kube.Kube, namespaces: tuple[str, ...], send: trio.MemorySendChannel[News]
) -> None:
    """Send news until cancelled; `Synced` once when everything that was there has been told."""
    async with send, trio.open_nursery() as nursery:
        told: list[trio.Event] = []

        def begin(
            translate: Callable[[Any, bool], Iterator[News]], reflector: kube.Reflector[Any]
        ) -> None:
            told.append(trio.Event())
            nursery.start_soon(_relay, api, reflector, translate, send.clone(), told[-1])

        begin(_node, kube.Reflector(api, kube.NODES))
        for namespace in namespaces:
            begin(_pool, _of_pools(api, kube.DEPLOYMENTS, namespace))
            begin(_pod, _of_pools(api, kube.PODS, namespace))
        # Not when the reflectors have it, but when it has gone on from here.
        for event in told:
            await event.wait()
        await send.send(Synced())


def _of_pools(api: kube.Kube, resource: kube.Resource[Any], namespace: str) -> kube.Reflector[Any]:
    return kube.Reflector(api, resource, namespace=namespace, label_selector=names.LABEL_POOL)


async def _relay(
    api: kube.Kube,
    reflector: kube.Reflector[Any],
    translate: Callable[[Any, bool], Iterator[News]],
    send: trio.MemorySendChannel[News],
    told: trio.Event,
) -> None:
    """Run one reflector and pass on what its changes mean; `told` once the first list has been."""
    into, out = trio.open_memory_channel[kube.Change[Any]](BUFFER)
    async with send, out, trio.open_nursery() as nursery:
        nursery.start_soon(reflector.run, into)
        async for change in out:
            if isinstance(change, kube.Synced):
                told.set()
                continue
            for news in translate(change.object, isinstance(change, kube.Deleted)):
                await send.send(await _explained(api, news))


async def _explained(api: kube.Kube, news: News) -> News:
    """With what only a pod's events tell of its end."""
    if not isinstance(news, Seen) or not endings.is_unexplained(news.instance.ending):
        return news
    instance, ending = news.instance, news.instance.ending
    with trio.move_on_after(EVENTS_S), contextlib.suppress(kube.KubeError):
        listing = await api.list(
            kube.EVENTS,
            namespace=instance.namespace,
            field_selector=f"involvedObject.uid={instance.uid}",
        )
        if ending is not None:
            ending = endings.of_eviction(listing.items, ending)
    return Seen(dataclasses.replace(instance, ending=ending))


def _pod(pod: kube.Pod, gone: bool) -> Iterator[News]:
    if gone:
        last = pods.instance(pod)
        ending = last.ending or endings.of_deletion(pod, last.expires_at)
        yield Gone(last.uid, ending)
    else:
        yield Seen(pods.instance(pod))


def _pool(deployment: kube.Deployment, gone: bool) -> Iterator[News]:
    spec = pods.pool(deployment)
    if gone:
        yield PoolGone(deployment.metadata.namespace, deployment.metadata.label(names.LABEL_POOL))
    elif spec is not None:
        yield PoolSeen(spec)


def _node(node: kube.Node, gone: bool) -> Iterator[News]:
    closed = not gone and pods.is_closed(node)
    lost = gone or pods.is_lost(node)
    yield NodeSeen(node.metadata.name, closed, pods.images(node), gone=gone, lost=lost)
