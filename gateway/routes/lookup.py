"""Asks the API server for a sandbox that the watch does not show: it may be behind the replica that made
the sandbox. Callers choose the ids, so that both how often and how many at once is limited."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import trio

from gateway.routes import parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.model import Instance

ABSENT_S = 5.0
"""Seconds for which an id that was not there, or not the caller's, is not asked for again. A pod's uid is never
given twice, and nobody can know an id before its pod is made: what is there later was there or is shown by the
watch."""
ABSENT_MAX = 10_000
"""Such ids kept: about 2 MiB."""
READS_AT_ONCE = 4
"""Of one tenant; an eighth of the connections to the API server. Claims and deletions need the others."""


class Pods(Protocol):
    """What is needed of the provider."""

    async def read(self, namespace: str, name: str) -> Instance | None:
        """The pod as the API server has it now."""


class Lookup:
    """Finds pods by sandbox id.

    Args:
        pods: the API server.
        namespaces: where sandboxes are.
    """

    def __init__(self, pods: Pods, namespaces: Sequence[str]) -> None:
        self._pods = pods
        self._namespaces = namespaces
        self._absent: OrderedDict[tuple[str, str], float] = OrderedDict()
        """By tenant and id where it is another's, by "" and id where it is nobody's."""
        self._limiters: dict[str, trio.CapacityLimiter] = {}
        """Of tenants that ask just now."""

    async def find(self, tenant: str, sandbox: str) -> Instance | None:
        """The pod of this sandbox. Another tenant's is absent in every way, the time of the answer too: it is
        asked for as one that never was, and as seldom.

        Args:
            tenant: who asks.
            sandbox: the id that the caller gave.

        Raises:
            SandmanError: the API server does not answer.
        """
        name = parse.pod_name(sandbox)
        if name is None or self._is_absent(tenant, sandbox):
            return None
        limiter = self._limiters.setdefault(tenant, trio.CapacityLimiter(READS_AT_ONCE))
        try:
            async with limiter:
                # Those that waited for the same id need not ask any more.
                if self._is_absent(tenant, sandbox):
                    return None
                found = await self._read(name, sandbox)
        finally:
            if not limiter.borrowed_tokens and not limiter.statistics().tasks_waiting:
                self._limiters.pop(tenant, None)
        if found is not None and found.tenant == tenant:
            return found
        self._keep_absent("" if found is None else tenant, sandbox)
        return None

    async def _read(self, name: str, sandbox: str) -> Instance | None:
        for namespace in self._namespaces:
            instance = await self._pods.read(namespace, name)
            if instance is not None and instance.id == sandbox:
                return instance
        return None

    def _is_absent(self, tenant: str, sandbox: str) -> bool:
        until = max(self._absent.get((whose, sandbox), 0.0) for whose in ("", tenant))
        return trio.current_time() < until

    def _keep_absent(self, tenant: str, sandbox: str) -> None:
        self._absent[tenant, sandbox] = trio.current_time() + ABSENT_S
        self._absent.move_to_end((tenant, sandbox))
        while len(self._absent) > ABSENT_MAX:
            self._absent.popitem(last=False)
