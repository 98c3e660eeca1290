# Written by scripts/unasync.py from sandman/_async/workloads.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Attaching to users' workloads: what is asked for."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, TypedDict

from sandman import names
from sandman._sync.creation import SPANS
from sandman._sync.transport import Call

if TYPE_CHECKING:
    from collections.abc import Mapping


class WorkloadOptions(TypedDict, total=False):
    """How a workload is attached to; every option may be left out. They mean what they do in SandboxOptions: this
    process' heartbeats keep the attachment, and `ttl_s` after its end the workload is free again."""

    env: Mapping[str, str]
    workdir: str | None
    user: str | int | None
    run: str | None
    labels: Mapping[str, str]
    ttl_s: float | None
    idle_s: float | None
    max_s: float | None
    heartbeat: bool


def attachment(namespace: str, options: Mapping[str, object]) -> Call:
    """The call that attaches; the same bytes and key at each attempt."""
    body = {name: value for name, value in options.items() if value is not None}
    lease: dict[str, object] = {name: body.pop(name) for name in SPANS if name in body}
    if body.pop("heartbeat"):
        lease["run"] = True
    if lease:
        body["lease"] = lease
    call = Call.with_json("POST", "/v1/sandboxes/attach", {"namespace": namespace, **body})
    call.headers = {**call.headers, names.HEADER_IDEMPOTENCY_KEY: uuid.uuid4().hex}
    return call
