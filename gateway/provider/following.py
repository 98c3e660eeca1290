"""Watches users' pods and the Leases of attachments, and tells `Attached` of them.

On its own, so that a namespace in which the gateway may not look holds up nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import trio

from gateway.model import Ending
from gateway.provider import attachments
from sandman import names
from sandman.service import kube

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.model import Instance
    from gateway.workloads import Attachment, Workload

BUFFER = 64
"""Changes between a watch and its reader: as of the pools' watches."""
LOOK_S = 5.0
"""Seconds at most between two looks into a namespace in which the gateway may not look, or that is not there: whoever
gives it the right means to attach next."""
WORKLOADS = f"{names.LABEL_INJECT}={names.INJECT_WORKLOAD}"
UNKNOWN_END = Ending("released", "it was released")
"""Of an attachment that somebody deleted without a word."""


class State(Protocol):
    """Whom to tell."""

    def pod_seen(self, uid: str, found: Sequence[Workload]) -> None:
        """A user's pod is there, or has changed."""

    def pod_gone(self, uid: str) -> None:
        """It is no more."""

    def seen(self, attachment: Attachment) -> Instance:
        """An attachment is there, or has changed."""

    def gone(self, uid: str, why: Ending) -> None:
        """It is no more."""


async def follow(api: kube.Kube, state: State, own: str, namespaces: tuple[str, ...]) -> None:
    """Tell of everything until cancelled.

    Args:
        api: the API server.
        state: is told.
        own: where the Leases are, Sandman's first namespace for sandboxes.
        namespaces: those with workloads.
    """
    async with trio.open_nursery() as nursery:

        def begin(reflector: kube.Reflector[Any], tell: Callable[[Any, bool], None]) -> None:
            nursery.start_soon(_relay, reflector, tell)

        leases = kube.Reflector(
            api, kube.LEASES, namespace=own, label_selector=names.LABEL_ATTACHED
        )
        begin(leases, lambda lease, gone: _lease(state, lease, gone=gone))
        for namespace in namespaces:
            pods = kube.Reflector(api, kube.PODS, namespace=namespace, label_selector=WORKLOADS)
            pods.most_s = LOOK_S
            begin(pods, lambda pod, gone: _pod(state, pod, gone=gone))


async def _relay(reflector: kube.Reflector[Any], tell: Callable[[Any, bool], None]) -> None:
    into, out = trio.open_memory_channel[kube.Change[Any]](BUFFER)
    async with out, trio.open_nursery() as nursery:
        nursery.start_soon(reflector.run, into)
        async for change in out:
            if not isinstance(change, kube.Synced):
                tell(change.object, isinstance(change, kube.Deleted))


def _pod(state: State, pod: kube.Pod, *, gone: bool) -> None:
    if gone:
        state.pod_gone(pod.metadata.uid)
    else:
        state.pod_seen(pod.metadata.uid, attachments.workloads(pod))


def _lease(state: State, lease: kube.Lease, *, gone: bool) -> None:
    found = attachments.attachment(lease)
    if gone:
        state.gone(lease.metadata.uid, (found.ending if found else None) or UNKNOWN_END)
    elif found is not None:
        state.seen(found)
