"""Where pods come from. What the pool needs of a provider, and the news that a provider sends up."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.model import Assignment, Bounds, Broken, Ending, Instance, PoolSpec
    from gateway.profiles import Known
    from sandman.errors import SandmanError


class ClaimLostError(Exception):
    """Somebody else has the placeholder, or it is going away: take the next."""


class RefusedError(Exception):
    """The API server answered that it did not carry out a claim or creation: nothing was taken, for
    certain. `error` is what the caller hears."""

    def __init__(self, error: SandmanError) -> None:
        super().__init__(str(error))
        self.error = error


class BusyError(RefusedError):
    """The API server has too much to do and did not carry it out: to be tried again, later and by fewer at
    once. `error.retry_after` is what it asked for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """A pod is there, or has changed."""

    instance: Instance


@dataclasses.dataclass(frozen=True, slots=True)
class Gone:
    """A pod is no more; `ending` says why as far as the pod itself told."""

    uid: str
    ending: Ending


@dataclasses.dataclass(frozen=True, slots=True)
class PoolSeen:
    """A pool is there, or has changed."""

    spec: PoolSpec


@dataclasses.dataclass(frozen=True, slots=True)
class PoolGone:
    """A pool's Deployment is no more. Other namespaces may hold one of the same name."""

    namespace: str
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSeen:
    """A node takes new claims, or not (cordoned, not ready), and says which images it holds."""

    name: str
    closed: bool
    images: tuple[str, ...] = ()
    gone: bool = False
    """It is no more."""
    lost: bool = False
    """Its kubelet is not heard of, or there is no such node any more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Synced:
    """All that was there at the start has been told."""


News = Seen | Gone | PoolSeen | PoolGone | NodeSeen | Synced


class Provider(Protocol):
    """What `pool` needs: each method is one thing done to one pod."""

    async def claim(self, instance: Instance, assignment: Assignment) -> Instance:
        """Take a free placeholder, and change its image when the assignment's is another.

        Raises:
            ClaimLostError: it is not free any more.
            RefusedError: the API server did not do it; BusyError: it has too much to do.
            SandmanError: whether it did is not known.
        """

    async def create(self, spec: PoolSpec, name: str, assignment: Assignment) -> Instance:
        """Make a pod of this name from the pool's template, leased from the start.

        Raises:
            RefusedError: the API server did not do it.
            SandmanError: whether it did is not known.
        """

    async def mark_prepared(self, instance: Instance, what: str, boot_id: str) -> Instance:
        """Write on a reserved pod what it is prepared for, and in which daemon start; what it is then.

        Raises:
            DeletedError: it is gone, or going.
            SandmanError: whether it was written is not known.
        """

    async def resize(self, instance: Instance, bounds: Bounds) -> None:
        """Tell its kubelet to give exactly this pod other resources, in place. Its doing comes as news.

        Raises:
            RefusedError: the API server did not take it.
            SandmanError: whether it did is not known.
        """

    async def start(self, instance: Instance) -> None:
        """Let a held placeholder start; one that is gone or was let go already is no error."""

    async def mark(self, instance: Instance, ending: Ending) -> None:
        """Write on exactly this pod why it ends, so that every replica tells the same; one that is gone
        already is no error."""

    async def delete(self, instance: Instance) -> None:
        """Delete exactly this pod (by uid); one that is gone already is no error."""

    async def set_network(self, instance: Instance, profile: str) -> Instance:
        """Write another egress profile on exactly this sandbox; what it is then.

        Raises:
            DeletedError: it is gone, or going.
            SandmanError: whether it was written is not known.
        """

    async def agree(self, instance: Instance, request: Mapping[str, object]) -> Instance:
        """Write another record of its request on exactly this sandbox; what it is then.

        Raises:
            DeletedError: it is gone, or going.
            SandmanError: whether it was written is not known.
        """

    async def profiles(self, namespace: str) -> Known:
        """The egress profiles of a namespace.

        Raises:
            SandmanError: the API server does not tell.
        """

    async def renew(self, instance: Instance, age: float) -> None:
        """Write on exactly this pod that there was word of its caller so many seconds ago; one that ends or is
        gone is no error."""

    async def reclaim(self, instance: Instance, ending: Ending) -> bool:
        """Write on the pod why it ends, and delete it, if it is as it was seen.

        Returns:
            Whether it is gone, or going: False when somebody has renewed or ended it meanwhile.
        """

    async def bury(self, instance: Instance) -> None:
        """Delete exactly this pod without its kubelet, whose node is lost."""

    async def owner(self, namespace: str, name: str) -> str | None:
        """The uid of the Job of this name; None when there is none, or it is about to go."""

    async def discard(self, namespace: str, name: str, claim_id: str) -> Instance | None:
        """Delete the pod if it carries this claim, even when the reply to the claim or creation was
        lost; answers which it deleted. One that does not carry it now may later: a write whose caller
        has gone can still be on its way.

        Raises:
            SandmanError: whether it carries the claim is not known.
        """

    async def read(self, namespace: str, name: str) -> Instance | None:
        """The pod as the API server has it now."""

    async def stop_pool(self, spec: PoolSpec, broken: Broken) -> None:
        """Scale the pool to nothing, write on its Deployment why, and tell it as an event. A Deployment that is
        gone is no error.

        Raises:
            SandmanError: whether it was done is not known.
        """

    async def restart_pool(self, spec: PoolSpec) -> None:
        """Take off why it was stopped, and scale it to what it wanted before, unless somebody has scaled it
        meanwhile. A Deployment that is gone is no error.

        Raises:
            SandmanError: whether it was done is not known.
        """

    async def explain(self, instance: Instance) -> Ending | None:
        """Why its container cannot start, from the pod's events; None when they do not tell."""
