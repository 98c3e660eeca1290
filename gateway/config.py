"""The gateway's settings: each with a unit, a default and the reason for it.

Read once, at the start, from environment variables `SANDMAN_GATEWAY_<FIELD>`; a bad value stops the
program with the variable's name.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gateway import profiles, references
from sandman import names, probes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX = "SANDMAN_GATEWAY_"


class SettingError(ValueError):
    """A setting cannot be used; the text names its variable."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one gateway replica."""

    namespace: str = names.SYSTEM_NAMESPACE
    """Namespace of the gateway's own objects: keys, certificate, allocator lease."""

    sandbox_namespaces: tuple[str, ...] = (names.SANDBOX_NAMESPACE,)
    """Namespaces with pools, separated by commas. Several for more than 3,000 pods, the most that
    Kubernetes supports in one."""

    workload_namespaces: tuple[str, ...] = ()
    """Namespaces whose labelled workloads can be attached to, separated by commas. None: in each
    the gateway must be let read pods, too (ClusterRole sandman-workloads)."""

    bind: str = "0.0.0.0"  # nosec B104  # noqa: S104 - a service in a pod listens on the pod's address
    """Address to listen on."""

    port: int = names.GATEWAY_PORT
    """TCP port for HTTPS."""

    metrics_port: int = 0
    """TCP port for metrics that tell of tenants, over HTTPS and for whoever reaches it: a network policy
    says who may. 0: there is none, and `/metrics` of `port`, which any caller reaches, tells nothing of
    them."""

    pod_name: str = "gateway"
    """This replica's name, from the downward API."""

    pod_ip: str = "127.0.0.1"
    """Address at which the other replicas reach this one, from the downward API."""

    server_name: str = f"sandman-gateway.{names.SYSTEM_NAMESPACE}.svc"
    """DNS name in the gateway's certificate; replicas verify each other by it."""

    audience: str = "sandman"
    """Audience that ServiceAccounts' tokens must be for. A token for the API server is not taken: whoever has
    one could otherwise be passed on by any service that it was sent to."""

    verdict_s: float = 30.0
    """Seconds that a verdict on a token of others (ServiceAccount, JWT) holds: so long one that was revoked
    there is taken, and so often the API server is asked about each that is in use."""

    wait_max_s: float = 600.0
    """Longest `wait_s` of an allocation: ten minutes, an image pull of many GiB."""

    body_max_bytes: int = 1024 * 1024
    """Largest JSON body that the gateway itself reads (allocation). Forwarded bodies are streamed."""

    life_max_s: float = 7 * 24 * 3600.0
    """Longest life that a caller may ask for: a week, longer than any episode known to us."""

    life_default_s: float = 4 * 3600.0
    """Life of a sandbox whose caller asked for none: four hours, the longest common episode limit."""

    queue_max: int = 20_000
    """Allocations that may wait at once; more are refused with 429. Twice the 11,858 of the largest
    published run, at about 2 KiB each."""

    cold_max: int = 128
    """New pods in the making at once, over all nodes: a second of what an API server and a scheduler take
    beside all else. Fewer while the API server says that it is too busy."""

    cold_per_node: int = 16
    """As many for each node that takes pods: three seconds of what one node launches (5 a second). Which
    node a pod goes to is the scheduler's business."""

    claims_max: int = 32
    """Claims in flight at once: as many as the Kubernetes client has connections. Fewer while the API
    server says that it is too busy."""

    claim_attempts: int = 3
    """Placeholders tried for one request when they die before their handshake."""

    handshake_s: float = 30.0
    """Seconds for a claimed or started pod's daemon to answer, once its image is there."""

    image_s: float = 300.0
    """Seconds for an image to be pulled before the sandbox counts as failed."""

    prepare_s: float = 600.0
    """Seconds for all steps of a sandbox's preparation together: as long as an allocation may wait at most."""

    image_mirrors: tuple[references.Mirror, ...] = ()
    """Rules `source=target`, separated by commas: images below `source` (a host, or host and path) are pulled
    from below `target`. Applied after the allowlist; a caller is told both names."""

    daemon_port: int = names.DAEMON_PORT
    """TCP port of the daemons, the same as the webhook's setting of that name."""

    connect_s: float = 5.0
    """Seconds to connect to a daemon: it is one network hop away."""

    loss_s: float = 10.0
    """Seconds to find out why a sandbox stopped answering before the caller hears `unreachable`. A
    kubelet tells of a death within two seconds, and on a busy node within ten."""

    outage_grace_s: float = 600.0
    """Seconds beyond its lease that a daemon which nobody reaches leaves its sandbox alive, so that an
    outage of the gateway shorter than that costs none. Ten minutes: a gateway whose node is lost is back
    elsewhere in six. Longer than the janitor takes to delete what has expired (`janitor.EXPIRY_SLACK_S`
    and a round), or a daemon would come before it."""

    grace_s: float = 30.0
    """Seconds that calls in flight get when the gateway is asked to stop."""

    lame_duck_s: float = 5.0
    """Seconds that it still accepts calls after SIGTERM: endpoints spread asynchronously."""

    keep_ended: int = 20_000
    """Ended sandboxes whose reason is remembered in memory."""

    retain_s: float = 600.0
    """Seconds that the pod of a sandbox which ended by itself stays, counted in the quota: so long its
    reason survives a restart of the gateway. Ten minutes, a rollout that hangs once."""

    network_closed: tuple[probes.Target, ...] = ()
    """Addresses `ip:port`, separated by commas, that accept connections and that no egress profile opens:
    probed beside those that the gateway knows itself (the API server, itself, other sandboxes). The place for
    metadata services and the like."""

    network_enforcement: profiles.Enforcement = profiles.Enforcement.WARN
    """`warn` or `require`: what follows when a placeholder, which has no network, reaches an address that it must
    not: a line in the log and a metric, or no sandbox until that has an end."""

    eval_network_wait: bool = True
    """Whether a sandbox of `purpose: eval` is handed over only when a probe has shown that its egress profile is in
    force, where its caller says nothing of it. False where nothing enforces network policies."""

    log_level: str = "info"
    """debug, info, warning or error."""

    @property
    def start_s(self) -> float:
        """Seconds that a claimed pod's start may take at the longest."""
        return self.image_s + self.handshake_s

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Read the settings.

        Raises:
            SettingError: a value cannot be read, or a variable with our prefix is none of ours.
        """
        known = {PREFIX + field.name.upper(): field for field in dataclasses.fields(cls)}
        unknown = sorted(k for k in environ if k.startswith(PREFIX) and k not in known)
        if unknown:
            raise SettingError(f"{unknown[0]} is not a setting; known: {', '.join(sorted(known))}")
        values = {
            field.name: _read(variable, str(field.type), environ[variable])
            for variable, field in known.items()
            if variable in environ
        }
        return cls(**values)  # type: ignore[arg-type]


def _texts(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _flag(text: str) -> bool:
    """`true` or `false`.

    Raises:
        ValueError: anything else.
    """
    if text not in {"true", "false"}:
        raise ValueError("true or false")
    return text == "true"


def _mirrors(text: str) -> tuple[references.Mirror, ...]:
    return references.parse_mirrors(_texts(text))


_READERS: dict[str, Callable[[str], object]] = {
    "bool": _flag,
    "int": int,
    "float": float,
    "str": str,
    "tuple[str, ...]": _texts,
    "tuple[references.Mirror, ...]": _mirrors,
    "tuple[probes.Target, ...]": profiles.targets,
    "profiles.Enforcement": profiles.Enforcement,
}


def _read(variable: str, kind: str, text: str) -> object:
    try:
        value = _READERS[kind](text)
    except ValueError as error:
        raise SettingError(f"{variable}={text!r} is not of type {kind}: {error}") from None
    if value in ("", ()) or (isinstance(value, (int, float)) and not value >= 0):
        raise SettingError(f"{variable}={text!r} must not be empty or negative")
    return value
