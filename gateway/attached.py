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
    from collections.abc import Sequence

    from gateway.model import Ending, Instance
    from gateway.workloads import Attachment, Wanted, Workload


class Attached:
    """State behind `attach`.

    Args:
        keep_ended: how many endings of attachments that are gone are remembered.
    """

    def __init__(self, *, keep_ended: int) -> None:
        self.registry = Registry(keep_ended=keep_ended)
        """Attachments whose handshake is done, as sandboxes."""
        self._pods: dict[str, tuple[Workload, ...]] = {}
        self._attachments: dict[str, Attachment] = {}
        self._changes: dict[str, trio.Event] = {}

    def __repr__(self) -> str:
        return f"<Attached pods={len(self._pods)} attachments={len(self._attachments)}>"

    # --- news ---

    def pod_seen(self, uid: str, found: Sequence[Workload]) -> None:
        """A user's pod is there, or has changed."""
        self._pods[uid] = tuple(found)
        self._refresh(uid)

    def pod_gone(self, uid: str) -> None:
        """It is no more."""
        self._pods.pop(uid, None)
        self._refresh(uid)

    def seen(self, attachment: Attachment) -> Instance:
        """An attachment is there, or has changed; as a sandbox."""
        self._attachments[attachment.uid] = attachment
        shown = workloads.instance(attachment, self.workload(attachment))
        if attachment.boot_id is not None:
            self.registry.put(shown)
        self._wake(attachment.uid)
        return shown

    def gone(self, uid: str, why: Ending) -> None:
        """It is no more."""
        self._attachments.pop(uid, None)
        self.registry.remove(uid, why)
        self._wake(uid)

    def _refresh(self, pod_uid: str) -> None:
        for one in [a for a in self._attachments.values() if a.pod_uid == pod_uid]:
            self.seen(one)

    def _wake(self, uid: str) -> None:
        event = self._changes.pop(uid, None)
        if event is not None:
            event.set()

    # --- reading ---

    async def wait_change(self, uid: str) -> None:
        """Return at the attachment's next news."""
        event = self._changes.setdefault(uid, trio.Event())
        try:
            await event.wait()
        finally:
            if not event.statistics().tasks_waiting and self._changes.get(uid) is event:
                del self._changes[uid]

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
