# Written by scripts/unasync.py from sandman/_async/network.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Another egress profile for a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandman._core import faults
from sandman._core.values import NetworkInfo
from sandman._sync.transport import Call

if TYPE_CHECKING:
    from sandman._sync.transport import Transport

NETWORK_WAIT_S = 30.0
"""Seconds for a network plugin to carry out what is written: most take one."""
ANSWER_S = 10.0
"""Seconds beyond that for the last probe and the way back."""


def change_network(
    transport: Transport, sandbox: str, path: str, network: str, wait_s: float
) -> NetworkInfo:
    """See `Sandbox.set_network`."""
    call = Call.with_json("PUT", f"{path}/network", {"network": network, "wait_s": wait_s})
    call.sandbox = sandbox
    call.silence_s = call.patience_s = wait_s + ANSWER_S
    answer = transport.json(call)
    probes = answer.get("probes") if isinstance(answer, dict) else None
    if not isinstance(answer, dict) or not answer.get("applied") or not isinstance(probes, list):
        raise faults.not_understood("an applied egress profile", answer)
    return NetworkInfo(
        network=str(answer.get("network")), probes=probes, took_ms=answer.get("took_ms")
    )
