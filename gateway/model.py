"""The values that the gateway's parts hand to each other. Frozen; no I/O; no behaviour to speak of."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, NamedTuple

from gateway.shares import DEFAULT_SHARE as DEFAULT_SHARE  # noqa: PLC0414 - all ask the model for them
from gateway.shares import Share as Share  # noqa: PLC0414 - likewise
from gateway.steps import NO_STEPS
from sandman import errors, names, problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.changed import Changes
    from gateway.proofs import Proof
    from gateway.steps import Steps


class Tier(enum.StrEnum):
    """How a sandbox came to be, fastest first."""

    WARM = "warm"
    """The placeholder ran the wanted image already."""
    SWAP = "swap"
    """The placeholder's image was changed in place."""
    COLD = "cold"
    """A pod was made for it."""


class Purpose(enum.StrEnum):
    """What a sandbox is for; in the order of precedence within a tenant."""

    EVAL = "eval"
    """An evaluation: a rollout is finished and waits for its reward."""
    TRAIN = "train"
    """A rollout."""
    AHEAD = "ahead"
    """A reservation, which nobody waits for yet."""


WAITING_STATES = {
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
    "CreateContainerConfigError", "CreateContainerError", "RunContainerError",
}  # fmt: skip
"""Reasons of the kubelet for a container that will not start by itself; others only take time."""


COUNT_MAX = 1000
"""Most sandboxes of one call: a wave of what one namespace takes, and a second of the API server's time."""


class Amounts(NamedTuple):
    """So much cpu and memory; None where nothing is said of it."""

    cpu: int | None = None
    """Millicores."""
    memory: int | None = None
    """Bytes."""


NO_AMOUNTS = Amounts()


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """A container's cpu and memory."""

    requests: Amounts = NO_AMOUNTS
    """What the scheduler sets aside for it."""
    limits: Amounts = NO_AMOUNTS
    """The most that it may use."""


NO_BOUNDS = Bounds()


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Whom the API server knows a caller as, to be asked what he may."""

    user: str
    groups: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Principal:
    """Who calls. `sandbox` and `boot_id` are set when the token is that of one sandbox."""

    tenant: str
    key_id: str
    sandbox: str | None = None
    boot_id: str | None = None
    share: Share = DEFAULT_SHARE
    identity: Identity | None = None
    """None: the cluster knows nothing of this caller."""
    may: tuple[str, ...] = ()
    """What the sandbox's token is good for (`scopes`); nothing said: all of it."""
    proof: Proof | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A sandbox's lease, in seconds from ready. `gateway.leases` says what follows from it."""

    ttl_s: float | None = None
    """It lives so long without word of its caller; None: it needs none."""
    idle_s: float | None = None
    """It lives so long without anything to do; None for any time."""
    max_s: float | None = None
    """Its longest life; None where only the moment of its end is known."""
    of_run: bool = False
    """Word of its caller are the heartbeats of its run, too."""


