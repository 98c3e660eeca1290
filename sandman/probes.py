"""What gateway and daemon say to each other about the network: addresses to try, and how each answered.

Standard library only: the daemon ships this file.
"""

from __future__ import annotations

from sandman import names
from sandman.fields import Fields
from sandman.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

TARGETS_MAX = 16
"""Addresses of one probe: a profile has a few, and each is a socket of the daemon's."""
PROBE_MAX_S = 5.0
"""Longest time for all of them together; they are tried at once."""

REACHABLE = "reachable"
"""Something accepted the connection."""
REFUSED = "refused"
"""Something said no: nothing listens there, or a network policy that rejects."""
TIMEOUT = "timeout"
"""Nothing answered: a network policy that drops, or nobody is there."""
UNREACHABLE = "unreachable"
"""The network said that there is no way."""
OUTCOMES = (REACHABLE, REFUSED, TIMEOUT, UNREACHABLE)


class Target(NamedTuple):
    """An address of TCP: a literal one, never a name that somebody would have to resolve."""

    address: str
    port: int

    def __str__(self) -> str:
        return (
            f"[{self.address}]:{self.port}"
            if ":" in self.address
            else f"{self.address}:{self.port}"
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """`10.0.0.1:443` or `[fd00::1]:443`; whether the address is one, whoever uses it must see.

        Raises:
            ValueError: it has no such form.
        """
        host, _, number = text.rpartition(":")
        port = names.port_number(number)
        bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if port is None or (bare == host) == (":" in bare):
            raise ValueError(f"{text[:80]!r} is not an address and a port, as 10.0.0.1:443")
        return cls(bare, port)


class Probe(NamedTuple):
    """What the daemon is to try, and for how many seconds."""

    targets: tuple[Target, ...]
    timeout_s: float

    def to_json(self) -> dict[str, object]:
        """The members of the JSON body."""
        return {"targets": [str(one) for one in self.targets], "timeout_s": self.timeout_s}

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse a body.

        Raises:
            BadRequestError: names the field at fault.
        """
        reader = Fields(body)
        texts = reader.texts("targets") or ()
        if not 1 <= len(texts) <= TARGETS_MAX:
            raise reader.fail("targets", f"a list of 1 to {TARGETS_MAX} addresses")
        try:
            targets = tuple(Target.parse(text) for text in texts)
        except ValueError as error:
            raise reader.fail("targets", f"addresses: {error}") from None
        timeout_s = reader.seconds("timeout_s")
        if timeout_s is None or timeout_s > PROBE_MAX_S:
            raise reader.fail("timeout_s", f"a number of seconds up to {PROBE_MAX_S:g}")
        reader.finish()
        return cls(targets, timeout_s)


def results_to_json(results: Mapping[Target, str]) -> dict[str, object]:
    """The members of the daemon's answer."""
    return {"results": {str(target): outcome for target, outcome in results.items()}}


def results_from_json(body: Mapping[str, object], asked: tuple[Target, ...]) -> dict[Target, str]:
    """How each address that was asked for answered.

    Raises:
        BadRequestError: it is no such answer; it names the member at fault.
    """
    reader = Fields(body)
    told = reader.raw("results")
    if not isinstance(told, dict) or not all(told.get(str(one)) in OUTCOMES for one in asked):
        raise reader.fail("results", "an outcome for each address")
    return {one: told[str(one)] for one in asked}
