"""Makes certificates: asks the sandbox's daemon, its network and the API server, and signs what they said."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from gateway import certified
from gateway.certified import Clock, Issue, Network, Told
from gateway.daemons import LostError, NotListeningError
from sandman import certificates
from sandman.errors import (
    CapacityError,
    DiedError,
    NetworkNotAppliedError,
    NetworkUnsupportedError,
    NotFoundError,
    UnreachableError,
    VersionSkewError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from gateway.ground import Witness
    from gateway.model import Instance
    from gateway.networks import Networks
    from gateway.proxy import Proxy, Target
    from gateway.registry import Registry
    from sandman.certificates import Certificate

log = structlog.get_logger()

AT_ONCE = 16
"""Certificates in the making, of one replica: each is two reads of the API server and some probes."""
AT_ONCE_OF_ONE = 12
"""Of them those of one tenant: whoever asks for thousands, or whose sandboxes do not answer, leaves four to others."""
TURN_S = 10.0
"""Seconds that one waits for its turn: with LIMIT_S less than the 30 s of silence after which load balancers cut."""
AGAIN_S = 2.0
"""Seconds after which it makes sense to ask again: as long as one takes."""
LIMIT_S = 15.0
"""Seconds for one from its turn on: a daemon has five, and a network is probed twice for a second each."""


class Signers(Protocol):
    """The keys in force just now."""

    @property
    def sandbox_keys(self) -> Mapping[str, bytes]:
        """Keys that certificates' are made of, by id."""

    @property
    def current_key(self) -> str:
        """Id of the one that signs."""


class _Share:
    """One tenant's turns, and how many have or want one, so that it can be forgotten."""

    def __init__(self) -> None:
        self.turns = trio.Semaphore(AT_ONCE_OF_ONE)
        self.users = 0


class Turns:
    """Whose certificates are made just now: few of each tenant, and not too many of all together."""

    def __init__(self) -> None:
        self._all = trio.Semaphore(AT_ONCE)
        self._shares: dict[str, _Share] = {}

    def __len__(self) -> int:
        """Tenants that have or want a turn."""
        return len(self._shares)

    @contextlib.asynccontextmanager
    async def of(self, tenant: str) -> AsyncIterator[None]:
        """A turn for the block.

        Raises:
            CapacityError: it did not come in time.
        """
        share = self._shares.setdefault(tenant, _Share())
        share.users += 1
        try:
            async with contextlib.AsyncExitStack() as stack:
                with trio.move_on_after(TURN_S) as waiting:
                    # The tenant's own first: who waits for it keeps nobody else from the common ones.
                    await stack.enter_async_context(share.turns)
                    await stack.enter_async_context(self._all)
                if waiting.cancelled_caught:
                    raise CapacityError(
                        f"too many certificates are in the making: no turn within {TURN_S:g} s",
                        retry_after=AGAIN_S,
                    )
                yield
        finally:
            share.users -= 1
            if not share.users:
                del self._shares[tenant]


class Certifier:
    """Makes them.

    Args:
        witness: knows pods and nodes.
        proxy: the way to the daemons.
        networks: probes.
        registry: other pods.
        signers: the keys.
        wall: seconds since the epoch.
        replica: this gateway's name.
    """

    def __init__(
        self,
        witness: Witness,
        proxy: Proxy,
        networks: Networks,
        registry: Registry,
        signers: Signers,
        wall: Callable[[], float],
        replica: str,
    ) -> None:
        self._witness = witness
        self._proxy = proxy
        self._networks = networks
        self._registry = registry
        self._signers = signers
        self._wall = wall
        self._replica = replica
        self.turns = Turns()

    @property
    def keys(self) -> list[bytes]:
        """Public keys that verify its certificates, and those of before a rotation."""
        return certified.public_keys(self._signers.sandbox_keys, self._signers.current_key)

    async def certify(self, target: Target, exec_ids: tuple[str, ...]) -> Certificate:
        """A certificate of a living sandbox.

        Args:
            target: which, and which start of its daemon.
            exec_ids: commands that are told of.

        Raises:
            CapacityError: too many are in the making.
            UnreachableError: it is not to be had in time.
            VersionSkewError: the daemon is older than certificates.
            SandmanError: the sandbox has ended, or the API server does not answer.
        """
        async with self.turns.of(target.instance.tenant or ""):
            with trio.move_on_after(LIMIT_S):
                return await self._certify(target, exec_ids)
        raise UnreachableError(
            f"no certificate within {LIMIT_S:g} s", sandbox=target.instance.id, retry_after=AGAIN_S
        )

    async def _certify(self, target: Target, exec_ids: tuple[str, ...]) -> Certificate:
        instance = target.instance
        told = await self._told(target, exec_ids)
        found: list[Network] = []

        async def look() -> None:
            found.append(await self._network(instance))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            facts = await self._witness.facts(instance)
        document = certified.document(
            instance,
            facts,
            found[0],
            self._others(instance),
            told,
            Issue(self._wall(), self._replica),
        )
        seed = certified.seed_of(self._signers.sandbox_keys[self._signers.current_key])
        made = certificates.sign(document, seed)
        log.info(
            "certified",
            sandbox=instance.id,
            verdict=made.verdict,
            reasons=[one.code for one in made.reasons],
        )
        return made

    async def _told(self, target: Target, exec_ids: tuple[str, ...]) -> Told:
        """What the daemon says, once, and how far its clock is off."""
        instance, before = target.instance, self._wall()
        try:
            inside, commands = await self._proxy.upstream.evidence(instance, exec_ids)
        except NotListeningError as error:
            lost = LostError(str(error), sent=False)
            raise await self._proxy.losses.diagnose(instance, lost, "POST", target.until) from error
        except NotFoundError as error:
            raise VersionSkewError(
                "the sandbox's daemon is older than certificates", sandbox=instance.id
            ) from error
        after = self._wall()
        if inside["boot_id"] != target.boot_id:
            raise DiedError("another daemon answers there", sandbox=instance.id)
        clock = inside["clock"]
        offset = clock - (before + after) / 2 if isinstance(clock, float) else None
        return Told(inside, commands, Clock(offset, (after - before) / 2))

    async def _network(self, instance: Instance) -> Network:
        """Probed now: what was so when the commands began is not known any more to whoever did not do it."""
        if instance.place is not None:
            return Network(None, [], "a workload's network is its owner's")
        try:
            return Network(True, await self._networks.prove(instance, instance.network, 0.0))
        except NetworkNotAppliedError as error:
            return Network(False, [], error.detail)
        except NetworkUnsupportedError as error:
            return Network(None, [], error.detail)

    def _others(self, instance: Instance) -> list[Instance]:
        if instance.node is None:
            return []
        return [
            one
            for one in self._registry.all()
            if one.node == instance.node and one.uid != instance.uid and one.ending is None
        ]