NO_TERMS = Terms()


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """What a sandbox goes with: a Job in its own namespace, as the API server has it."""

    namespace: str
    name: str
    uid: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRequest:
    """What a caller asks for, parsed and checked. Times in seconds."""

    image: str | None
    pool: str
    env: tuple[tuple[str, str], ...] = ()
    workdir: str | None = None
    user: str | int | None = None
    run: str | None = None
    labels: tuple[tuple[str, str], ...] = ()
    max_s: float
    wait_s: float
    purpose: Purpose = Purpose.TRAIN
    prepare: Steps = NO_STEPS
    """What is done in it before it is handed over."""
    resources: Amounts = NO_AMOUNTS
    node_class: str | None = None
    names_pool: bool = True
    """Whether the caller named the pool; else the gateway chooses one."""
    terms: Terms = NO_TERMS
    owner: Owner | None = None
    network: str | None = None
    """Egress profile; None: the pool's own."""
    network_wait: bool | None = None
    """Whether it is handed over only when a probe has shown that its egress profile is in force; None: an evaluation is,
    where the gateway's settings do not say otherwise."""
    avoid_nodes: tuple[str, ...] = ()
    """Nodes that it must not be on, while others take pods."""
    count: int | None = None
    """How many of them are wanted by one call, told of in a stream; None: one, told of by itself."""
    gang: bool = False
    """All of them or none."""

    @property
    def size(self) -> int:
        """How many are wanted."""
        return self.count or 1


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """Why a sandbox is no more: `reason` is one of `sandman.errors`."""

    reason: str
    detail: str
    cause: str | None = None
    at: float | None = None
    """Seconds since the epoch, None when nobody knows."""
    facts: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def error(self, sandbox: str) -> errors.SandmanError:
        """The error that every call to the sandbox gets from now on."""
        kind = problems.by_reason().get(self.reason, errors.DiedError)
        return kind(self.detail, sandbox=sandbox, cause=self.cause, facts=self.facts)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The container of a user's pod that a sandbox is attached to, and the daemon's start there."""

    pod: str
    container: str
    port: int
    boot_id: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One pod as its watch shows it. Times in seconds since the epoch."""

    namespace: str
    name: str
    uid: str
    version: str
    """The API server's resourceVersion: opaque."""
    pool: str
    state: str
    tenant: str | None = None
    run: str | None = None
    key: str | None = None
    tier: str | None = None
    image: str = ""
    image_digest: str | None = None
    node: str | None = None
    address: str | None = None
    nonce: str = ""
    key_id: str = ""
    claim_id: str | None = None
    previous_boot_id: str | None = None
    """The daemon start before the image swap of the claim; None when nothing was swapped."""
    swapped: bool = False
    """Whether its image was swapped for an earlier claim, that it was prepared for."""
    network: str = names.NETWORK_NONE
    """Its egress profile."""
    network_changes: Changes | None = None
    """Which it had before, since its claim; None: no other."""
    reservation: str | None = None
    """The reservation that it was prepared for."""
    prepared: str | None = None
    """What it is prepared for (`steps.prepared_hash`); None when it is not, or not to the end."""
    prepared_boot_id: str | None = None
    """The daemon start that it was prepared in."""
    created_at: float = 0.0
    started_at: float | None = None
    expires_at: float | None = None
    """The end of its longest life."""
    terms: Terms = NO_TERMS
    renewed: str = ""
    """What the last renewal left on the pod: compared for equality alone."""
    request: Mapping[str, object] = dataclasses.field(default_factory=dict)
    bounds: Bounds = NO_BOUNDS
    """What its container shall have."""
    actual: Bounds | None = None
    """What it has, as its kubelet says; None while it has said nothing."""
    resize: str = ""
    """What the kubelet says of a resize that is not done: `Deferred`, `Infeasible`, `Error`, `InProgress`."""
    hold: int | None = None
    """Place of our gate among the pod's scheduling gates; None: nothing of ours holds it."""
    qos: str = ""
    """QoS class of its pod, as the API server says."""
    running: bool = False
    deleting: bool = False
    waiting: tuple[str, str] | None = None
    """Reason and message of a container that cannot start."""
    ending: Ending | None = None
    isolation: Mapping[str, str] | None = None
    """How it is kept apart, where that is not a container runtime's business: in local mode."""
    place: Place | None = None
    """Set for an attachment: then name, uid and version are those of its Lease."""

    def port_or(self, usual: int) -> int:
        """Where its daemon listens; the usual port in a pool's pod."""
        return usual if self.place is None else self.place.port

    @property
    def was_swapped(self) -> bool:
        """Whether its image was swapped, now or when it was prepared: its container was started once more then."""
        return self.swapped or self.previous_boot_id is not None

    @property
    def is_stuck(self) -> bool:
        """Whether its container cannot start."""
        return self.waiting is not None and self.waiting[0] in WAITING_STATES

    @property
    def id(self) -> str:
        """Name and the first 8 of the uid: pod names recur at millions a month."""
        return f"{self.name}-{self.uid[:8]}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a claim writes on a pod. Times in seconds, `expires_at` since the epoch."""

    claim_id: str
    previous_boot_id: str | None
    tier: Tier
    tenant: str
    image: str
    expires_at: float
    max_s: float
    request: Mapping[str, object]
    """What was asked for, as it is kept on the pod and told to the caller again."""
    run: str | None = None
    key: str | None = None
    network: str = names.NETWORK_NONE
    """Its egress profile."""
    reservation: str | None = None
    """It is prepared for this reservation, and nobody's sandbox yet."""
    swapped: bool = False
    """It is prepared, and its image was swapped for that."""

    @property
    def state(self) -> str:
        """What the pod is from then on."""
        return names.STATE_LEASED if self.reservation is None else names.STATE_RESERVED

    resources: Amounts = NO_AMOUNTS
    """Of a new pod: what was asked for."""
    avoid_nodes: tuple[str, ...] = ()
    """Of a new pod: nodes that it must not be on."""
    terms: Terms = NO_TERMS
    owner: Owner | None = None
    start_s: float = 0.0
    """Seconds that its start may take; its lease begins after it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Broken:
    """Why a pool was stopped."""

    reason: str
    at: float
    """Seconds since the epoch."""
    replicas: int
    """What the pool wanted before."""
    template: str
    """Fingerprint of the template that is to blame."""


@dataclasses.dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool as its Deployment declares it."""

    namespace: str
    name: str
    image: str
    swap: bool
    wanted: int
    """Free placeholders wanted: the Deployment's replicas."""
    most: int | None
    """Most pods of this pool at once, free and leased; None: no limit of the pool's own."""
    template: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """The Deployment's pod template, as it stands."""
    least: int | None = None
    """Fewest free placeholders; None: nobody but people keeps the pool's size."""
    network: str = names.NETWORK_NONE
    """Egress profile of a sandbox whose caller names none."""
    networks: frozenset[str] = frozenset()
    """Egress profiles that callers may ask for besides."""
    prepare: Steps = NO_STEPS
    """For each sandbox whose request has no steps of its own."""
    bounds: Bounds = NO_BOUNDS
    """What the template gives the sandbox's container."""
    resize: bool = False
    """Whether a sandbox may be given other resources in place."""
    node_class: str | None = None
    """Class of the nodes that its pods are on."""
    choose: bool = False
    """Whether it may be chosen for a request that names no pool."""
    deployment: str = ""
    uid: str = ""
    """Name and uid of its Deployment."""
    broken: Broken | None = None
    """What stopped it, as its annotation says."""
    stopped: bool = False
    """Whether that holds still: its template is the same. See `breaker`."""
    tenants: frozenset[str] | None = None
    """Whose sandboxes may come from it; None for everybody's."""
    evaluates: bool = False
    """Whether it is for evaluations alone: no rollout takes from it."""
    keeps_images: bool = False
    """Whether what ran on a node under a name is what runs there under it again: its starts do not ask the
    registry what the name stands for by now."""

    def admits(self, tenant: str) -> bool:
        """Whether the tenant's sandboxes may come from it: else it does not exist for the tenant."""
        return self.tenants is None or tenant in self.tenants


@dataclasses.dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one allocation went, milliseconds."""

    queued_ms: float
    claim_ms: float
    ready_ms: float


@dataclasses.dataclass(frozen=True, slots=True)
class Ready:
    """A sandbox that was just handed over."""

    instance: Instance
    boot_id: str
    timings: Timings
