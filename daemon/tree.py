"""Which processes belong to a command, from /proc.

A process can leave its parent (double fork), its session (setsid) and its environment (env -i), but
each of these marks has to be shed by itself, and one that is left gives it away:

- its parent is in the tree;
- its session was made by a member, the leader first;
- its limit of file locks, which Linux does not enforce since 2.4, is the command's number. It is
  inherited whatever a process does, also to another user, where the environment cannot be read.
  Without CAP_SYS_RESOURCE, which no ordinary container has, nobody can raise it again: `su` and its
  like, which reset limits, leave it as it is. Everybody can lower it: an orphan whose limit is below
  all marks has tampered with it, and ends with the next command that ends;
- the tag variable is in its environment;
- it lost its parent, so it came to us, it has none of another command's marks, and it was born
  while this command was the only one that ran. For kernels that have no such limit.

The last one cannot tell two commands that ran at the same time apart; then it spares the process,
because killing another command's server is worse than leaving one behind in a sandbox that ends.
What was measured and rejected: docs/design/20261129-whose-process.md.
"""

# ruff: noqa: PTH208
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import os
import resource
import time

from sandman.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

try:
    from _sandman import is_starting as _is_starting
except ImportError:

    def _is_starting(_pid: int, /) -> bool:
        return False  # a plain Python's children have their marks from the start on: see `spawn`


TAG = b"SANDMAN_EXEC"
LIMIT = 10
"""RLIMIT_LOCKS, which `resource` does not name."""
_BITS = 24
"""Of the boot id, and of the command's number. A number comes again after 16 million commands."""
_TICKS = float(os.sysconf("SC_CLK_TCK"))
_SLACK_S = 2 / _TICKS
"""/proc counts starts in ticks."""


_NOBODY: Mapping[int, float] = {}


class Row(NamedTuple):
    """One live process. `born`: seconds since the machine's start."""

    pid: int
    parent: int
    session: int
    born: float


class Life(NamedTuple):
    """A command's marks, and when it ran on the clock of `now()`; `ended` None: it runs."""

    leader: int
    tag: bytes
    started: float
    ended: float | None


