"""This machine as the gateway's ground: local mode. Nothing is kept; when the gateway ends, so do its sandboxes."""

from __future__ import annotations

import dataclasses
import secrets
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import trio

from gateway import callers, tokens
from gateway.choice import DEFAULT_POOL
from gateway.ground import Ground
from gateway.leases import RUN_KEEP_S
from gateway.model import NO_AMOUNTS, Bounds, Ending, PoolSpec
from gateway.provider.local.provider import LocalProvider
from gateway.provider.local.running import Place
from gateway.provider.local.witness import LocalWitness
from sandman.errors import NotFoundError
from sandman.service import keyring, pki, tls

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Container, Iterable, Mapping

    from gateway.attached import Attached
    from gateway.callers import Callers
    from gateway.config import Settings
    from gateway.ground import RunKey
    from gateway.leases import Ledger
    from gateway.model import Amounts, Identity, Instance
    from gateway.provider.local.images import Images
    from gateway.provider.local.running import Here
    from gateway.reserving import Reservation
    from gateway.workloads import Attachment, Workload

TENANT = "local"
"""Whose all sandboxes are."""
KEY_ID = "local"
"""Of the keys that sign."""
CERTIFICATE_DAYS = 30
"""Longer than any gateway runs on somebody's desk; a new start makes a new one."""
ADDRESS = "127.0.0.1"
NO_WORKLOADS = "there are no workloads to attach to in local mode"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the operator has asked for."""

    image: str
    """That placeholders run."""
    free: int
    """How many of them there are."""
    most: int
    """Most sandboxes at once, free ones with them."""
    limits: Amounts = NO_AMOUNTS
    """Of each sandbox whose caller asks for nothing else."""


class MadeCredentials:
    """Keys made at the start, and good until the end. Implements `ground.KeptCredentials`."""

    def __init__(self, tenants: Iterable[str] = (TENANT,)) -> None:
        self.tokens = {tenant: tokens.make_api_key(tenant) for tenant in tenants}
        """API keys by tenant, as their callers have them."""
        self.api_keys, _ = tokens.parse_api_keys(
            {one: tokens.api_key_entry(token, one) for one, token in self.tokens.items()}
        )
        size = keyring.KEY_BYTES
        ring = keyring.fresh(KEY_ID, secrets.token_bytes(size), secrets.token_bytes(size))
        self.daemon_keys, self.sandbox_keys = ring.daemon, ring.sandbox
        self.current_key = ring.current
        self.callers: Callers = callers.NOBODY
        self.on_change: Callable[[], None] = lambda: None
        self.ready, self.told = trio.Event(), trio.Event()
        self.ready.set()
        self.told.set()

    def __repr__(self) -> str:
        return "<MadeCredentials>"

    async def run(self) -> None:
        """They do not change."""
        await trio.sleep_forever()


class MadeCertificates:
    """A certificate for this machine's own address, of an authority that signs nothing else."""

    def __init__(self, server_name: str, now: datetime) -> None:
        authority = pki.make_ca("sandman local mode", now, CERTIFICATE_DAYS)
        leaf = pki.issue(authority, [server_name, "localhost"], [ADDRESS], now, CERTIFICATE_DAYS)
        self.authority = authority.certificate
        self._certificate = tls.Certificate(leaf.certificate, leaf.key)

    def current(self) -> ssl.SSLContext:
        """See `ground.Certificates`."""
        return self._certificate.current()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """See `ground.Certificates`."""
        task_status.started()
        await trio.sleep_forever()


class Alone:
    """The only gateway decides."""

    is_leader = True
    address: str | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """There is nobody to be elected against."""
        task_status.started()
        await trio.sleep_forever()


