"""Users' pods and the Leases of attachments as the gateway's values, and the writes of those Leases.

A user's pod is read and never written.
"""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gateway.leases import number
from gateway.model import Identity
from gateway.provider import endings
from gateway.provider.kubernetes import translate
from gateway.provider.pods import load_object, terms_of
from gateway.workloads import Attachment, Workload
from sandman import grants, names
from sandman.errors import ConflictError, InternalError
from sandman.service import kube

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import Ending
    from sandman.service.kube.objects import ContainerStatus

LEAST_PORT = 1024
"""A daemon has no right to a lower one in most pods; an annotation that names one is not the webhook's."""


class TakenError(Exception):
    """Somebody is attached there already."""


# --- objects to values ---------------------------------------------------------------------------


def workloads(pod: kube.Pod) -> list[Workload]:
    """The injected containers of a user's pod."""
    meta = pod.metadata
    if meta.label(names.LABEL_INJECT) != names.INJECT_WORKLOAD or pod.spec.host_network:
        return []
    nonce, key_id = (
        meta.annotation(names.ANNOTATION_NONCE),
        meta.annotation(names.ANNOTATION_KEY_ID),
    )
    if not nonce or not key_id or not meta.annotation(names.ANNOTATION_INJECTED):
        return []
    ports = load_object(meta.annotation(names.ANNOTATION_CONTAINERS))
    found = []
    for container in pod.spec.containers or ():
        port = ports.get(container.name)
        if type(port) is int and LEAST_PORT <= port <= 65535:
            status = _status(pod, container.name)
            found.append(
                Workload(
                    namespace=meta.namespace,
                    pod=meta.name,
                    uid=meta.uid,
                    container=container.name,
                    port=port,
                    nonce=grants.container_nonce(nonce, container.name),
                    key_id=key_id,
                    labels=meta.labels or {},
                    image=container.image,
                    image_digest=status.image_id or None if status else None,
                    node=pod.spec.node_name or None,
                    address=pod.status.pod_ip or None,
                    restarts=status.restart_count if status else 0,
                    running=_runs(status),
                    deleting=meta.deletion_timestamp is not None,
                    ending=endings.of_pod(pod),
                )
            )
    return found


def _status(pod: kube.Pod, name: str) -> ContainerStatus | None:
    return next((one for one in pod.status.container_statuses or () if one.name == name), None)


def _runs(status: ContainerStatus | None) -> bool:
    return status is not None and status.state is not None and status.state.running is not None


def attachment(lease: kube.Lease) -> Attachment | None:
    """What a Lease says; None when somebody broke it."""
    meta = lease.metadata
    place = load_object(meta.annotation(names.ANNOTATION_WORKLOAD))
    terms = load_object(meta.annotation(names.ANNOTATION_LEASE))
    claim = load_object(meta.annotation(names.ANNOTATION_CLAIM))
    texts = [place.get(key) for key in ("namespace", "pod", "uid", "container")]
    texts += [claim.get("id"), meta.label(names.LABEL_TENANT)]
    taken_at, expires_at = number(terms.get("taken_at")), number(terms.get("expires_at"))
    restarts = place.get("restarts")
    if not all(isinstance(text, str) and text for text in texts):
        return None
    if taken_at is None or expires_at is None or type(restarts) is not int:
        return None
    namespace, pod, uid, container, claim_id, tenant = (str(text) for text in texts)
    boot_id = place.get("boot_id")
    return Attachment(
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        tenant=tenant,
        run=meta.label(names.LABEL_RUN) or None,
        key=meta.label(names.LABEL_KEY) or None,
        claim_id=claim_id,
        namespace=namespace,
        pod=pod,
        pod_uid=uid,
        container=container,
        restarts=restarts,
        boot_id=boot_id if isinstance(boot_id, str) else None,
        identity=_identity(load_object(meta.annotation(names.ANNOTATION_IDENTITY))),
        created_at=taken_at,
        expires_at=expires_at,
        terms=terms_of(terms),
        request=load_object(meta.annotation(names.ANNOTATION_REQUEST)),
        ending=endings.of_record(load_object(meta.annotation(names.ANNOTATION_ENDED))),
    )


def _identity(told: Mapping[str, object]) -> Identity | None:
    user, groups = told.get("user"), told.get("groups")
    if not isinstance(user, str) or not isinstance(groups, list):
        return None
    return Identity(user, tuple(str(one) for one in groups))


# --- values to objects ---------------------------------------------------------------------------


def body(wanted: Attachment) -> dict[str, Any]:
    """The Lease of an attachment whose handshake is to follow."""
    labels = {names.LABEL_ATTACHED: "true", names.LABEL_TENANT: wanted.tenant}
    labels |= {names.LABEL_RUN: wanted.run} if wanted.run else {}
    labels |= {names.LABEL_KEY: wanted.key} if wanted.key else {}
    annotations = {
        names.ANNOTATION_WORKLOAD: _place(wanted),
        names.ANNOTATION_LEASE: json.dumps(_lease(wanted)),
        names.ANNOTATION_CLAIM: json.dumps({"id": wanted.claim_id}),
        names.ANNOTATION_REQUEST: json.dumps(dict(wanted.request)),
    }
    if wanted.identity is not None:
        annotations[names.ANNOTATION_IDENTITY] = json.dumps(dataclasses.asdict(wanted.identity))
    now = kube.micro_time(datetime.fromtimestamp(wanted.created_at, UTC))
    seconds = max(1, round(wanted.expires_at - wanted.created_at))
    return {
        "metadata": {"name": wanted.name, "labels": labels, "annotations": annotations},
        # For people who look: what counts stands in the annotations.
        "spec": {
            "holderIdentity": wanted.tenant,
            "acquireTime": now,
            "leaseDurationSeconds": seconds,
        },
    }


