"""Containers of users' pods that have a daemon, and who is attached to which. Values, and pure."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from typing import TYPE_CHECKING

from gateway.model import Ending, Instance, Place
from sandman import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gateway.model import Identity, Terms

TIER = "attached"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One injected container of a user's pod, as its watch shows it. Times in seconds since the epoch."""

    namespace: str
    pod: str
    uid: str
    """Of the pod."""
    container: str
    port: int
    nonce: str
    """The container's own."""
    key_id: str
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    image: str = ""
    image_digest: str | None = None
    node: str | None = None
    address: str | None = None
    restarts: int = 0
    running: bool = False
    deleting: bool = False
    ending: Ending | None = None

    @property
    def is_attachable(self) -> bool:
        """Whether its daemon should answer."""
        return (
            self.running and not self.deleting and self.ending is None and self.address is not None
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """Who is attached to a container: a Lease. Times in seconds since the epoch."""

    name: str
    uid: str = ""
    version: str = ""
    tenant: str
    run: str | None = None
    key: str | None = None
    claim_id: str
    namespace: str
    """Of the pod, as are the next four."""
    pod: str
    pod_uid: str
    container: str
    restarts: int = 0
    boot_id: str | None = None
    """None: its handshake is not done."""
    identity: Identity | None = None
    created_at: float = 0.0
    expires_at: float
    terms: Terms
    request: Mapping[str, object] = dataclasses.field(default_factory=dict)
    ending: Ending | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a caller would attach to. Times in seconds."""

    namespace: str
    pod: str | None
    selector: tuple[tuple[str, str], ...]
    container: str | None
    terms: Terms
    env: tuple[tuple[str, str], ...] = ()
    workdir: str | None = None
    user: str | int | None = None
    run: str | None = None
    labels: tuple[tuple[str, str], ...] = ()

    def means(self, one: Workload) -> bool:
        """Whether this container is meant."""
        return (
            one.namespace == self.namespace
            and self.pod in {None, one.pod}
            and self.container in {None, one.container}
            and all(one.labels.get(key) == value for key, value in self.selector)
        )


def name_of(pod_uid: str, container: str) -> str:
    """The Lease's name: the same for all who would attach to this container, so that one can."""
    digest = hashlib.sha256(f"{pod_uid}/{container}".encode()).hexdigest()
    return f"{names.ATTACHMENT_PREFIX}{digest[:20]}"


def trusted(found: Iterable[Workload]) -> list[Workload]:
    """Those whose nonce no other pod of their namespace bears: who copied one would be told the other's token."""
    all_of_them = list(found)
    bearers = {(one.namespace, one.nonce, one.uid) for one in all_of_them}
    count = Counter((namespace, nonce) for namespace, nonce, _ in bearers)
    return [one for one in all_of_them if count[one.namespace, one.nonce] == 1]


GONE = Ending("deleted", "the workload's pod is gone")


def ending(attachment: Attachment, workload: Workload | None) -> Ending | None:
    """Why the attachment is no more; None while it is, or while nothing is known of its pod."""
    if attachment.ending is not None:
        return attachment.ending
    if workload is None:
        return None
    if workload.ending is not None:
        return workload.ending
    if workload.restarts != attachment.restarts:
        return Ending("died", "the workload's container was started anew: attach again")
    return None


def instance(
    attachment: Attachment, workload: Workload | None, gone: Ending | None = None
) -> Instance:
    """The attachment as the sandbox that its caller has. `gone`: its pod is known to be no more."""
    there = workload
    return Instance(
        namespace=attachment.namespace,
        name=attachment.name,
        uid=attachment.uid,
        version=attachment.version,
        pool="",
        state=names.STATE_LEASED,
        tenant=attachment.tenant,
        run=attachment.run,
        key=attachment.key,
        tier=TIER,
        image=there.image if there else "",
        image_digest=there.image_digest if there else None,
        node=there.node if there else None,
        address=there.address if there else None,
        nonce=there.nonce if there else "",
        key_id=there.key_id if there else "",
        claim_id=attachment.claim_id,
        created_at=attachment.created_at,
        started_at=attachment.created_at,
        expires_at=attachment.expires_at,
        terms=attachment.terms,
        request=attachment.request,
        running=there is not None and there.running,
        ending=ending(attachment, workload) or gone,
        place=Place(
            attachment.pod,
            attachment.container,
            there.port if there else 0,
            attachment.boot_id or "",
        ),
    )
