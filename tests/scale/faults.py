"""What goes wrong on the scale bed: nodes that are lost, programs that are killed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cluster.bed.kube import kubectl
from tests.cluster.bed.shell import attempt, run
from tests.scale import nodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.cluster.bed.model import Bed

_MARK = "sandman scale bed"


def lose(bed: Bed, numbers: Iterable[int]) -> None:
    """Let these nodes be lost: no sign of life, and no packet reaches their pods."""
    for number in numbers:
        run(["iptables", "-w", "-A", "INPUT", *_rule(number)])
        kubectl(bed, "label", "node", nodes.name(number), f"{nodes.LABEL_LOST}=true", "--overwrite")


def find(bed: Bed, numbers: Iterable[int]) -> None:
    """Let them be back."""
    for number in numbers:
        run(["iptables", "-w", "-D", "INPUT", *_rule(number)])
        kubectl(bed, "label", "node", nodes.name(number), f"{nodes.LABEL_LOST}-")


def restore_network() -> None:
    """Take away every rule of ours."""
    for line in attempt(["iptables", "-w", "-S", "INPUT"]).splitlines():
        if _MARK in line:
            run(["iptables", "-w", "-D", "INPUT", *_words(line)])


def _rule(number: int) -> list[str]:
    return ["-d", nodes.addresses(number), "-m", "comment", "--comment", _MARK, "-j", "DROP"]


def _words(line: str) -> list[str]:
    """Of a rule as iptables lists it, `-A INPUT …`."""
    words = line.replace(f'"{_MARK}"', "\0").split()[2:]
    return [_MARK if word == "\0" else word for word in words]