def now() -> float:
    """Seconds on the clock of `Row.born`."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def snapshot() -> dict[int, Row] | None:
    """Every live process; None where /proc is absent or not readable."""
    try:
        entries = os.listdir("/proc")
    except OSError:
        return None
    rows = (_row(name) for name in entries if name[0] in "123456789")
    found = {row.pid: row for row in rows if row is not None}
    return found or None


def _row(name: str) -> Row | None:
    data = _read(f"/proc/{name}/stat")
    # The program's name may hold anything, also spaces and parentheses: the last one ends it.
    fields = data[data.rfind(b")") + 1 :].split()
    if len(fields) < 20 or fields[0] in b"ZX":
        return None
    return Row(int(name), int(fields[1]), int(fields[3]), int(fields[19]) / _TICKS)


def last_born() -> bytes:
    """The number that was given out last, of this container's processes and threads: the same before and
    after a look, nobody was born during it. Empty where it cannot be read."""
    return _read("/proc/loadavg").rpartition(b" ")[2]


def stopped() -> set[int]:
    """Processes that somebody has stopped."""
    try:
        names = [name for name in os.listdir("/proc") if name[0] in "123456789"]
    except OSError:
        return set()
    states = {
        int(name): _read(f"/proc/{name}/stat").rpartition(b")")[2].split(None, 1) for name in names
    }
    return {pid for pid, state in states.items() if state[:1] == [b"T"]}


def _read(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, 1024 * 1024)
    except OSError:
        return b""
    finally:
        os.close(file)


def is_unreaped(pid: int) -> bool:
    """Whether this is a child of ours that has ended and is yet to be waited for."""
    data = _read(f"/proc/{pid}/stat")
    fields = data[data.rfind(b")") + 1 :].split(None, 2)
    return fields[:2] == [b"Z", b"%d" % os.getpid()]


def tag_of(pid: int) -> bytes | None:
    """The tag of the process; None: it has none, or it may not be read."""
    return _tag_by_limit(pid) or _tag_by_environment(pid)


def _tag_by_limit(pid: int) -> bytes | None:
    """Everybody may read limits, also of processes that have ended but are not reaped."""
    _, _, rest = _read(f"/proc/{pid}/limits").partition(b"Max file locks")
    # A plain Python sets the soft limit, the first, alone.
    for value in rest.split(None, 2)[1::-1]:
        if _BASE and value.isdigit() and int(value) >> 2 * _BITS == _BASE >> 2 * _BITS:
            number = int(value) - _BASE
            return _tag(number >> _BITS, number).encode()
    return None


def was_lowered(pid: int) -> bool:
    """Whether the process took its mark off: only a lower limit is left to it.

    The marks of commands go down from the first on, so what is below the last one's is no command's.
    """
    _, _, rest = _read(f"/proc/{pid}/limits").partition(b"Max file locks")
    hard = rest.split(None, 2)[1:2]
    return bool(hard) and hard[0].isdigit() and int(hard[0]) < _lowest


def _tag_by_environment(pid: int) -> bytes | None:
    prefix = TAG + b"="
    for entry in _read(f"/proc/{pid}/environ").split(b"\0"):
        if entry.startswith(prefix):
            return entry[len(prefix) :]
    return None


def members(
    rows: dict[int, Row],
    life: Life,
    others: Iterable[Life],
    known: Mapping[int, float] = _NOBODY,
    tag: Callable[[int], bytes | None] = tag_of,
    lowered: Callable[[int], bool] = was_lowered,
) -> set[int]:
    """Pids of the command's processes among these.

    Args:
        rows: a snapshot.
        life: the command.
        others: the other commands, running or ended.
        known: pids seen as members before and when they were born: they stay so when their parent is
            gone, and another process that got the number does not.
        tag: reads a process's tag.
        lowered: whether a process took its mark off. Then it is spared for no other command.
    """
    others = list(others)
    sessions = {other.leader for other in others}
    if os.getpid() in rows:
        sessions.add(rows[os.getpid()].session)  # who is in ours has only just been started
    # A pod's own command has none: what it started is the pod's, whatever limits it has.
    has_marks = all(other.tag for other in others)
    # The number of an ended leader may be another's by now.
    foreign = {other.leader for other in others if other.ended is None}
    me = os.getpid()
    found = {pid for pid, born in known.items() if pid in rows and rows[pid].born == born}
    # A leader that was reaped and is there again is another process under its number.
    is_reused = life.ended is not None and life.leader in rows
    for row in rows.values():
        if is_reused or life.leader not in {row.pid, row.session}:
            continue
        # The number of a session of which nobody is left may come again, too.
        if life.ended is None or tag(row.pid) == life.tag:
            found.add(row.pid)
    strangers = [row for row in rows.values() if row.pid not in found and row.pid != me]
    for row in strangers:
        if row.pid in foreign or row.born < life.started - _SLACK_S:
            continue
        # Asked before the mark, which is set when it is no longer starting.
        is_orphan = row.parent == me and row.session not in sessions and not _is_starting(row.pid)
        mark = tag(row.pid)
        if mark == life.tag or (
            is_orphan
            and ((has_marks and lowered(row.pid)) or (mark is None and not _is_shared(row, others)))
        ):
            found.add(row.pid)
    return _closure(rows, found, foreign)


def _is_shared(row: Row, others: list[Life]) -> bool:
    """Whether another command, too, could have started the process."""
    return any(
        other.started - _SLACK_S <= row.born
        and (other.ended is None or row.born <= other.ended + _SLACK_S)
        for other in others
    )


def _closure(rows: dict[int, Row], found: set[int], foreign: set[int]) -> set[int]:
    """With all descendants, and with all that live in a session made by a member."""
    grown = True
    while grown:
        more = {
            row.pid
            for row in rows.values()
            if row.pid not in found
            and row.pid not in foreign
            and (row.parent in found or row.session in found)
        }
        grown = bool(more)
        found |= more
    return found


def make_tag(boot_id: str, number: int) -> str:
    """A tag that no other command of no other daemon on this machine has; `number`: 1 for the first.

    Each is below the last: who can only lower its mark cannot take that of an earlier command.
    """
    global _lowest  # noqa: PLW0603 - one daemon, one row of numbers
    tag = _tag(_boot(boot_id), _ones() - number)
    mark = mark_of(tag)
    _lowest = min(_lowest or mark, mark)
    return tag


def _boot(boot_id: str) -> int:
    return int(boot_id, 16) & _ones()


def _ones() -> int:
    return (1 << _BITS) - 1


def _tag(boot: int, number: int) -> str:
    return f"{boot:06x}.{number & _ones():x}"


def mark_of(tag: str) -> int:
    """The limit of file locks that says the same as the tag; 0: there can be none here."""
    boot, _, number = tag.partition(".")
    return _BASE + (int(boot, 16) << _BITS) + int(number, 16) if _BASE else 0


def base_of(hard: int) -> int:
    """Where our numbers begin, given the daemon's own hard limit; 0: there is no room.

    Within another daemon's command that is the mark of that command; ours are then far below.
    """
    bits = 64 if hard == resource.RLIM_INFINITY else hard.bit_length()
    return 1 << (bits - 2) if bits > 2 * _BITS + 2 else 0


_BASE = base_of(resource.getrlimit(LIMIT)[1])
_lowest = 0
"""The lowest mark of a command of ours; 0: there is none yet."""


def descendants(rows: dict[int, Row], pid: int, boot_id: str, spared: int = 0) -> set[int]:
    """All processes below this one, and all with a tag of this boot; with `spared` only the latter and
    what is below them, but for that process."""
    prefix = f"{_boot(boot_id):06x}.".encode()
    found = {
        row.pid
        for row in rows.values()
        if row.pid not in {pid, spared}
        and ((row.parent == pid and not spared) or (tag_of(row.pid) or b"").startswith(prefix))
    }
    return _closure(rows, found, {pid, spared}) - {pid, spared}
