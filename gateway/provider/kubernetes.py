"""Pods of a real cluster: the provider's methods as calls to the API server.

Here Kubernetes errors become ours; nothing of `sandman.service.kube` goes further up.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import structlog
import trio

from gateway import profiles, sizing
from gateway.provider import BusyError, ClaimLostError, RefusedError, endings, patches, pods
from sandman import names
from sandman.errors import (
    BadRequestError,
    DeletedError,
    ImageNotFoundError,
    InternalError,
    QuotaError,
    SandmanError,
    UnreachableError,
)
from sandman.service import kube

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gateway.model import Assignment, Bounds, Broken, Ending, Instance, PoolSpec

log = structlog.get_logger()

DELETE_GRACE_S = 1
"""Seconds between TERM and KILL for a released pod: its daemon exits at once on TERM."""
RETRY_MAX_S = 60.0
"""Longest wait that a caller is told, whatever the API server or a proxy before it says."""
CONFLICT_TRIES = 3
"""For a claim or creation; the API server has tried three to five times itself before it answers 409. What is
refused still counts as a server that is too busy: fewer are in flight then."""
CONFLICT_PAUSE_S = 0.1
"""Longest pause between two of them: some ten writes to one object."""
RECLAIM_TRIES = 3
"""For the end of a sandbox whose kubelet reports just then. The next sweep tries again."""
EXPLAIN_TRIES = 8
EXPLAIN_PAUSE_S = 0.25
"""The event with the cause is written beside the status, up to two seconds later."""


class KubernetesProvider:
    """Pods as sandboxes.

    Args:
        api: the API server.
        wall: seconds since the epoch.
    """

    def __init__(self, api: kube.Kube, wall: Callable[[], float]) -> None:
        self._api = api
        self._wall = wall
        self.claim_writes: Counter[str] = Counter()
        """Writes that callers wait for, by tier; those that were refused too."""

    async def claim(self, instance: Instance, assignment: Assignment) -> Instance:
        """See `Provider.claim`."""
        operations = patches.claim(instance, assignment, self._wall())
        try:
            pod = await self._take(
                assignment,
                lambda: self._api.patch_json(
                    kube.PODS, instance.name, operations, namespace=instance.namespace
                ),
            )
        except (kube.InvalidError, kube.NotFoundError) as error:
            if isinstance(error, kube.InvalidError) and not error.is_patch_failure:
                raise RefusedError(
                    BadRequestError(
                        f"the API server refuses the image: {error.message}", field="image"
                    )
                ) from error
            raise ClaimLostError(instance.uid) from error
        except kube.KubeError as error:
            raise _failure(error) from error
        return pods.instance(pod)

    async def _take(
        self, assignment: Assignment, write: Callable[[], Awaitable[kube.Pod]]
    ) -> kube.Pod:
        """Again when others write the same all the time (the kubelet the pod, creations the count of the
        namespace's quota): a 409 was not carried out."""
        for _ in range(CONFLICT_TRIES - 1):
            self._count(assignment)
            with contextlib.suppress(kube.ConflictError):
                return await write()
            # Those that met are not to meet again.
            await trio.sleep(random.uniform(0, CONFLICT_PAUSE_S))  # noqa: S311 - guards nothing
        self._count(assignment)
        return await write()

    def _count(self, assignment: Assignment) -> None:
        # For a reservation nobody waits.
        self.claim_writes[assignment.tier.value] += assignment.reservation is None

    async def create(self, spec: PoolSpec, name: str, assignment: Assignment) -> Instance:
        """See `Provider.create`."""
        body = patches.cold_pod(spec, name, assignment)
        try:
            pod = await self._take(
                assignment, lambda: self._api.create(kube.PODS, body, namespace=spec.namespace)
            )
        except kube.KubeError as error:
            raise _failure(error) from error
        return pods.instance(pod)

    async def mark_prepared(self, instance: Instance, what: str, boot_id: str) -> Instance:
        """See `Provider.mark_prepared`."""
        text = "its pod went away while it was prepared"
        return await self._written(instance, patches.prepared(instance, what, boot_id), text)

    async def set_network(self, instance: Instance, profile: str) -> Instance:
        """See `Provider.set_network`."""
        return await self._written(instance, patches.network(instance, profile, self._wall()))

    async def agree(self, instance: Instance, request: Mapping[str, object]) -> Instance:
        """See `Provider.agree`."""
        return await self._written(instance, patches.agreed(instance, request))

    async def _written(
        self, instance: Instance, patch: list[patches.Operation], gone: str = "it ends, or is gone"
    ) -> Instance:
        try:
            pod = await self._api.patch_json(
                kube.PODS, instance.name, patch, namespace=instance.namespace, idempotent=True
            )
        except (kube.InvalidError, kube.NotFoundError) as error:
            raise DeletedError(gone, sandbox=instance.id) from error
        except kube.KubeError as error:
            raise translate(error) from error
        return pods.instance(pod)

    async def profiles(self, namespace: str) -> profiles.Known:
        """See `Provider.profiles`."""
        try:
            listing = await self._api.list(
                kube.NETWORK_POLICIES, namespace=namespace, label_selector=names.LABEL_PROFILE
            )
        except kube.KubeError as error:
            raise translate(error) from error
        return profiles.of_policies(listing.items)

    async def resize(self, instance: Instance, bounds: Bounds) -> None:
        """See `Provider.resize`."""
        self.claim_writes[instance.tier or "unknown"] += 1
        try:
            await self._api.patch_json(
                kube.PODS,
                instance.name,
                sizing.operations(instance.uid, bounds),
                namespace=instance.namespace,
                subresource="resize",
                idempotent=True,
            )
        except kube.KubeError as error:
            raise _failure(error) from error

    async def start(self, instance: Instance) -> None:
        """See `Provider.start`."""
        await self._write(instance, patches.start(instance))

    async def scale(self, spec: PoolSpec, replicas: int) -> None:
        """See `scaler.Scale`."""
        try:
            await self._api.patch_merge(
                kube.DEPLOYMENTS,
                spec.deployment,
                {"spec": {"replicas": replicas}},
                namespace=spec.namespace,
                subresource="scale",
                idempotent=True,
            )
        except kube.NotFoundError:
            return
        except kube.KubeError as error:
            raise translate(error) from error

    async def mark(self, instance: Instance, ending: Ending) -> None:
        """See `Provider.mark`."""
        await self._write(instance, patches.ended(instance, ending))

    async def _write(self, instance: Instance, operations: list[patches.Operation]) -> None:
        try:
            await self._api.patch_json(
                kube.PODS,
                instance.name,
                operations,
                namespace=instance.namespace,
                idempotent=True,
            )
        except (kube.NotFoundError, kube.InvalidError):
            # Gone already, or the name is another pod's by now.
            return
        except kube.KubeError as error:
            raise translate(error) from error

    async def delete(self, instance: Instance) -> None:
        """See `Provider.delete`."""
        await self._delete(
            instance.namespace,
            instance.name,
            kube.Deletion(uid=instance.uid, grace_period_s=DELETE_GRACE_S),
        )

    async def renew(self, instance: Instance, age: float) -> None:
        """See `Provider.renew`."""
        await self._write(instance, patches.renewal(instance, age, self._wall()))

    async def reclaim(self, instance: Instance, ending: Ending) -> bool:
        """See `Provider.reclaim`."""
        for _ in range(RECLAIM_TRIES):
            marked = await self._mark_unchanged(instance, ending)
            if marked is not None:
                return await self._delete_unchanged(marked)
            now = await self.read(instance.namespace, instance.name)
            if now is None or now.uid != instance.uid:
                return True
            if now.renewed != instance.renewed or now.ending is not None:
                return False
            instance = now
        return False

    async def _mark_unchanged(self, instance: Instance, ending: Ending) -> Instance | None:
        operations = patches.reclaim(instance, ending)
        try:
            pod = await self._api.patch_json(
                kube.PODS, instance.name, operations, namespace=instance.namespace
            )
        except (kube.InvalidError, kube.ConflictError, kube.NotFoundError):
            return None
        except kube.KubeError as error:
            raise translate(error) from error
        return pods.instance(pod)

    async def _delete_unchanged(self, marked: Instance) -> bool:
        """Of what is marked only a kubelet writes any more: its status does not save it."""
        for _ in range(RECLAIM_TRIES):
            deletion = kube.Deletion(
                uid=marked.uid, resource_version=marked.version, grace_period_s=DELETE_GRACE_S
            )
            try:
                await self._api.delete(
                    kube.PODS, marked.name, deletion, namespace=marked.namespace, idempotent=True
                )
            except kube.NotFoundError:
                return True
            except kube.ConflictError:
                now = await self.read(marked.namespace, marked.name)
                if now is None or now.uid != marked.uid or now.deleting:
                    return True
                marked = now
            except kube.KubeError as error:
                raise translate(error) from error
            else:
                return True
        return False

    async def bury(self, instance: Instance) -> None:
        """See `Provider.bury`."""
        deletion = kube.Deletion(uid=instance.uid, grace_period_s=0)
        await self._delete(instance.namespace, instance.name, deletion)

    async def owner(self, namespace: str, name: str) -> str | None:
        """See `Provider.owner`."""
        try:
            job = await self._api.get(kube.JOBS, name, namespace=namespace)
        except kube.NotFoundError:
            return None
        except kube.KubeError as error:
            raise translate(error) from error
        return job.metadata.uid if job.metadata.deletion_timestamp is None else None

    async def discard(self, namespace: str, name: str, claim_id: str) -> Instance | None:
        """See `Provider.discard`."""
        instance = await self.read(namespace, name)
        if instance is None or instance.claim_id != claim_id:
            return None
        await self.delete(instance)
        return instance

    async def read(self, namespace: str, name: str) -> Instance | None:
        """See `Provider.read`."""
        try:
            pod = await self._api.get(kube.PODS, name, namespace=namespace)
        except kube.NotFoundError:
            return None
        except kube.KubeError as error:
            raise translate(error) from error
        return pods.instance(pod)

    async def stop_pool(self, spec: PoolSpec, broken: Broken) -> None:
        """See `Provider.stop_pool`."""
        await self._patch_pool(spec, patches.stopped(broken))
        try:
            await self._api.create(
                kube.EVENTS, patches.stop_event(spec, broken), namespace=spec.namespace
            )
        except kube.KubeError as error:
            # The annotation tells the same.
            log.warning("an event was not written", pool=spec.name, error=str(error))

    async def restart_pool(self, spec: PoolSpec) -> None:
        """See `Provider.restart_pool`."""
        await self._patch_pool(spec, patches.restarted(spec))

    async def _patch_pool(self, spec: PoolSpec, patch: dict[str, Any]) -> None:
        try:
            await self._api.patch_merge(
                kube.DEPLOYMENTS, spec.deployment, patch, namespace=spec.namespace, idempotent=True
            )
        except kube.NotFoundError:
            return
        except kube.KubeError as error:
            raise translate(error) from error

    async def explain(self, instance: Instance) -> Ending | None:
        """See `Provider.explain`."""
        for _ in range(EXPLAIN_TRIES):
            ending = endings.of_image(instance.image, await self._image_messages(instance))
            if ending is not None:
                return ending
            if instance.ending is not None and instance.ending.reason != "died":
                return None
            await trio.sleep(EXPLAIN_PAUSE_S)
        return None

    async def _image_messages(self, instance: Instance) -> list[str]:
        own = [instance.waiting[1]] if instance.is_stuck and instance.waiting else []
        try:
            listing = await self._api.list(
                kube.EVENTS,
                namespace=instance.namespace,
                field_selector=f"involvedObject.uid={instance.uid}",
            )
        except kube.KubeError as error:
            log.warning("events could not be read", pod=instance.name, error=str(error))
            return own
        return own + endings.image_messages(listing.items)

    async def _delete(self, namespace: str, name: str, deletion: kube.Deletion) -> None:
        try:
            await self._api.delete(kube.PODS, name, deletion, namespace=namespace, idempotent=True)
        except (kube.NotFoundError, kube.ConflictError):
            # Gone already, or the name is another pod's by now.
            return
        except kube.KubeError as error:
            raise translate(error) from error


def _failure(error: kube.KubeError) -> RefusedError | SandmanError:
    """Of a claim or creation. A refusal is the server's own word and nothing else: a connection that
    broke, a status of a proxy before it or a time limit leave open what it will do."""
    is_known = not error.maybe_applied and not isinstance(error, kube.UnexpectedStatusError)
    if isinstance(error, (kube.ThrottledError, kube.ConflictError)):
        return BusyError(translate(error))
    if is_known and 400 <= error.status < 500:
        return RefusedError(translate(error))
    return translate(error)


def translate(error: kube.KubeError) -> SandmanError:
    """What a caller hears of a failed call to the API server."""
    text = error.message
    if isinstance(error, kube.ForbiddenError) and "exceeded quota" in text:
        return QuotaError(f"the namespace's quota is used up: {text}", retry_after=5.0)
    if isinstance(error, kube.InvalidError) and "image" in text:
        return ImageNotFoundError(f"the API server refuses the image: {text}")
    if isinstance(error, kube.UnauthorizedError):
        # This replica's pod was deleted, and with it its token; another replica has one.
        return UnreachableError(
            "the API server does not know this gateway any more", retry_after=1.0
        )
    if isinstance(error, kube.ForbiddenError) and error.is_of_authorizer:
        # It has just started, or this gateway lacks a right: then that is said again and again.
        return UnreachableError(f"the API server: {error}", retry_after=1.0)
    if isinstance(error, (kube.ThrottledError, kube.UnavailableError)):
        wait = min(error.retry_after or 1.0, RETRY_MAX_S)
        return UnreachableError(f"the API server: {text}", retry_after=wait)
    return InternalError(f"the API server: {error}")