def _lease(wanted: Attachment) -> dict[str, object]:
    """What was agreed on, as `pods.terms_of` reads it again."""
    terms = wanted.terms
    told = {
        "taken_at": wanted.created_at,
        "expires_at": wanted.expires_at,
        "ttl_s": terms.ttl_s,
        "idle_s": terms.idle_s,
        "max_s": terms.max_s,
    }
    found: dict[str, object] = {name: value for name, value in told.items() if value is not None}
    return {**found, "run": True} if terms.of_run else found


def _place(one: Attachment) -> str:
    place: dict[str, object] = {
        "namespace": one.namespace,
        "pod": one.pod,
        "uid": one.pod_uid,
        "container": one.container,
        "restarts": one.restarts,
    }
    if one.boot_id is not None:
        place["boot_id"] = one.boot_id
    return json.dumps(place)


class Attachments:
    """Reads and writes of attachments' Leases, and reads of users' pods.

    Args:
        api: the API server.
        namespace: where the Leases are, Sandman's first for sandboxes.
    """

    def __init__(self, api: kube.Kube, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    async def create(self, wanted: Attachment) -> Attachment:
        """Take a container.

        Raises:
            TakenError: somebody has it.
            SandmanError: whether it was taken is not known.
        """
        try:
            made = await self._api.create(kube.LEASES, body(wanted), namespace=self._namespace)
        except kube.AlreadyExistsError as error:
            raise TakenError(wanted.name) from error
        except kube.KubeError as error:
            raise translate(error) from error
        return _read(made)

    async def met(self, one: Attachment, boot_id: str) -> Attachment:
        """Write down which start of the daemon answered.

        Raises:
            ConflictError: somebody has ended the attachment meanwhile.
            SandmanError: whether it is written is not known.
        """
        place = _place(dataclasses.replace(one, boot_id=boot_id))
        return await self._annotate(one, {names.ANNOTATION_WORKLOAD: place})

    async def mark(self, one: Attachment, why: Ending) -> None:
        """Write down why it ends, so that every replica tells the same; one that is gone is no error.

        Raises:
            SandmanError: it could not be written.
        """
        record = json.dumps({"reason": why.reason, "detail": why.detail, "at": why.at})
        try:
            await self._annotate(one, {names.ANNOTATION_ENDED: record})
        except ConflictError:
            return

    async def _annotate(self, one: Attachment, annotations: Mapping[str, str]) -> Attachment:
        operations: list[dict[str, object]] = [
            {"op": "test", "path": "/metadata/uid", "value": one.uid}
        ]
        for key, value in annotations.items():
            path = f"/metadata/annotations/{key.replace('/', '~1')}"
            operations.append({"op": "add", "path": path, "value": value})
        try:
            changed = await self._api.patch_json(
                kube.LEASES, one.name, operations, namespace=self._namespace, idempotent=True
            )
        except (kube.NotFoundError, kube.InvalidError) as error:
            raise ConflictError("this attachment has ended meanwhile") from error
        except kube.KubeError as error:
            raise translate(error) from error
        return _read(changed)

    async def delete(self, one: Attachment) -> None:
        """Give the container free; one that is gone already is no error.

        Raises:
            SandmanError: it could not be deleted.
        """
        try:
            await self._api.delete(
                kube.LEASES,
                one.name,
                kube.Deletion(uid=one.uid),
                namespace=self._namespace,
                idempotent=True,
            )
        except (kube.NotFoundError, kube.ConflictError):
            return
        except kube.KubeError as error:
            raise translate(error) from error

    async def read(self, name: str) -> Attachment | None:
        """The attachment of this name as it is now; None when there is none.

        Raises:
            SandmanError: no answer.
        """
        try:
            return attachment(await self._api.get(kube.LEASES, name, namespace=self._namespace))
        except kube.NotFoundError:
            return None
        except kube.KubeError as error:
            raise translate(error) from error

    async def workload(self, one: Attachment) -> Workload | None:
        """Its container as it is now; None when that pod is no more.

        Raises:
            SandmanError: no answer.
        """
        found = await self.pod(one.namespace, one.pod)
        return next(
            (w for w in found if (w.uid, w.container) == (one.pod_uid, one.container)), None
        )

    async def pod(self, namespace: str, name: str) -> list[Workload]:
        """The injected containers of a pod as it is now; none when it is not there.

        Raises:
            SandmanError: no answer.
        """
        try:
            return workloads(await self._api.get(kube.PODS, name, namespace=namespace))
        except kube.NotFoundError:
            return []
        except kube.KubeError as error:
            raise translate(error) from error


def _read(lease: kube.Lease) -> Attachment:
    found = attachment(lease)
    if found is None:
        raise InternalError(
            f"the API server answers with a Lease that makes no sense: {lease.metadata.name}"
        )
    return found
