"""The owner that a caller gives its sandbox: a Job in the sandbox's own namespace, with which it goes.

The garbage collector of Kubernetes does it, which needs nothing of ours. It deletes whatever has an owner that it
does not find in the same namespace: another one would be the sandbox's end within seconds.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

from gateway.model import Owner
from sandman.errors import BadRequestError

if TYPE_CHECKING:
    from gateway.model import SandboxRequest
    from gateway.roster import Roster


class Jobs(Protocol):
    """What is needed of the provider."""

    async def owner(self, namespace: str, name: str) -> str | None:
        """The uid of the Job of this name; None when there is none, or it is about to go."""


class Owners:
    """Finds owners.

    Args:
        jobs: the API server.
        roster: knows where pools are.
    """

    def __init__(self, jobs: Jobs, roster: Roster) -> None:
        self._jobs = jobs
        self._roster = roster

    async def resolve(self, request: SandboxRequest) -> SandboxRequest:
        """The request with its owner as the API server has it.

        Raises:
            BadRequestError: there is no such Job where the pool is.
            SandmanError: the API server does not answer.
        """
        owner, spec = request.owner, self._roster.pools.get(request.pool)
        if owner is None or spec is None:
            return request
        if owner.namespace not in {"", spec.namespace}:
            raise BadRequestError(
                f"an owner must be in the namespace of its sandbox, {spec.namespace}",
                field="owner.namespace",
            )
        uid = await self._jobs.owner(spec.namespace, owner.name)
        if uid is None or owner.uid not in {None, uid}:
            raise BadRequestError(
                f"there is no Job {owner.name} in {spec.namespace}"
                + ("" if owner.uid is None else f" with the uid {owner.uid[:64]}"),
                field="owner.name" if uid is None else "owner.uid",
            )
        return dataclasses.replace(request, owner=Owner(spec.namespace, owner.name, uid))
