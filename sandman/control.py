"""Whether what was run in a sandbox ran under control: evidence against thresholds. Pure.

What could not be measured is a reason like any other, and never passes for well; pressure alone, which many kernels do
not tell, is named among what is unmeasured, and is a reason only of who has no whole processors. Whoever holds a certificate may judge it again, by thresholds of his own.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from sandman.certificates import CertificateReason
from sandman.evidence import PRESSURES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ENDED = "ended"
WHOLE_M = 1000
"""Thousandths of a processor."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """What counts as under control. Shares are of a command's time from start to end."""

    purpose: str = "eval"
    qos: str = "Guaranteed"
    """With it cpu and memory are set aside, and neighbours cannot take them."""
    throttled_share: float = 0.01
    """Time in which the kernel held the sandbox at its limit of cpu."""
    cpu_stalled_share: float = 0.02
    """Time in which nothing of it ran although something could have: others had the processors."""
    memory_stalled_share: float = 0.01
    """Time in which all of it waited for memory."""
    io_stalled_share: float = 0.2
    """Time in which all of it waited for a disk: reading is work, too."""
    floor_s: float = 0.1
    """Seconds of any of these that count for nothing: one period of the kernel's limit of cpu. Of a command that is
    over in an instant any of it would be a large share."""
    clock_offset_s: float = 1.0
    """Between the clock inside and the gateway's, either way."""
    committed_share: float = 1.0
    """Of the node's cpu, as set aside for all sandboxes that are on it."""

    def to_json(self) -> dict[str, object]:
        """The members of the JSON object."""
        return dataclasses.asdict(self)


DEFAULT_THRESHOLDS = Thresholds()


def judge(
    document: Mapping[str, Any], by: Thresholds = DEFAULT_THRESHOLDS
) -> list[CertificateReason]:
    """Why what is told was not under control; empty when it was.

    Args:
        document: `api`, `inside` and `commands` of a certificate.
        by: thresholds.
    """
    return [
        *_placed(_part(document, "api"), by),
        *_agreed(_part(document, "api"), by),
        *_neighbours(_part(document, "api"), by),
        *_inside(_part(document, "inside"), by),
        *_commands(_listed(document), by),
        *_processors(document),
    ]


def unmeasured(document: Mapping[str, Any]) -> list[str]:
    """What the kernel did not tell and no reason is made of."""
    commands = [one for one in _listed(document) if one.get("state") == ENDED]
    stalls = [_part(one, "stalled_s") for one in commands]
    return [f"pressure.{one}" for one in PRESSURES if not stalls or _lacks(stalls, one)]


def _processors(document: Mapping[str, Any]) -> Iterator[CertificateReason]:
    """A whole processor can be one's own, and on a node that gives them away it is; of a part of one others have the
    rest. Whether they had more shows in the kernel's pressure alone."""
    cpu_m = _number(_part(document, "api"), "requests", "cpu_m")
    is_whole = cpu_m is not None and cpu_m > 0 and cpu_m % WHOLE_M == 0
    # One that could not be started used no processor.
    commands = [
        one for one in _listed(document) if one.get("state") == ENDED and not one.get("start_error")
    ]
    if not is_whole and _lacks([_part(one, "stalled_s") for one in commands], "cpu"):
        yield CertificateReason(
            "cpu",
            "whether others had its processor is not known: it has no whole one, and its kernel tells of no pressure",
        )


def _lacks(stalls: list[Mapping[str, Any]], what: str) -> bool:
    return any(_number(one, what) is None for one in stalls)


def _placed(api: Mapping[str, Any], by: Thresholds) -> Iterator[CertificateReason]:
    """Where and as what it ran, as the API server has it."""
    if api.get("purpose") != by.purpose:
        yield CertificateReason(
            "purpose", f"it was asked for as {api.get('purpose')}, not {by.purpose}"
        )
    if api.get("qos") != by.qos:
        yield CertificateReason("qos", f"its class is {api.get('qos') or 'unknown'}, not {by.qos}")
    if "sha256:" not in str(api.get("image_digest")):
        yield CertificateReason("image", "the digest of its image is not known")
    kernel = _part(api, "node").get("kernel")
    if not isinstance(kernel, str) or not kernel:
        yield CertificateReason("node", "what its node is, is not known")
    yield from _network(_part(api, "network"))
    restarts, usual = api.get("restarts"), api.get("restarts_usual")
    if restarts is None or restarts != usual:
        yield CertificateReason(
            "restarts", f"its container was started anew {restarts} times, not {usual}"
        )


