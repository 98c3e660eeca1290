"""Kubernetes quantities (`500m`, `2`, `4Gi`, `1e3`) ⇄ whole millicores and bytes. Pure.

As the API server does, what is finer than a millicore or a byte is rounded up.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

LENGTH_MAX = 32
"""Characters; a cluster's memory in bytes has 16."""
_GRAMMAR = re.compile(
    r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?"
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
"""Suffix → power of ten."""
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
"""Suffix → power of two."""


def millicores(value: object) -> int | None:
    """Thousandths of a processor; None when it is no quantity."""
    exact = _exact(value)
    return None if exact is None else math.ceil(exact * 1000)


def bytes_of(value: object) -> int | None:
    """Bytes; None when it is no quantity."""
    exact = _exact(value)
    return None if exact is None else math.ceil(exact)


def cpu_text(amount: int) -> str:
    """Millicores as Kubernetes writes them."""
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"


def memory_text(amount: int) -> str:
    """Bytes as Kubernetes writes them: in the largest binary unit that leaves no fraction."""
    for suffix, power in reversed(_BINARY.items()):
        if amount and amount % (1 << power) == 0:
            return f"{amount >> power}{suffix}"
    return str(amount)


def _exact(value: object) -> Fraction | None:
    """The number; none below zero, and none that is not written as one."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    if isinstance(value, int) and not 0 <= value < 10**LENGTH_MAX:
        # Python refuses to write the longest as text.
        return None
    text = str(value)
    match = _GRAMMAR.fullmatch(text) if len(text) <= LENGTH_MAX else None
    if match is None:
        return None
    digits, suffix, exponent = match.groups()
    if suffix in _BINARY:
        return Fraction(digits) * (1 << _BINARY[suffix])
    power = _DECIMAL[suffix] if suffix else int(exponent or 0)
    return Fraction(digits) * (Fraction(10**power) if power >= 0 else Fraction(1, 10**-power))
