"""What a gateway stands on: where its pods come from, who may call, and what is kept where.

A cluster (`cluster`) or this machine alone (`machine`); all else of the gateway is the same on both.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any, Protocol

from gateway.provider import Provider

if TYPE_CHECKING:
    import ssl
    from collections import Counter
    from collections.abc import Awaitable, Callable, Container, Iterable, Mapping

    import trio

    from gateway.attached import Attached
    from gateway.callers import Callers
    from gateway.facts import Facts
    from gateway.leases import Ledger
    from gateway.model import Ending, Identity, Instance, PoolSpec
    from gateway.provider import News
    from gateway.reserving import Reservation
    from gateway.tokens import ApiKey
    from gateway.workloads import Attachment, Workload
    from sandman.probes import Target


class KeptCredentials(Protocol):
    """`auth.Credentials` that may change while the gateway runs."""

    ready: trio.Event
    """Set once there are signing keys."""
    told: trio.Event
    """Set once the API keys were read."""
    on_change: Callable[[], None]
    """Called after each change."""

    @property
    def api_keys(self) -> Mapping[str, ApiKey]:
        """API keys by id."""

    @property
    def current_key(self) -> str:
        """Id of the key that signs new sandbox tokens."""

    @property
    def sandbox_keys(self) -> Mapping[str, bytes]:
        """Keys that sign sandbox tokens, by id."""

    @property
    def callers(self) -> Callers:
        """Callers whom others vouch for."""

    @property
    def daemon_keys(self) -> Mapping[str, bytes]:
        """Keys that daemon tokens are derived from, by id."""

    async def run(self) -> None:
        """Follow them until cancelled."""


class Certificates(Protocol):
    """What the gateway proves itself by."""

    @property
    def authority(self) -> bytes:
        """PEM of what verifies the certificate."""

    def current(self) -> ssl.SSLContext:
        """For a new connection."""

    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> None:
        """Have one, tell so, and keep it fresh until cancelled."""


class Election(Protocol):
    """Who decides, of several gateways."""

    @property
    def is_leader(self) -> bool:
        """Whether this one does."""

    @property
    def address(self) -> str | None:
        """`host:port` of the one who does; None when there is none to be known of."""

    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> None:
        """Take part until cancelled."""


class WholeProvider(Provider, Protocol):
    """All that is needed of a provider."""

    claim_writes: Counter[str]
    """Writes that callers wait for, by tier."""

    async def scale(self, spec: PoolSpec, replicas: int) -> None:
        """See `scaler.Scale`."""


class Access(Protocol):
    """Who may do what, beside Sandman's own rules."""

    async def may_exec(self, who: Identity, namespace: str, pod: str = "") -> bool:
        """See `access.Access`."""


class Reviewer(Protocol):
    """Whose a token is that others have issued."""

    async def ask(self, token: str) -> Mapping[str, Any]:
        """See `reviews.Reviews`."""


class Witness(Protocol):
    """Who knows a pod from outside."""

    async def facts(self, instance: Instance) -> Facts:
        """What is known of it at this moment."""


class Attachments(Protocol):
    """Who is attached to which container of a workload; each as `provider.attachments` has it."""

    async def create(self, wanted: Attachment) -> Attachment:
        """Take a container."""

    async def met(self, one: Attachment, boot_id: str) -> Attachment:
        """Write down which start of the daemon answered."""

    async def mark(self, one: Attachment, why: Ending) -> None:
        """Write down why it ends."""

    async def delete(self, one: Attachment) -> None:
        """Give the container free."""

    async def read(self, name: str) -> Attachment | None:
        """The attachment of this name."""

    async def workload(self, one: Attachment) -> Workload | None:
        """Its container."""

    async def pod(self, namespace: str, name: str) -> list[Workload]:
        """The injected containers of a pod."""


class Reservations(Protocol):
    """Where reservations are kept; each as `provider.reservations` has it."""

    async def create(self, reservation: Reservation) -> Reservation:
        """Keep it."""

    async def list(self) -> list[Reservation]:
        """All that are kept."""

    async def set_used(self, reservation: Reservation) -> None:
        """Keep how many were handed out."""

    async def delete(self, reservation: Reservation) -> None:
        """Forget it."""


@dataclasses.dataclass(frozen=True, slots=True)
class RunKey:
    """A run of a tenant."""

    tenant: str
    run: str

    @property
    def lease_name(self) -> str:
        """The name of its Lease: a tenant's and a run's may have 63 characters each, capitals among them."""
        text = f"{self.tenant}\0{self.run}".encode()
        return f"sandman-run-{hashlib.sha256(text).hexdigest()[:40]}"


class Runs(Protocol):
    """Heartbeats of runs."""

    async def beat(self, key: RunKey, ttl_s: float) -> None:
        """Take one in."""

    async def end(self, key: RunKey) -> None:
        """There will be no more of them."""

    async def confirm(self, key: RunKey) -> None:
        """Look at their source."""

    async def tidy(self, living: Container[tuple[str, str]], now: float) -> None:
        """Forget runs that are over."""

    async def run(self) -> None:
        """Follow them until cancelled."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """The parts that differ."""

    credentials: KeptCredentials
    certificates: Certificates
    election: Election
    provider: WholeProvider
    reviews: Reviewer
    access: Access
    attachments: Attachments
    reservations: Reservations
    witness: Witness
    """Who knows a pod from outside."""
    runs: Callable[[Ledger, Callable[[], Iterable[Instance]]], Runs]
    """Made with the ledger that it tells of heartbeats, and with what gives the attachments to workloads."""
    writes: Counter[tuple[str, str, str]]
    """Writes to the API server, by verb, resource and status."""
    closed: Mapping[Target, str]
    """What no egress profile opens."""
    watch: Callable[[trio.MemorySendChannel[News]], Awaitable[None]]
    """Tells the news of pods, pools and nodes until cancelled."""
    follow: Callable[[Attached], Awaitable[None]]
    """Tells the news of workloads until cancelled."""
