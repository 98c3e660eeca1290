"""The API server as typed calls. What a call sends and raises is here; bytes are `transport`'s."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
import trio

from sandman.service.kube import (
    config,
    connection,
    counts,
    errors,
    objects,
    resources,
    retry,
    transport,
)

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")

REQUEST_TIMEOUT_S = 35.0
"""Seconds for one call with its retries. The API server itself gives up after 30 (admission included),
and its own word is better than ours."""
PAGE_SIZE = 500
"""Objects asked for at once in a list; what kubectl and client-go ask for."""

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"


@dataclasses.dataclass(frozen=True)
class Listing(Generic[T]):
    """A whole list and the version at which it was true."""

    items: list[T]
    resource_version: str


@dataclasses.dataclass(frozen=True)
class Selection:
    """Which objects of a kind.

    Args:
        namespace: one namespace; None: all of them.
        labels: label selector.
        fields: field selector.
    """

    namespace: str | None = None
    labels: str | None = None
    fields: str | None = None

    def params(self) -> dict[str, str]:
        """The query's part of it."""
        wanted = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in wanted.items() if value}


@dataclasses.dataclass(frozen=True)
class Deletion:
    """How to delete.

    Args:
        uid: only the object with this uid; another gives ConflictError.
        resource_version: only this version of it; another gives ConflictError.
        grace_period_s: seconds for a pod to end; the pod's own if None; 0 is by force.
        propagation: Background, Foreground or Orphan; the kind's default if None.
        dry_run: check everything and change nothing.
    """

    uid: str | None = None
    resource_version: str | None = None
    grace_period_s: int | None = None
    propagation: str | None = None
    dry_run: bool = False

    def body(self) -> dict[str, Any]:
        """The DeleteOptions."""
        conditions = {"uid": self.uid, "resourceVersion": self.resource_version}
        options = {
            "preconditions": {name: value for name, value in conditions.items() if value} or None,
            "gracePeriodSeconds": self.grace_period_s,
            "propagationPolicy": self.propagation,
            "dryRun": ["All"] if self.dry_run else None,
        }
        set_ones = {name: value for name, value in options.items() if value is not None}
        return {"apiVersion": "v1", "kind": "DeleteOptions", **set_ones}