class KeptRuns:
    """Heartbeats of runs, in memory."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def beat(self, key: RunKey, ttl_s: float) -> None:
        """See `ground.Runs`."""
        del ttl_s
        await trio.lowlevel.checkpoint()
        self._ledger.beat(key.tenant, key.run, trio.current_time())

    async def end(self, key: RunKey) -> None:
        """See `ground.Runs`."""
        await trio.lowlevel.checkpoint()
        self._ledger.stopped(key.tenant, key.run)

    async def confirm(self, key: RunKey) -> None:
        """The ledger is their source."""
        del key
        await trio.lowlevel.checkpoint()

    async def tidy(self, living: Container[tuple[str, str]], now: float) -> None:
        """See `ground.Runs`."""
        await trio.lowlevel.checkpoint()
        for key, at in list(self._ledger.runs().items()):
            if key not in living and now - at >= RUN_KEEP_S:
                self._ledger.stopped(*key)

    async def run(self) -> None:
        """Nobody else writes them."""
        await trio.sleep_forever()


class KeptReservations:
    """Reservations, in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, Reservation] = {}

    async def create(self, reservation: Reservation) -> Reservation:
        """See `ground.Reservations`."""
        await trio.lowlevel.checkpoint()
        return self._kept.setdefault(reservation.id, reservation)

    async def list(self) -> list[Reservation]:
        """See `ground.Reservations`."""
        await trio.lowlevel.checkpoint()
        return list(self._kept.values())

    async def set_used(self, reservation: Reservation) -> None:
        """See `ground.Reservations`."""
        await trio.lowlevel.checkpoint()
        if reservation.id in self._kept:
            self._kept[reservation.id] = reservation

    async def delete(self, reservation: Reservation) -> None:
        """See `ground.Reservations`."""
        await trio.lowlevel.checkpoint()
        self._kept.pop(reservation.id, None)


class Nobody:
    """Whoever a cluster would know: this machine knows nobody."""

    async def may_exec(self, who: Identity, namespace: str, pod: str = "") -> bool:
        """See `ground.Access`."""
        del who, namespace, pod
        await trio.lowlevel.checkpoint()
        return False

    async def ask(self, token: str) -> Mapping[str, Any]:
        """See `ground.Reviewer`."""
        del token
        await trio.lowlevel.checkpoint()
        return {"authenticated": False}


class NoAttachments:
    """There are no workloads here, so that nobody is attached to one."""

    async def create(self, wanted: Attachment) -> Attachment:
        """Refused."""
        del wanted
        await trio.lowlevel.checkpoint()
        raise NotFoundError(NO_WORKLOADS)

    async def met(self, one: Attachment, boot_id: str) -> Attachment:
        """Refused."""
        del one, boot_id
        await trio.lowlevel.checkpoint()
        raise NotFoundError(NO_WORKLOADS)

    async def mark(self, one: Attachment, why: Ending) -> None:
        """There is none."""
        del one, why
        await trio.lowlevel.checkpoint()

    async def delete(self, one: Attachment) -> None:
        """There is none."""
        del one
        await trio.lowlevel.checkpoint()

    async def read(self, name: str) -> Attachment | None:
        """There is none."""
        del name
        await trio.lowlevel.checkpoint()
        return None

    async def workload(self, one: Attachment) -> Workload | None:
        """There is none."""
        del one
        await trio.lowlevel.checkpoint()
        return None

    async def pod(self, namespace: str, name: str) -> list[Workload]:
        """There is none."""
        del namespace, name
        await trio.lowlevel.checkpoint()
        return []


def ground(
    settings: Settings,
    credentials: MadeCredentials,
    wanted: Wanted,
    images: Images,
    here: Here,
    wall: Callable[[], float],
) -> Ground:
    """The parts that stand on this machine.

    Args:
        settings: names and ports.
        credentials: who may call.
        wanted: the pool.
        images: what runs in sandboxes.
        here: this machine.
        wall: seconds since the epoch.
    """
    provider = LocalProvider(
        [pool(settings, wanted, can_limit=here.groups is not None)],
        images,
        Place(
            here=here,
            daemon_port=settings.daemon_port,
            key_id=credentials.current_key,
            daemon_key=credentials.daemon_keys[credentials.current_key],
        ),
        wall,
    )

    def runs(ledger: Ledger, attached: Callable[[], Iterable[Instance]]) -> KeptRuns:
        del attached
        return KeptRuns(ledger)

    async def follow(attached: Attached) -> None:
        del attached
        await trio.sleep_forever()

    return Ground(
        credentials=credentials,
        certificates=MadeCertificates(settings.server_name, datetime.now(UTC)),
        election=Alone(),
        provider=provider,
        reviews=Nobody(),
        access=Nobody(),
        attachments=NoAttachments(),
        reservations=KeptReservations(),
        witness=LocalWitness(here.whole),
        runs=runs,
        writes=Counter(),
        closed={},
        watch=provider.watch,
        follow=follow,
    )


def pool(settings: Settings, wanted: Wanted, *, can_limit: bool) -> PoolSpec:
    """The one pool of local mode."""
    limits = wanted.limits if can_limit else NO_AMOUNTS
    return PoolSpec(
        namespace=settings.sandbox_namespaces[0],
        name=DEFAULT_POOL,
        image=wanted.image,
        swap=True,
        wanted=wanted.free,
        most=wanted.most,
        template={"image": wanted.image},
        keeps_images=True,
        bounds=Bounds(limits, limits),
        resize=can_limit,
    )
