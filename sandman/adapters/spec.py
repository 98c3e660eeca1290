"""What sandbox a framework's task wants: the client's options as a model, which a configuration file can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from sandman.client import SandboxOptions

WAIT_S = 600.0
"""A framework asks for all sandboxes of a task at once, and those that wait are no fault."""


class SandboxSpec(BaseModel):
    """A sandbox that is wanted; what is left out is the pool's, or the gateway's, to say.

    The fields are those of `sandman.client.SandboxOptions`, with the same meaning.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str | None = None
    pool: str | None = None
    network: str | None = None
    network_wait: bool | None = None
    resources: dict[Literal["cpu", "memory"], str | float] = Field(default_factory=dict)
    node_class: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    workdir: str | None = None
    user: str | int | None = None
    run: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    purpose: Literal["train", "eval"] | None = None
    avoid_nodes: list[str] = Field(default_factory=list)
    ttl_s: float | None = None
    idle_s: float | None = None
    max_s: float | None = None
    wait_s: float = WAIT_S

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    def options(self) -> SandboxOptions:
        """For the client; a subclass's own fields are not."""
        given = self.model_dump(include=set(SandboxSpec.model_fields))
        return {name: one for name, one in given.items() if one or one == 0}  # type: ignore[return-value]
