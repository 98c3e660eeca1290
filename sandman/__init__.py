"""Sandman: sandboxes for reinforcement learning of agents, on Kubernetes.

What callers import. Names are resolved on first use (PEP 562), so that the daemon can ship
`sandman.wire`, `sandman.names` and `sandman.errors` without the client's dependencies.
"""

from __future__ import annotations

import importlib

from sandman.version import __version__

# Not from `typing`: the daemon imports this package at each pod's start, and typing costs it 4 ms.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from sandman.client import Client, Sandbox
    from sandman.errors import SandmanError
    from sandman.sync import Client as SyncClient
    from sandman.wire import ExecResult

__all__ = ["Client", "ExecResult", "Sandbox", "SandmanError", "SyncClient", "__version__"]

_HOME = {
    "Client": ("sandman.client", "Client"),
    "Sandbox": ("sandman.client", "Sandbox"),
    "SyncClient": ("sandman.sync", "Client"),
    "ExecResult": ("sandman.wire", "ExecResult"),
    "SandmanError": ("sandman.errors", "SandmanError"),
}


def __getattr__(name: str) -> object:
    try:
        module, attribute = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(importlib.import_module(module), attribute)
