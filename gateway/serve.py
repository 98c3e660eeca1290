"""The composition root: puts the parts together and keeps them running. Nothing else builds parts."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
import trio

from gateway import app, cluster
from gateway.allocation import Allocation
from gateway.attach import Attacher
from gateway.attached import Attached
from gateway.audit import Audit
from gateway.authentication import Authentication
from gateway.breaking import Breaking
from gateway.calls import Calls
from gateway.certifier import Certifier
from gateway.desk import Desk
from gateway.detaching import Detaching
from gateway.either import Either
from gateway.enforcement import EnforcementWatch
from gateway.fulfilment import Fulfilment
from gateway.handoff import Handoff
from gateway.janitor import Janitor
from gateway.keeper import Keeper
from gateway.keysets import KeySets
from gateway.metrics import Metrics
from gateway.owners import Owners
from gateway.pool import Pool
from gateway.provider import News
from gateway.proxy import Proxy
from gateway.refill import Refill
from gateway.registry import Registry
from gateway.release import Releaser
from gateway.reservations import Reservations
from gateway.roster import Roster
from gateway.routes.context import Context
from gateway.routes.lookup import Lookup
from gateway.scaler import Scaler
from gateway.sweeper import Sweeper
from gateway.upstream import Upstream
from gateway.websocket import MESSAGE_MAX_BYTES
from sandman.service import https, kube

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.config import Settings
    from gateway.ground import Ground
    from gateway.model import Share
    from gateway.networks import Networks

log = structlog.get_logger()

NEWS_BUFFER = 256
"""Pieces of news between the watches and the pool: a few TCP reads' worth."""


def wall() -> float:
    """Seconds since the epoch: the one place where the gateway reads the time of day."""
    return datetime.now(UTC).timestamp()


