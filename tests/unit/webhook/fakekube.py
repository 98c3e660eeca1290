"""An API server in memory for a handful of objects: versions, conditional writes, late readers.

It is real in what the webhook depends on: every write gives a new version, a write with an old
version is a conflict, a failed `test` is a 422, and API servers see a changed configuration late.
"""

from __future__ import annotations

import base64
import copy
from typing import Any

import trio

from sandman import names
from sandman.service.kube import errors
from tests.unit.webhook import rfc6902

NAMESPACE = names.SYSTEM_NAMESPACE


class FakeKube:
    """Objects by plural and name; `history` holds every bundle that was published, with its time."""

    def __init__(self, hooks: int = 1) -> None:
        self._version = 0
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.history: list[tuple[float, bytes]] = []
        self.calls: list[tuple[str, str]] = []
        self.is_down = False
        for name in (names.WEBHOOK_TLS_SECRET, names.KEYS_SECRET):
            self.store("secrets", name, {"type": "Opaque"})
        entries = [
            {"name": f"hook{i}.sandman.dev", "clientConfig": {"service": {}}} for i in range(hooks)
        ]
        self.store(
            "mutatingwebhookconfigurations", names.WEBHOOK_CONFIGURATION, {"webhooks": entries}
        )

    def store(self, plural: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Write unconditionally, as an operator with kubectl does."""
        self._version += 1
        stored = copy.deepcopy(body)
        stored.setdefault("metadata", {}).update(name=name, resourceVersion=str(self._version))
        self.objects[plural, name] = stored
        if plural == "mutatingwebhookconfigurations":
            self.history.append((trio.current_time(), self.bundle()))
        return copy.deepcopy(stored)

    async def get(
        self, resource: Any, name: str, *, namespace: str | None = None
    ) -> dict[str, Any]:
        await self._call("get", name)
        return copy.deepcopy(self._find(resource, name))

    async def create(
        self, resource: Any, body: Any, *, namespace: str | None = None
    ) -> dict[str, Any]:
        name = body["metadata"]["name"]
        await self._call("create", name)
        if (resource.plural, name) in self.objects:
            raise errors.AlreadyExistsError(f"{name} already exists", status=409)
        return self.store(resource.plural, name, body)

    async def replace(
        self, resource: Any, name: str, body: Any, *, namespace: str | None = None
    ) -> dict[str, Any]:
        await self._call("replace", name)
        if (
            body["metadata"]["resourceVersion"]
            != self._find(resource, name)["metadata"]["resourceVersion"]
        ):
            raise errors.ConflictError("the object has been modified", status=409)
        return self.store(resource.plural, name, body)

    async def patch_json(self, resource: Any, name: str, operations: Any) -> dict[str, Any]:
        await self._call("patch", name)
        found = self._find(resource, name)
        for operation in operations:
            if operation["op"] == "test":
                assert operation["path"] == "/metadata/resourceVersion"
                if found["metadata"]["resourceVersion"] != operation["value"]:
                    raise errors.InvalidError("testing value failed", status=422)
        rest = [one for one in operations if one["op"] != "test"]
        return self.store(resource.plural, name, rfc6902.apply(found, rest))

    async def _call(self, verb: str, name: str) -> None:
        # Two checkpoints and a moment: any other task may act between a read and the next write.
        await trio.sleep(0.005)
        self.calls.append((verb, name))
        if self.is_down:
            raise errors.UnavailableError("no connection")

    def _find(self, resource: Any, name: str) -> dict[str, Any]:
        try:
            return self.objects[resource.plural, name]
        except KeyError:
            raise errors.NotFoundError(f"{name} not found", status=404) from None

    # --- looking in from outside -----------------------------------------------------------------

    def secret(self, name: str) -> dict[str, bytes]:
        """The entries of a Secret."""
        data = self.objects["secrets", name].get("data") or {}
        return {key: base64.b64decode(value) for key, value in data.items()}

    def put_secret(self, name: str, data: dict[str, bytes]) -> None:
        """Overwrite the entries of a Secret."""
        body = copy.deepcopy(self.objects["secrets", name])
        body["data"] = {key: base64.b64encode(value).decode() for key, value in data.items()}
        self.store("secrets", name, body)

    def bundle(self) -> bytes:
        """What the first entry of the configuration publishes."""
        found = self.objects.get(("mutatingwebhookconfigurations", names.WEBHOOK_CONFIGURATION))
        hooks = found["webhooks"] if found else []
        return base64.b64decode(hooks[0]["clientConfig"].get("caBundle", "")) if hooks else b""

    def put_bundle(self, bundle: bytes) -> None:
        """Overwrite the bundle in every entry."""
        key = ("mutatingwebhookconfigurations", names.WEBHOOK_CONFIGURATION)
        body = copy.deepcopy(self.objects[key])
        for hook in body["webhooks"]:
            hook["clientConfig"]["caBundle"] = base64.b64encode(bundle).decode()
        self.store(*key, body)

    def bundles_seen(self, lag_s: float) -> list[bytes]:
        """Every bundle that some API server may be using now, if they learn of changes this late."""
        now = trio.current_time()
        old = [bundle for at, bundle in self.history if at <= now - lag_s][-1:]
        return old + [bundle for at, bundle in self.history if at > now - lag_s]
