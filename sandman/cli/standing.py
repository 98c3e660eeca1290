"""What `sandman top` shows: one look as lines of a screen, or as JSON. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sandman.sync import OverviewInfo, PoolInfo, SandboxInfo

BOLD, DIM, RED, GREEN, YELLOW, PLAIN = (f"\x1b[{code}m" for code in (1, 2, 31, 32, 33, 0))
BAR = 10
"""Columns of a pool's bar."""
MOST_ENDED = 10
"""Of those that are over, the latest: why they are is what somebody looks for."""
WIDEST = 44
"""Columns of one value: images' names are long, and their ends tell them apart."""
GAP = "  "
_SGR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SERIES = re.compile(
    r'^sandman_queue_(length|age_seconds)\{tenant="((?:[^"\\]|\\.)*)"\} (\S+)', re.MULTILINE
)
POOLS = ("POOL", "", "LEASED", "FREE", "WANTED", "RESERVED", "MAX", "IMAGE", "STATE")
REQUESTS = ("WAITS", "POOL", "IMAGE", "RUN")
TENANTS = ("TENANT", "WAITING", "LONGEST")
BOXES = ("SANDBOX", "STATE", "TIER", "POOL", "AGE", "RUN", "NODE", "IMAGE", "REASON")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One look. `tenants`: requests that wait and the longest, in seconds, by tenant; None: not to be seen.
    `error`: why the last look failed, and all else is older."""

    at: datetime
    gateway: str
    overview: OverviewInfo | None = None
    pools: Sequence[PoolInfo] = ()
    sandboxes: Sequence[SandboxInfo] = ()
    ended: Sequence[SandboxInfo] = ()
    tenants: Mapping[str, tuple[int, float]] | None = None
    error: str | None = None


def nothing(gateway: str) -> Standing:
    """Before anything was seen."""
    return Standing(at=datetime.min, gateway=gateway)  # noqa: DTZ901 - replaced before it is shown


def tenants(metrics: str) -> dict[str, tuple[int, float]]:
    """The queues by tenant, of metrics in Prometheus' text format."""
    found: dict[str, list[float]] = {}
    for kind, name, value in _SERIES.findall(metrics):
        found.setdefault(name, [0.0, 0.0])[kind == "age_seconds"] = float(value)
    return {name: (int(count), age) for name, (count, age) in sorted(found.items())}


def told(seen: Standing) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "at": seen.at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "gateway": seen.gateway,
        "error": seen.error,
        "overview": None if seen.overview is None else dataclasses.asdict(seen.overview),
        "pools": [dataclasses.asdict(one) for one in seen.pools],
        "sandboxes": [dataclasses.asdict(one) for one in seen.sandboxes],
        "ended": [dataclasses.asdict(one) for one in seen.ended],
        "tenants": None
        if seen.tenants is None
        else [
            {"tenant": name, "waiting": waiting, "oldest_s": oldest}
            for name, (waiting, oldest) in seen.tenants.items()
        ],
    }


def plain(line: str) -> str:
    """Without colours."""
    return _SGR.sub("", line)


def lines(seen: Standing, columns: int, rows: int | None) -> list[str]:
    """A screen of so many columns and rows; None: as many as there are."""
    found = [*_head(seen), "", *_table(POOLS, [_pool(one) for one in seen.pools])]
    if seen.overview is not None and seen.overview.requests:
        found += [
            "",
            *_table(REQUESTS, [_request(one) for one in seen.overview.requests[:MOST_ENDED]]),
        ]
    if seen.tenants is not None:
        waiting = [[_safe(name), str(n), span(age)] for name, (n, age) in seen.tenants.items()]
        found += ["", *_table(TENANTS, waiting)]
    ended = sorted(seen.ended, key=_ended_at)[-MOST_ENDED:][::-1]
    boxes = [_box(one, seen.at) for one in (*seen.sandboxes, *ended)]
    found += ["", *_table(BOXES, boxes)]
    cut = [_cut(line, columns) for line in found]
    if rows is None or len(cut) <= rows:
        return cut
    return [*cut[: rows - 1], f"{DIM}… and {len(cut) - rows + 1} more lines{PLAIN}"]


def _head(seen: Standing) -> list[str]:
    clock = seen.at.strftime("%H:%M:%S UTC")
    who = seen.overview.tenant if seen.overview is not None else "-"
    found = [
        f"{BOLD}sandman top{PLAIN}  {_safe(seen.gateway)}  tenant {BOLD}{_safe(who)}{PLAIN}  {clock}"
    ]
    if seen.overview is not None:
        found.append(_summary(seen.overview, seen.sandboxes))
    if seen.error is not None:
        found.append(f"{RED}{_safe(seen.error)}{PLAIN}")
    return found


