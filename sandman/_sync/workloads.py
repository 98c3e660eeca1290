# Written by scripts/unasync.py from sandman/_async/workloads.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Attaching to users' workloads: what is asked for."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypedDict

from sandman import names
from sandman._core.heart import DEFAULT_TTL_S
from sandman._sync.creation import SPANS
from sandman._sync.transport import Call

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    from sandman._core.heart import Heart


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


def attachment(
    namespace: str, meant: Mapping[str, object], options: WorkloadOptions, own_run: str
) -> Call:
    """The call that attaches; the same bytes and key at each attempt. `own_run`: where none is given."""
    given: dict[str, object] = {**meant, **options}
    if given.pop("heartbeat", True):
        given |= {"run": options.get("run") or own_run, "ttl_s": _ttl_s(options)}
    body = {name: value for name, value in given.items() if value is not None}
    lease: dict[str, object] = {name: body.pop(name) for name in SPANS if name in body}
    if options.get("heartbeat", True):
        lease["run"] = True
    if lease:
        body["lease"] = lease
    call = Call.with_json("POST", "/v1/sandboxes/attach", {"namespace": namespace, **body})
    call.headers = {**call.headers, names.HEADER_IDEMPOTENCY_KEY: uuid.uuid4().hex}
    return call


def kept(heart: Heart, options: WorkloadOptions, own_run: str) -> AbstractContextManager[None]:
    """While this runs an attachment is made that heartbeats keep, unless it is to do without."""
    if options.get("heartbeat", True):
        return heart.expecting(options.get("run") or own_run, _ttl_s(options))
    return nullcontext()


def _ttl_s(options: WorkloadOptions) -> float:
    return options.get("ttl_s") or DEFAULT_TTL_S
