"""Lengths of time and amounts of memory as people write them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click import Context, Parameter

_SPAN = re.compile(r"([0-9]{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MEMORY = re.compile(r"([0-9]{1,15})(Ki|Mi|Gi|Ti)?")
_POWERS = {None: 0, "Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40}


class Span(click.ParamType):  # type: ignore[type-arg]
    """`90d`, `12h`, `30m`, `45s`; seconds."""

    name = "span"

    def convert(self, value: object, param: Parameter | None, ctx: Context | None) -> float:
        """The seconds."""
        match = _SPAN.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is no length of time; 90d, 12h, 30m and 45s are", param, ctx)
        return float(int(match[1]) * _SECONDS[match[2]])


class Memory(click.ParamType):  # type: ignore[type-arg]
    """`512Mi`, `64Gi`; bytes."""

    name = "memory"

    def convert(self, value: object, param: Parameter | None, ctx: Context | None) -> int:
        """The bytes."""
        match = _MEMORY.fullmatch(str(value))
        if match is None or not int(match[1]):
            self.fail(f"{value!r} is no amount of memory; 512Mi and 64Gi are", param, ctx)
        return int(match[1]) << _POWERS[match[2]]