def _network(network: Mapping[str, Any]) -> Iterator[CertificateReason]:
    """What it could reach: what is probed is so now, and was so from its claim on unless it was changed."""
    if network.get("in_force") is not True:
        detail = network.get("detail") or "nothing has shown it"
        yield CertificateReason(
            "network", f"that {network.get('profile')} is in force is not shown: {detail}"
        )
    before, at = network.get("before"), network.get("changed_at")
    if not isinstance(before, list):
        yield CertificateReason("network", "whether its egress profile was changed is not known")
    elif before or at is not None:
        had = ", ".join(map(str, before)) or "unknown"
        yield CertificateReason(
            "network",
            f"its egress profile was changed, at {at or 'no known time'} last: before it was {had}",
        )


def _agreed(api: Mapping[str, Any], by: Thresholds) -> Iterator[CertificateReason]:
    """What an evaluation is promised before its first command."""
    if api.get("purpose") != by.purpose:
        return  # Which is a reason already.
    conditions = _part(api, "conditions")
    if conditions.get("dedicated") is not True:
        yield CertificateReason("conditions", "its pool is not for evaluations alone")
    if conditions.get("network_acknowledged") is not True:
        yield CertificateReason(
            "conditions", "its network was not probed before it was handed over"
        )


def _neighbours(api: Mapping[str, Any], by: Thresholds) -> Iterator[CertificateReason]:
    """What others on its node may use."""
    has = _number(_part(api, "node"), "allocatable", "cpu_m")
    own = _number(api, "requests", "cpu_m")
    others = _number(api, "neighbours", "requests", "cpu_m")
    if has is None or own is None or others is None:
        yield CertificateReason(
            "neighbours", "how much of its node is set aside, and for whom, is not known"
        )
    elif own + others > by.committed_share * has:
        yield CertificateReason(
            "neighbours",
            f"{own + others:g} m of cpu are set aside for sandboxes on its node, of {has:g} m",
        )


def _inside(inside: Mapping[str, Any], by: Thresholds) -> Iterator[CertificateReason]:
    """What its own daemon says of the whole sandbox."""
    kills = _number(inside, "memory", "oom_kills")
    if kills is None:
        yield CertificateReason(
            "oom", "whether anything was killed for want of memory is not known"
        )
    elif kills:
        yield CertificateReason("oom", f"{kills:g} processes were killed for want of memory")
    offset = _number(inside, "clock_offset_s")
    if offset is None or abs(offset) > by.clock_offset_s:
        told = "is not known" if offset is None else f"is {offset:+.3f} s off"
        yield CertificateReason(
            "clock", f"its clock {told}, where {by.clock_offset_s:g} s are allowed"
        )


def _commands(commands: list[Mapping[str, Any]], by: Thresholds) -> Iterator[CertificateReason]:
    if not commands:
        yield CertificateReason("commands", "no command was named, so that nothing is told of any")
    for one in commands:
        yield from _command(one, str(one.get("exec_id")), by)


def _command(one: Mapping[str, Any], name: str, by: Thresholds) -> Iterator[CertificateReason]:
    if one.get("state") != ENDED:
        yield CertificateReason(
            "commands", f"{name} is {one.get('state')}: how it ended is not known"
        )
        return
    if one.get("start_error"):
        return  # Nothing ran, and that is its result.
    if one.get("abandoned"):
        yield CertificateReason("abandoned", f"{name} was ended, since nobody read it any more")
    if one.get("oom_killed") is not False:
        told = "something of it was" if one.get("oom_killed") else "it is not known whether it was"
        yield CertificateReason("oom", f"{name}: {told} killed for want of memory")
    wall_s = _number(one, "wall_s")
    if wall_s is None or _number(one, "throttled_s") is None:
        yield CertificateReason(
            "throttled", f"{name}: whether it was held at its limit of cpu is not known"
        )
        return
    limits = {
        ("throttled", "at its limit of cpu"): (_number(one, "throttled_s"), by.throttled_share),
        ("cpu", "for a processor"): (_number(one, "stalled_s", "cpu"), by.cpu_stalled_share),
        ("memory", "for memory"): (_number(one, "stalled_s", "memory"), by.memory_stalled_share),
        ("io", "for a disk"): (_number(one, "stalled_s", "io"), by.io_stalled_share),
    }
    for (code, what), (seconds, share) in limits.items():
        if seconds is not None and seconds > max(by.floor_s, share * wall_s):
            part = 100 * seconds / wall_s if wall_s else 100.0
            yield CertificateReason(
                code,
                f"{name} stood still {what} for {seconds:.3f} of {wall_s:.3f} s ({part:.1f} %), "
                f"where {100 * share:g} % are allowed",
            )


def _listed(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Its commands; what is none counts as one of which nothing is known."""
    found = document.get("commands")
    return (
        [one if isinstance(one, dict) else {} for one in found] if isinstance(found, list) else []
    )


def _part(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _number(value: Mapping[str, Any], *path: str) -> float | None:
    for name in path[:-1]:
        value = _part(value, name)
    found = value.get(path[-1])
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None