class Kube:
    """A connection to one API server: `async with Kube(config.load()) as kube`.

    Every call raises a KubeError and ends within REQUEST_TIMEOUT_S (RequestTimeoutError); a tighter
    limit is a scope around the call. Reads are repeated when the server is busy or away. Writes are
    not, unless the caller says `idempotent`: a lost answer may mean that it was done.

    Args:
        target: the server and the credentials.
        max_requests: calls in flight at once; watches are not counted.
        luck: random numbers of [0, 1) for the jitter of retries.
    """

    def __init__(
        self,
        target: config.Target,
        *,
        max_requests: int = transport.MAX_REQUESTS,
        luck: Callable[[], float] = random.random,
    ) -> None:
        self.target = target
        token = config.TokenCache(target.read_token, trio.current_time)
        self._transport = transport.Transport(target, token, max_requests=max_requests)
        self._luck = luck
        self.counts = counts.Counts()

    async def __aenter__(self) -> Kube:
        return self

    async def __aexit__(self, *exc: object) -> None:
        with trio.move_on_after(1.0, shield=True):
            await self._transport.aclose()

    def __repr__(self) -> str:
        return f"<Kube {self.target.base_url} {self._transport.statistics()}>"

    def statistics(self) -> dict[str, int]:
        """Requests in flight and waiting for a place."""
        return self._transport.statistics()

    # --- reads -----------------------------------------------------------------------------------

    async def get(
        self,
        resource: resources.Resource[T],
        name: str,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> T:
        """One object.

        Raises:
            NotFoundError: there is none.
        """
        path = resource.path(name, namespace=namespace, subresource=subresource)
        return _decode(await self._call(connection.Request("GET", path)), resource.type)

    async def list(
        self,
        resource: resources.Resource[T],
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        resource_version: str | None = None,
    ) -> Listing[T]:
        """All objects of a kind, of one namespace or (None) of all, true at one version.

        Args:
            resource: the kind.
            namespace: one namespace, or None.
            label_selector: only objects with these labels.
            field_selector: only objects with these fields.
            resource_version: None asks for the newest state; "0" takes what the server has in its
                cache, cheaper and possibly older than what was read before.

        Raises:
            GoneError: the list changed too much while its pages were read; try again.
        """
        selection = Selection(namespace, label_selector, field_selector)
        items: list[T] = []
        token = ""
        while True:
            page = await self.list_page(
                resource, selection, continue_=token, resource_version=resource_version
            )
            items += page.items or ()
            token = page.metadata.continue_
            if not token:
                return Listing(items, page.metadata.resource_version)

    async def list_page(
        self,
        resource: resources.Resource[T],
        selection: Selection,
        *,
        continue_: str = "",
        resource_version: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> objects.ListOf[T]:
        """One page of a list; the next one's token is in its metadata.

        Raises:
            GoneError: the token is too old.
        """
        params = selection.params() | {"limit": str(limit)}
        if continue_:
            params["continue"] = continue_
        elif resource_version is not None:
            params["resourceVersion"] = resource_version
        path = resource.path(namespace=selection.namespace)
        body = await self._call(connection.Request("GET", path, params))
        return _decode(body, objects.ListOf[resource.type])  # type: ignore[name-defined]

    async def get_path(self, path: str) -> Any:  # noqa: ANN401 - any JSON
        """The JSON at a path that is no object's, as `/version`."""
        return _decode(await self._call(connection.Request("GET", path)), object)

    def open_watch(
        self, resource: resources.Resource[Any], selection: Selection, params: Mapping[str, str]
    ) -> contextlib.AbstractAsyncContextManager[connection.Connection]:
        """The bytes of a watch, on a connection of its own. `Reflector` is what to use.

        Raises:
            KubeError: the server refused it or cannot be reached.
        """
        path = resource.path(namespace=selection.namespace)
        query = {**selection.params(), **params, "watch": "true"}
        return self._transport.open_stream(connection.Request("GET", path, query))

    # --- writes ----------------------------------------------------------------------------------

    async def create(
        self,
        resource: resources.Resource[T],
        body: object,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> T:
        """Create an object (or, with `name` and `subresource`, an Eviction or a Binding).

        Raises:
            AlreadyExistsError: the name is taken.
            InvalidError: the server's validation refuses it.
            ForbiddenError: RBAC, admission or a quota refuses it.
        """
        if namespace is None and resource.namespaced:
            raise ValueError(f"{resource.plural} are created in a namespace")
        path = resource.path(name, namespace=namespace, subresource=subresource)
        values = msgspec.to_builtins(body) if subresource else resource.with_kind(body)
        return await self._write("POST", path, values, resource.type, dry_run=dry_run)

    async def replace(
        self,
        resource: resources.Resource[T],
        name: str,
        body: object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> T:
        """Put a whole object in the place of another. Use raw JSON values: typed ones are subsets.

        Raises:
            ConflictError: `metadata.resourceVersion` in the body is not the present one.
        """
        path = resource.path(name, namespace=namespace, subresource=subresource)
        values = resource.with_kind(body)
        return await self._write("PUT", path, values, resource.type, dry_run=dry_run)

    async def patch_json(
        self,
        resource: resources.Resource[T],
        name: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
        idempotent: bool = False,
    ) -> T:
        """Apply a JSON patch (RFC 6902), atomically.

        Raises:
            InvalidError: a `test` does not hold (`is_patch_failure`), or the result is invalid.
            NotFoundError: there is no such object.
        """
        path = resource.path(name, namespace=namespace, subresource=subresource)
        return await self._write(
            "PATCH", path, list(operations), resource.type,
            content_type=JSON_PATCH, dry_run=dry_run, idempotent=idempotent,
        )  # fmt: skip

    async def patch_merge(
        self,
        resource: resources.Resource[T],
        name: str,
        patch: object,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
        idempotent: bool = False,
    ) -> T:
        """Apply a merge patch (RFC 7386); `metadata.resourceVersion` in it makes it conditional.

        Raises:
            ConflictError: that version is not the present one.
            NotFoundError: there is no such object.
        """
        path = resource.path(name, namespace=namespace, subresource=subresource)
        return await self._write(
            "PATCH", path, patch, resource.type,
            content_type=MERGE_PATCH, dry_run=dry_run, idempotent=idempotent,
        )  # fmt: skip

    async def delete(
        self,
        resource: resources.Resource[Any],
        name: str,
        deletion: Deletion = Deletion(),
        *,
        namespace: str | None = None,
        idempotent: bool = False,
    ) -> None:
        """Delete an object. A second attempt of an idempotent one may raise NotFoundError.

        Raises:
            NotFoundError: there is none.
            ConflictError: it is another one, or another version of it, than `deletion` names.
        """
        path = resource.path(name, namespace=namespace)
        body = msgspec.json.encode(deletion.body())
        request = connection.Request("DELETE", path, body=body)
        await self._call(request, repeatable=idempotent)

    # --- beneath ---------------------------------------------------------------------------------

    async def _write(
        self,
        method: str,
        path: str,
        values: object,
        kind: type[T],
        *,
        content_type: str = "application/json",
        dry_run: bool = False,
        idempotent: bool = False,
    ) -> T:
        params = {"dryRun": "All"} if dry_run else {}
        body = msgspec.json.encode(values)
        request = connection.Request(method, path, params, body, content_type)
        return _decode(await self._call(request, repeatable=idempotent or dry_run), kind)

    async def _call(self, request: connection.Request, *, repeatable: bool = False) -> bytes:
        with trio.move_on_after(REQUEST_TIMEOUT_S):
            return await self._attempts(request, repeatable=repeatable or request.method == "GET")
        raise errors.RequestTimeoutError(
            f"{request.method} {request.path}: no answer in {REQUEST_TIMEOUT_S:g} s"
        )

    async def _attempts(self, request: connection.Request, *, repeatable: bool) -> bytes:
        attempt = 1
        while True:
            try:
                with self.counts.of(request.method, request.path):
                    return await self._transport.send(request)
            except errors.KubeError as error:
                wait = retry.delay_before_retry(error, attempt, self._luck())
                if wait is None or not repeatable:
                    raise
            await trio.sleep(wait)
            attempt += 1


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise errors.UnavailableError(f"the answer makes no sense: {error}") from error
