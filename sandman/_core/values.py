"""What the gateway says of sandboxes and pools, and what a command's stream holds."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self, TypedDict

from sandman._core import faults

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Stdout:
    """Bytes that the command wrote to its standard output, as they came."""

    data: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Stderr:
    """Bytes that the command wrote to its standard error, as they came."""

    data: bytes


Event = Stdout | Stderr


class Resources(TypedDict, total=False):
    """Kubernetes quantities: `"500m"` or `2` processors, `"4Gi"` or a number of bytes; each optional."""

    cpu: str | float
    memory: str | int


class _Told:
    """What the gateway says, as a JSON object."""

    __slots__ = ()

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse; members that this version does not know are passed over."""
        known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        values = {
            name: value for name, value in body.items() if name in known and value is not None
        }
        return cls(**values)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo(_Told):
    """A sandbox as the gateway describes it; None: not told. Times are RFC 3339 texts, UTC.

    `tier` is `warm`, `swap` or `cold`; `state` is `ready`, `ending` or `ended`, then `ended` has
    `reason`, `detail` and `at`. `token` is good for this sandbox alone and comes with the creation only.
    `resources` are the most that it may use, as Kubernetes writes them. `network` is its egress profile.
    `timings` are in milliseconds. `expires_at`: when it ends unless it is renewed; `lease` holds `ttl_s`, `idle_s`,
    `max_s` and whether it is the `run`'s. `isolation`: of local mode alone, how it is kept apart from the machine:
    of `files`, `processes`, `users`, `network`, `cpu`, `memory` and `kernel` a text that begins with `own`, `read-only`, `mapped`,
    `limited` or `shared`. `conditions`: of an evaluation alone, `floor` and `ceiling` of its resources, `qos`,
    `exclusive_cpus`, `env` that was set for it, `dedicated` and `network_acknowledged`.
    """

    id: str
    state: str | None = None
    tier: str | None = None
    pool: str | None = None
    image: str | None = None
    image_pulled: str | None = None
    image_digest: str | None = None
    node: str | None = None
    resources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    boot_id: str | None = None
    network: str | None = None
    run: str | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    created_at: str | None = None
    expires_at: str | None = None
    lease: Mapping[str, object] = dataclasses.field(default_factory=dict)
    token: str | None = dataclasses.field(default=None, repr=False)
    timings: Mapping[str, float] = dataclasses.field(default_factory=dict)
    isolation: Mapping[str, str] = dataclasses.field(default_factory=dict)
    conditions: Mapping[str, object] | None = None
    ended: Mapping[str, object] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NetworkInfo:
    """A sandbox's egress profile that is in force: `probes` are what was tried from inside it, each with `what`,
    `expected` (`open` or `closed`) and `outcome`; `took_ms` milliseconds from the call until it was so."""

    network: str
    probes: Sequence[Mapping[str, str]] = ()
    took_ms: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PoolInfo(_Told):
    """A pool with its counts of placeholders: free now, leased now, prepared ahead, wanted free; `max` of
    all together.

    `swap`: whether a placeholder's image may be changed in place. `resources`: the most that its sandboxes
    may use; where `resize` is true they may be given more or less. `node_class`: of the nodes that they are on.
    `purpose`: "eval" where it is for evaluations alone. `broken`: why it was stopped, when it was.
    """

    name: str
    image: str | None = None
    free: int = 0
    leased: int = 0
    reserved: int = 0
    wanted: int = 0
    max: int | None = None
    swap: bool = False
    resources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    resize: bool = False
    node_class: str | None = None
    purpose: str | None = None
    broken: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OverviewInfo:
    """How a tenant stands: `sandboxes` that it has, requests `waiting` for one, `oldest_s` seconds the first of them.

    `requests` are those that wait longest, each with `pool`, `image`, `run` and `waited_s`. `weight` is its share
    against other tenants, `limits` are `concurrent`, `eval_reserved`, `rate`, `cpu` and `memory`; None is no limit. `queue`: requests of
    all tenants together, `waiting`, `claiming` and `cold`.
    """

    tenant: str
    sandboxes: int = 0
    waiting: int = 0
    oldest_s: float | None = None
    requests: Sequence[Mapping[str, object]] = ()
    weight: float = 1.0
    limits: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    queue: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Parse; members that this version does not know are passed over."""
        tenant, known = body["tenant"], {"sandboxes", "waiting", "oldest_s", "weight", "limits"}
        own = {name: value for name, value in tenant.items() if name in known}
        rest = {name: body[name] for name in ("requests", "queue") if name in body}
        return cls(tenant=str(tenant["name"]), **own, **rest)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReservationInfo(_Told):
    """A reservation as the gateway describes it. Times are RFC 3339 texts, UTC.

    `state` is `preparing`, `ready` or `failed`. Of `count` sandboxes so many are `ready`, `preparing` now and
    `used`; so many tries `failed`, of which `failures` holds the latest (`reason`, `detail`, `facts`, `at`).
    """

    id: str
    state: str = ""
    image: str | None = None
    pool: str | None = None
    run: str | None = None
    count: int = 0
    ready: int = 0
    preparing: int = 0
    used: int = 0
    failed: int = 0
    failures: Sequence[Mapping[str, object]] = ()
    created_at: str | None = None
    until: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class FileInfo:
    """What a write left in the sandbox: `size` in bytes, `sha256` in hex, `mode` the permission bits."""

    path: str
    size: int
    sha256: str
    mode: int

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse the answer of a write."""
        mode = body.get("mode", 0)
        return cls(
            path=str(body.get("path", "")),
            size=int(str(body.get("size", 0))),
            sha256=str(body.get("sha256", "")),
            mode=mode if isinstance(mode, int) else int(str(mode), 8),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class EntryInfo:
    """What there is at a path. `type`: file, directory, symlink, fifo, device or socket.

    `size` in bytes; `mode` the permission bits; `mtime` in seconds since 1970; `target` of a symlink;
    `error` of a listed directory that could not be read, as a reason. Names that are no UTF-8 hold
    surrogate escapes, as `os.fsdecode` makes them.
    """

    path: str
    type: str
    size: int
    mode: int
    uid: int
    gid: int
    mtime: float
    target: str | None = None
    error: str | None = None

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse; members that this version does not know are passed over."""
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in body.items() if name in known}
        values["mode"] = int(str(body["mode"]), 8)
        return cls(**values)  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True, slots=True)
class TreeInfo:
    """What a copy of a directory made: `members` of any type, `bytes` of content.

    `skipped`: name and why of what was left out, special files and links out of the directory among
    them; the first hundred, while `skipped_count` counts all.
    """

    members: int
    bytes: int
    skipped: tuple[tuple[str, str], ...] = ()
    skipped_count: int = 0

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse the answer of an upload."""
        skipped: Any = body.get("skipped", ())
        return cls(
            int(str(body["members"])),
            int(str(body["bytes"])),
            tuple((str(name), str(why)) for name, why in skipped),
            int(str(body.get("skipped_count", 0))),
        )


def parse_info(answer: object) -> SandboxInfo:
    """A sandbox out of an answer.

    Raises:
        InternalError: it is none.
    """
    if not isinstance(answer, dict) or "id" not in answer:
        raise faults.not_understood("a sandbox", answer)
    return SandboxInfo.from_json(answer)