class Gateway:
    """The parts of one replica, made and not yet running.

    Args:
        settings: all settings.
        ground: the parts that a cluster has, or this machine.
        stop: set it to drain and end.
    """

    def __init__(self, settings: Settings, ground: Ground, stop: trio.Event) -> None:
        self._settings = settings
        self._ground = ground
        self._stop = stop
        self.credentials = ground.credentials
        self.keysets = KeySets()
        self.authentication = self._authentication()
        self.calls = Calls(self.authentication.is_in_force)
        self.credentials.on_change = self._keys_changed
        self.certificates = ground.certificates
        self.election = ground.election
        self.registry = Registry(keep_ended=settings.keep_ended)
        allocation = Allocation(cold_max=settings.cold_max, claims_max=settings.claims_max)
        self.roster = Roster(self.registry, allocation, wall)
        self.upstream = Upstream(self.credentials, settings)
        provider = ground.provider
        fulfilment = Fulfilment(provider, self.upstream, self.roster, settings, wall)
        self.breaking = Breaking(self.roster, provider, lambda: self.election.is_leader, wall)
        self.refill = Refill(self.roster, provider, lambda: self.election.is_leader)
        self.enforcement = self._enforcement(fulfilment.networks)
        self.pool = Pool(self.roster, fulfilment, self.upstream, settings)
        self.desk = Desk(self.pool, lambda: self.election.is_leader)
        self.attached = Attached(self.roster.ledger, wall, keep_ended=settings.keep_ended)
        self.attacher = Attacher(
            self.attached,
            ground.attachments,
            ground.access,
            self.upstream,
            settings,
            wall,
            lambda: secrets.token_hex(16),
        )
        either = Either(self.roster, self.attached, provider, self.attacher)
        self.proxy = Proxy(either, self.upstream, either, settings)
        self.janitor = Janitor(
            self.registry,
            self.upstream,
            self.proxy,
            provider,
            is_leader=lambda: self.election.is_leader,
            retain_s=settings.retain_s,
            wall=wall,
        )
        self.keeper = Keeper(self.roster, self.upstream, provider, wall)
        self.runs = ground.runs(self.roster.ledger, self.attached.registry.all)
        self.detaching = Detaching(
            self.attacher,
            ground.access,
            self.upstream,
            self.runs.confirm,
            wall,
            grace_s=settings.outage_grace_s,
        )
        self.sweeper = Sweeper(
            self.roster,
            self.upstream,
            provider,
            self.runs,
            # One that is about to stop takes no heartbeats any more, and cannot know who is there.
            is_leader=lambda: self.election.is_leader and not self._stop.is_set(),
            in_hand=fulfilment.in_hand,
            grace_s=settings.outage_grace_s,
        )
        audit = self._audit()
        self.handoff = Handoff(
            self.election, settings.server_name, lambda: self.certificates.authority
        )
        releaser = Releaser(self.registry, provider, wall)
        self.reservations = Reservations(
            ground.reservations,
            self.pool,
            self.roster,
            releaser,
            # Before the API keys were read, each reservation's would seem to be gone.
            is_leader=lambda: self.election.is_leader and self.credentials.told.is_set(),
            shares=self._share,
            wall=wall,
        )
        self.scaler = Scaler(
            self.roster,
            provider,
            is_leader=lambda: self.election.is_leader,
            forecast=self.reservations.forecast,
        )
        self.context = Context(
            settings=settings,
            credentials=self.credentials,
            authentication=self.authentication,
            calls=self.calls,
            roster=self.roster,
            lookup=Lookup(either, settings.sandbox_namespaces),
            pool=self.pool,
            desk=self.desk,
            releaser=releaser,
            reservations=self.reservations,
            proxy=self.proxy,
            handoff=self.handoff,
            keeper=self.keeper,
            owners=Owners(provider, self.roster),
            beat=self.runs.beat,
            attacher=self.attacher,
            certifier=self._certifier(fulfilment.networks),
            end_beats=self.runs.end,
            wall=wall,
            missing=self.missing,
        )
        self.app = app.build(self.context, self._metrics(audit), self.not_ready)

    def _audit(self) -> Audit:
        # One replica tells of an end; both, while none knows of an allocator.
        audit = Audit(lambda: self.election.is_leader or self.election.address is None)
        self.registry.on_end = audit.ended
        self.attached.registry.on_end = audit.detached
        return audit

    def _certifier(self, networks: Networks) -> Certifier:
        return Certifier(
            self._ground.witness,
            self.proxy,
            networks,
            self.registry,
            self.credentials,
            wall,
            self._settings.pod_name,
        )

    def _enforcement(self, networks: Networks) -> EnforcementWatch:
        networks.closed = self._ground.closed
        return EnforcementWatch(self.roster, networks, self._settings.sandbox_namespaces)

    def _metrics(self, audit: Audit) -> Metrics:
        metrics = Metrics(self.roster)
        metrics.watch_writes(self._ground.writes, self._ground.provider.claim_writes)
        metrics.watch_ends(audit.counts)
        metrics.watch_attachments(self.attached, audit.detached_counts)
        metrics.watch_authentications(self.authentication.counts)
        return metrics

    def _authentication(self) -> Authentication:
        settings = self._settings
        return Authentication(
            self.credentials,
            self._ground.reviews,
            self.keysets,
            audience=settings.audience,
            verdict_s=settings.verdict_s,
            wall=wall,
        )

    def _share(self, key_id: str) -> Share | None:
        key = self.credentials.api_keys.get(key_id) or self.credentials.callers.rules.get(key_id)
        return None if key is None else key.share

    def _keys_changed(self) -> None:
        """What was found out by the old ones counts no more, and calls of what is revoked end."""
        self.keysets.take(self.credentials.callers.issuers.values())
        self.authentication.forget()
        self.calls.review()

    def missing(self) -> list[str]:
        """What a call would need and is not there yet."""
        return [
            name
            for name, is_there in (
                ("the list of pods", self.roster.synced.is_set()),
                ("the signing keys", self.credentials.ready.is_set()),
                ("the API keys", self.credentials.told.is_set()),
            )
            if not is_there
        ]

    def not_ready(self) -> list[str]:
        """Why no new calls should come here."""
        return [*self.missing(), *(["the end"] if self._stop.is_set() else [])]

    async def run(
        self, *, task_status: trio.TaskStatus[list[https.Bound]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until `stop` is set and the drain is over. What serves ends before what it needs."""
        send, receive = trio.open_memory_channel[News](NEWS_BUFFER)
        async with trio.open_nursery() as support:
            support.start_soon(self.credentials.run)
            support.start_soon(self.keysets.run)
            support.start_soon(self.calls.run)
            support.start_soon(self._ground.watch, send)
            support.start_soon(self.pool.run, receive)
            support.start_soon(self.desk.run)
            support.start_soon(self.janitor.run)
            support.start_soon(self.keeper.run)
            support.start_soon(self.runs.run)
            support.start_soon(self.sweeper.run)
            support.start_soon(self.refill.run)
            support.start_soon(self.reservations.run)
            support.start_soon(self.scaler.run)
            support.start_soon(self.breaking.run)
            support.start_soon(self._ground.follow, self.attached)
            support.start_soon(self.detaching.run, lambda: self.election.is_leader)
            support.start_soon(self.enforcement.run)
            if await self._start_unless_stopped(support, self.certificates.run):
                support.start_soon(self.election.run)
                try:
                    await self._serve(task_status)
                finally:
                    with trio.move_on_after(1.0, shield=True):
                        await self.upstream.aclose()
                        await self.handoff.aclose()
            support.cancel_scope.cancel()

    async def _start_unless_stopped(
        self, nursery: trio.Nursery, start: Callable[..., Awaitable[object]]
    ) -> bool:
        """Start what may take for ever (an API server that is away); answers whether it was."""
        async with trio.open_nursery() as waiting:

            async def give_up() -> None:
                await self._stop.wait()
                waiting.cancel_scope.cancel()

            waiting.start_soon(give_up)
            await nursery.start(start)
            waiting.cancel_scope.cancel()
        return not self._stop.is_set()

    async def _serve(self, task_status: trio.TaskStatus[list[https.Bound]]) -> None:
        settings = self._settings
        host = cluster.bracketed(settings.bind)
        await https.serve(
            self.app,
            bind=[f"{host}:{port}" for port in (settings.port, settings.metrics_port) if port],
            stop=self._stop,
            tls=self.certificates.current,
            settings=https.Settings(
                lame_duck_s=settings.lame_duck_s,
                grace_s=settings.grace_s,
                max_message_bytes=MESSAGE_MAX_BYTES,
            ),
            task_status=task_status,
        )


async def main(settings: Settings) -> None:
    """Run a gateway against the cluster that the environment names, until SIGTERM or SIGINT."""
    stop = trio.Event()
    async with kube.Kube(kube.load()) as api, trio.open_nursery() as nursery:
        await nursery.start(https.stop_on_signals, stop)
        gateway = Gateway(settings, cluster.ground(settings, api, wall), stop)
        log.info("starting", namespace=settings.namespace, pod=settings.pod_name)
        await gateway.run()
        nursery.cancel_scope.cancel()