def _summary(overview: OverviewInfo, boxes: Sequence[SandboxInfo]) -> str:
    limits = overview.limits
    most = limits.get("concurrent")
    states = Counter(box.state or "-" for box in boxes)
    kinds = ", ".join(f"{count} {_safe(state)}" for state, count in sorted(states.items()))
    queue = f"{overview.waiting} waiting"
    if overview.oldest_s is not None:
        queue = f"{YELLOW}{queue}, longest {span(overview.oldest_s)}{PLAIN}"
    parts = [
        f"{overview.sandboxes}{'' if most is None else f' of {most:g}'} sandboxes"
        + (f" ({kinds})" if kinds else ""),
        queue,
        f"weight {overview.weight:g}",
    ]
    if (everybody := overview.queue.get("waiting", 0)) > overview.waiting:
        parts.append(f"{everybody} waiting of all tenants")
    if (cpu := limits.get("cpu")) is not None:
        parts.append(f"cpu ≤ {cpu:g}")
    if (memory := limits.get("memory")) is not None:
        parts.append(f"memory ≤ {memory / 2**30:.1f}Gi")
    return " · ".join(parts)


def _pool(pool: PoolInfo) -> list[str]:
    most = pool.max or (pool.free + pool.leased + pool.reserved)
    busy = round(BAR * min(1.0, (pool.leased + pool.reserved) / most)) if most else 0
    state = (
        f"{GREEN}ok{PLAIN}" if pool.broken is None else f"{RED}broken: {_safe(pool.broken)}{PLAIN}"
    )
    colour = YELLOW if pool.free < pool.wanted else GREEN
    return [
        _safe(pool.name), f"{GREEN}{'█' * busy}{DIM}{'░' * (BAR - busy)}{PLAIN}", str(pool.leased),
        f"{colour}{pool.free}{PLAIN}", str(pool.wanted), str(pool.reserved), "-" if pool.max is None else str(pool.max),
        _safe(pool.image or "-"), state,
    ]  # fmt: skip


def _request(one: Mapping[str, object]) -> list[str]:
    waited = one.get("waited_s")
    shown = span(float(waited)) if isinstance(waited, (int, float)) else "-"
    return [
        f"{YELLOW}{shown}{PLAIN}",
        *(_safe(str(one.get(name) or "-")) for name in ("pool", "image", "run")),
    ]


def _box(box: SandboxInfo, at: datetime) -> list[str]:
    ended = box.ended or {}
    state = box.state or ("ended" if ended else "-")
    colour = {"ready": GREEN, "starting": YELLOW, "ending": YELLOW}.get(state, DIM)
    reason = " ".join(_safe(str(ended[name])) for name in ("reason", "detail") if ended.get(name))
    return [
        _safe(box.id), f"{colour}{_safe(state)}{PLAIN}", _safe(box.tier or "-"), _safe(box.pool or "-"), _age(box, at),
        _safe(box.run or "-"), _safe(box.node or "-"), _safe(box.image or "-"), f"{RED}{reason}{PLAIN}" if reason else "-",
    ]  # fmt: skip


def _age(box: SandboxInfo, at: datetime) -> str:
    try:
        made = datetime.fromisoformat(box.created_at or "")
        return span((at - made).total_seconds())
    except (ValueError, TypeError):
        return "-"


def _ended_at(box: SandboxInfo) -> str:
    return str((box.ended or {}).get("at") or "")


def span(seconds: float) -> str:
    """A length of time in few columns."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    for unit, length, below in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172_800)):
        if seconds < below:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds / 86_400:.0f}d"


def _safe(text: str) -> str:
    """On a terminal nothing of what others wrote may be more than letters; cut in the middle of what is long."""
    text = _CONTROL.sub("?", text)
    if len(text) <= WIDEST:
        return text
    return f"{text[: WIDEST // 3]}…{text[-(WIDEST - WIDEST // 3 - 1) :]}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    rows = list(rows)
    widths = [max(len(plain(row[at])) for row in [heads, *rows]) for at in range(len(heads))]
    found = [f"{DIM}{_row(heads, widths)}{PLAIN}"]
    return found + [_row(row, widths) for row in rows]


def _row(values: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        value + " " * (width - len(plain(value)))
        for value, width in zip(values, widths, strict=True)
    ]
    return GAP.join(padded).rstrip()


def _cut(line: str, columns: int) -> str:
    """At most so many columns, colours ended."""
    if len(plain(line)) <= columns:
        return line
    kept, left, at = [], columns - 1, 0
    while left > 0 and at < len(line):
        if match := _SGR.match(line, at):
            kept.append(match[0])
            at = match.end()
            continue
        kept.append(line[at])
        left, at = left - 1, at + 1
    return "".join([*kept, "…", PLAIN])
