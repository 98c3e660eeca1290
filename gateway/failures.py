"""How many tokens that are not known an address may send. Pure; the clock comes in.

Only failures count, and only those are refused: a token that is good is good whatever its neighbours send. What
cannot be told without asking others (the API server, an issuer's keys) waits for its turn then.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict

BURST = 20
"""Failures of one address at once: a launcher whose hundred workers have an old key sees 401 in its log."""
EVERY_S = 2.0
"""Seconds for each more: half a failure a second."""
SOURCES_MAX = 10_000
"""Addresses kept, about 2 MiB; beyond that the ones that were quiet for longest are forgotten."""
IPV6_PREFIX = 64
"""Bits of an IPv6 address that one machine can not choose for itself."""


class Failures:
    """The failures of late, of each address."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()
        """When an address will have worked off its failures, at one in EVERY_S."""

    def __len__(self) -> int:
        return len(self._until)

    def wait(self, source: str, now: float) -> int:
        """Whole seconds after which one failure more is had; 0: now.

        Args:
            source: the address, from `source_of`.
            now: seconds on a clock that never goes back.
        """
        until = self._until.get(source, now)
        return max(0, math.ceil(until + EVERY_S - now - BURST * EVERY_S))

    def count(self, source: str, now: float) -> int:
        """One failure more. Answers as `wait`; those that are refused do not make the wait longer."""
        wait = self.wait(source, now)
        if not wait:
            self._until[source] = max(self._until.get(source, now), now) + EVERY_S
            self._until.move_to_end(source)
            while len(self._until) > SOURCES_MAX:
                self._until.popitem(last=False)
        return wait


def source_of(address: str | None) -> str:
    """What stands for who is at this address: itself, or the network of an IPv6 one."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, IPV6_PREFIX), strict=False))
