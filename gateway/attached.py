"""What is there of users' workloads just now: their injected containers, and who is attached to which.

Apart from the sandboxes of pools: what sweeps, counts, patches and deletes those never meets a user's pod.
Sync; between two awaits of its owner it is whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from gateway import workloads
from gateway.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.leases import Ledger
    from gateway.model import Ending, Instance
    from gateway.workloads import Attachment, Wanted, Workload


class Attached:
    """State behind `attach`.

    Args:
        ledger: is told of attachments, as of pools' sandboxes.
        wall: seconds since the epoch.
        keep_ended: how many endings of attachments that are gone are remembered.
    """

    def __init__(self, ledger: Ledger, wall: Callable[[], float], *, keep_ended: int) -> None:
        self.ledger = ledger
        self._wall = wall
        self.registry = Registry(keep_ended=keep_ended)
        """Attachments whose handshake is done, as sandboxes."""
        self._pods: dict[str, tuple[Workload, ...]] = {}
        self._attachments: dict[str, Attachment] = {}
        self._gone: set[str] = set()
        """Pods of attachments that are known to be no more."""
        self._changes: dict[str, trio.Event] = {}

    def __repr__(self) -> str:
        return f"<Attached pods={len(self._pods)} attachments={len(self._attachments)}>"

    # --- news ---

    def pod_seen(self, uid: str, found: Sequence[Workload]) -> None:
        """A user's pod is there, or has changed."""
        self._pods[uid] = tuple(found)
        self._gone.discard(uid)
        self._refresh(uid)
        self._wake(uid)

    def pod_gone(self, uid: str) -> None:
        """It is no more."""
        self._pods.pop(uid, None)
        for one in self._of_pod(uid):
            # Two watches tell of them: of a pod that was never seen nobody knows that it is gone.
            self._gone.add(one.pod_uid)
        self._refresh(uid)

    def seen(self, attachment: Attachment) -> Instance:
        """An attachment is there, or has changed; as a sandbox."""
        self._attachments[attachment.uid] = attachment
        shown = workloads.instance(attachment, self.workload(attachment), self._end(attachment))
        if attachment.boot_id is not None:
            self.registry.put(shown)
            self.ledger.saw(shown, trio.current_time(), self._wall())
        self._wake(attachment.uid)
        return shown

    def gone(self, uid: str, why: Ending) -> None:
        """It is no more."""
        known = self._attachments.pop(uid, None)
        if known is not None and not self._of_pod(known.pod_uid):
            self._gone.discard(known.pod_uid)
        self.registry.remove(uid, why)
        self.ledger.forget(uid)
        self._wake(uid)

    def _refresh(self, pod_uid: str) -> None:
        for one in self._of_pod(pod_uid):
            self.seen(one)

    def _of_pod(self, pod_uid: str) -> list[Attachment]:
        return [one for one in self._attachments.values() if one.pod_uid == pod_uid]

    def _end(self, attachment: Attachment) -> Ending | None:
        return workloads.GONE if attachment.pod_uid in self._gone else None

    def _wake(self, uid: str) -> None:
        event = self._changes.pop(uid, None)
        if event is not None:
            event.set()

    # --- reading ---

    async def wait_change(self, uid: str) -> None:
        """Return at the next news of this attachment, or pod."""
        event = self._changes.setdefault(uid, trio.Event())
        try:
            await event.wait()
        finally:
            if not event.statistics().tasks_waiting and self._changes.get(uid) is event:
                del self._changes[uid]

    def knows(self, workload: Workload) -> bool:
        """Whether its watch has shown it as it is there: it is the same container, and as fit to be attached to."""
        known = self._pods.get(workload.uid, ())
        return any(
            (one.container, one.is_attachable) == (workload.container, workload.is_attachable)
            for one in known
        )

    def ending(self, attachment: Attachment) -> Ending | None:
        """Why it is no more; None while it is, or while nothing is known of its pod."""
        return workloads.ending(attachment, self.workload(attachment)) or self._end(attachment)

    def workload(self, attachment: Attachment) -> Workload | None:
        """The container that it is for; None when that pod is no more."""
        found = self._pods.get(attachment.pod_uid, ())
        return next((one for one in found if one.container == attachment.container), None)

    def attachment(self, uid: str) -> Attachment | None:
        """The attachment with this uid."""
        return self._attachments.get(uid)

    def attachments(self) -> list[Attachment]:
        """All of them, also those whose handshake is not done."""
        return list(self._attachments.values())

    def taken(self) -> set[str]:
        """Names of the Leases that there are."""
        return {one.name for one in self._attachments.values()}

    def attachable(self, wanted: Wanted | None = None) -> list[Workload]:
        """Containers whose daemon should answer, by namespace, pod and place in it."""
        found = [one for pod in self._pods.values() for one in pod]
        fitting = [
            one
            for one in workloads.trusted(found)
            if one.is_attachable and (wanted is None or wanted.means(one))
        ]
        return sorted(fitting, key=lambda one: (one.namespace, one.pod))
