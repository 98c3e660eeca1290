"""The part of a pod that injection looks at, as frozen values.

Everything else in the pod is neither read nor written. The fields are the API's, so `null` and
absent are alike.
"""

from __future__ import annotations

import posixpath
from typing import Any

import msgspec

from webhook.errors import RefusedError


class View(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of all: camelCase on the wire, unknown members skipped."""


class SecurityContext(View, frozen=True):
    """Of a pod or a container."""

    privileged: bool | None = None
    windows_options: dict[str, Any] | None = None


class Port(View, frozen=True):
    """A declared port of a container."""

    container_port: int = 0
    host_port: int | None = None


class Mount(View, frozen=True):
    """A volume's place in a container."""

    name: str = ""
    mount_path: str = ""
    read_only: bool | None = None
    sub_path: str | None = None
    sub_path_expr: str | None = None

    @property
    def path(self) -> str:
        """The place as the runtime sees it: absolute, without dots and doubled slashes."""
        return posixpath.normpath("/" + self.mount_path.lstrip("/"))


class Variable(View, frozen=True):
    """A variable of a container; `value_from` is kept only to tell that it is there."""

    name: str = ""
    value: str | None = None
    value_from: dict[str, Any] | None = None


class Resources(View, frozen=True):
    """Requests and limits, in the API's own spelling."""

    requests: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None


class Container(View, frozen=True):
    """A container, init or not."""

    name: str = ""
    image: str | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[Variable] | None = None
    ports: list[Port] | None = None
    resources: Resources | None = None
    volume_mounts: list[Mount] | None = None
    security_context: SecurityContext | None = None
    restart_policy: str | None = None
    restart_policy_rules: list[dict[str, Any]] | None = None


class ProjectedSource(View, frozen=True):
    """One source of a projected volume."""

    service_account_token: dict[str, Any] | None = None


class Projected(View, frozen=True):
    """A volume made of several sources; the API server mounts account tokens this way."""

    sources: list[ProjectedSource] | None = None


class Volume(View, frozen=True):
    """A volume of the pod, of a kind that matters here or of any other."""

    name: str = ""
    image: dict[str, Any] | None = None
    empty_dir: dict[str, Any] | None = None
    projected: Projected | None = None


class Requirement(View, frozen=True):
    """One condition on a node's labels."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class NodeTerm(View, frozen=True):
    """Conditions that hold together."""

    match_expressions: list[Requirement] | None = None


class NodeSelector(View, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: list[NodeTerm] | None = None


class NodeAffinity(View, frozen=True):
    """Which nodes the pod is for."""

    required: NodeSelector | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(View, frozen=True):
    """The part about nodes."""

    node_affinity: NodeAffinity | None = None


class Os(View, frozen=True):
    """Which operating system the pod says it is for."""

    name: str = ""


class Spec(View, frozen=True):
    """What the pod asks for."""

    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    restart_policy: str | None = None
    automount_service_account_token: bool | None = None
    enable_service_links: bool | None = None
    termination_grace_period_seconds: int | None = None
    # `hostNetwork` and the others come camelCased as they are.
    host_network: bool | None = None
    host_pid: bool | None = msgspec.field(default=None, name="hostPID")
    host_ipc: bool | None = msgspec.field(default=None, name="hostIPC")
    share_process_namespace: bool | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    os: Os | None = None
    security_context: SecurityContext | None = None


class Metadata(View, frozen=True):
    """Labels and annotations. There may be no name yet: `generateName` is resolved after admission."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Pod(View, frozen=True):
    """A pod on its way in."""

    metadata: Metadata
    spec: Spec

    @property
    def labels(self) -> dict[str, str]:
        """The labels; empty when there are none."""
        return self.metadata.labels or {}

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations; empty when there are none."""
        return self.metadata.annotations or {}

    @property
    def containers(self) -> list[Container]:
        """The containers, init containers left out."""
        return self.spec.containers or []

    @property
    def all_containers(self) -> list[Container]:
        """Init containers, then containers."""
        return [*(self.spec.init_containers or []), *self.containers]


def parse(document: object) -> Pod:
    """The view of a pod's JSON values.

    Raises:
        RefusedError: not a pod that the API server could have sent.
    """
    try:
        return msgspec.convert(document, Pod)
    except msgspec.ValidationError as error:
        raise RefusedError(f"the pod cannot be read: {error}") from None
