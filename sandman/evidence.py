"""What a daemon tells its gateway for a certificate, and how that is read: it may be anything, the sandbox is hostile.

Standard library only: the daemon ships this file.
"""

from __future__ import annotations

from sandman.fields import Fields
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_COMMANDS = 64
"""Commands of one certificate: an evaluation has a handful."""
PRESSURES = ("cpu", "memory", "io")
STATES = ("ended", "running", "lost", "unknown")
"""Of a command: `lost` ran, and how it ended can never be told; of an `unknown` one nothing is known (any more)."""
_MOST = 2**63 - 1
_MOST_TEXT = 256
_HEX = set("0123456789abcdef")

Told = dict[str, object]


def answer_from_json(
    body: Mapping[str, object], exec_ids: tuple[str, ...]
) -> tuple[Told, list[Told]]:
    """The inside of the sandbox, and each command that was named, with nothing but what is known by name.

    Raises:
        BadRequestError: it makes no sense; the error names the member at fault.
    """
    reader = Fields(body)
    inside = reader.inner("inside")
    commands = reader.raw("commands")
    if inside is None or not isinstance(commands, list) or len(commands) != len(exec_ids):
        raise reader.fail("commands", "what was asked for")
    pairs = zip(commands, exec_ids, strict=True)
    return _inside(inside), [_command(one, exec_id) for one, exec_id in pairs]


def _inside(reader: Fields) -> Told:
    cpu = reader.inner("cpu") or Fields({})
    memory = reader.inner("memory") or Fields({})
    return {
        "daemon_version": _text(reader, "daemon_version"),
        "boot_id": _text(reader, "boot_id"),
        "uptime_s": reader.amount("uptime_s"),
        "cgroup": reader.count_or_none("cgroup", 2),
        "cpu": {
            "periods": cpu.count_or_none("periods", _MOST),
            "throttled_periods": cpu.count_or_none("throttled_periods", _MOST),
            "throttled_s": cpu.amount("throttled_s"),
        },
        "memory": {
            "peak_bytes": memory.count_or_none("peak_bytes", _MOST),
            "oom_kills": memory.count_or_none("oom_kills", _MOST),
        },
        "stalled_s": _stalled(reader),
        "visible_cpus": reader.count_or_none("visible_cpus", _MOST),
        "time_zone": _text(reader, "time_zone"),
        "locale": _text(reader, "locale"),
        "hostname": _text(reader, "hostname"),
        "clock": reader.amount("clock"),
    }


def _command(value: object, exec_id: str) -> Told:
    reader = Fields(value if isinstance(value, dict) else {})
    state = reader.text("state")
    if reader.text("exec_id") != exec_id or state not in STATES:
        raise reader.fail("exec_id", exec_id)
    if state != "ended":
        return {"exec_id": exec_id, "state": state, "detail": _text(reader, "detail")}
    return {
        "exec_id": exec_id,
        "state": state,
        "started_at": _text(reader, "started_at"),
        "exit_code": reader.count("exit_code", 0, 255),
        "signal": reader.count_or_none("signal", 127),
        "timed_out": reader.flag("timed_out"),
        "abandoned": reader.flag("abandoned"),
        "start_error": _text(reader, "start_error"),
        "wall_s": reader.amount("wall_s"),
        "cpu_s": reader.amount("cpu_s"),
        "peak_memory_bytes": reader.count_or_none("peak_memory_bytes", _MOST),
        "throttled_s": reader.amount("throttled_s"),
        "stalled_s": _stalled(reader),
        "oom_killed": reader.flag("oom_killed") if reader.has("oom_killed") else None,
        "stdout_bytes": reader.count("stdout_bytes", 0, _MOST),
        "stderr_bytes": reader.count("stderr_bytes", 0, _MOST),
        "stdout_sha256": _digest(reader, "stdout_sha256"),
        "stderr_sha256": _digest(reader, "stderr_sha256"),
    }


def _stalled(reader: Fields) -> Told:
    inner = reader.inner("stalled_s") or Fields({})
    return {name: inner.amount(name) for name in PRESSURES}


def _text(reader: Fields, name: str) -> str | None:
    value = reader.text(name)
    return None if value is None else value[:_MOST_TEXT]


def _digest(reader: Fields, name: str) -> str:
    value = reader.text(name) or ""
    if len(value) != 64 or not _HEX.issuperset(value):
        raise reader.fail(name, "64 digits of a SHA-256")
    return value
