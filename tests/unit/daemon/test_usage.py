"""The cgroup's counters and the daemon's own peak, from files of the test's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from daemon import (
    kernel,
    outcome,
    usage,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_counters_of_both_kinds(tmp_path: Path) -> None:
    def read() -> usage.Counters:
        return usage.Meter(str(tmp_path), str(tmp_path / "own")).read()

    assert read() == usage.Counters(None, None)
    for name in ("memory", "cpu"):
        (tmp_path / name / "pod").mkdir(parents=True)
    (tmp_path / "memory/memory.oom_control").write_text("oom_kill_disable 0\noom_kill 3\n")
    (tmp_path / "cpu/cpu.stat").write_text("nr_periods 0\nthrottled_time 2500000000\n")
    assert read() == usage.Counters(3, 2.5)
    # A whole tree is mounted, and the place in it is known.
    (tmp_path / "own").write_text("9:memory:/pod\n2:cpu:/gone\n1:pids:/../..\n0::/\nodd\n")
    (tmp_path / "memory/pod/memory.oom_control").write_text("oom_kill 7\n")
    assert read() == usage.Counters(7, 2.5)
    (tmp_path / "memory.events").write_text("low 0\noom 9\noom_kill 4\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nthrottled_usec 1500000\n")
    meter = usage.Meter(str(tmp_path), "/no/file")
    assert meter.read() == usage.Counters(4, 1.5)
    (tmp_path / "memory.events").write_text("oom_kill 5\n")
    assert meter.read().oom_kills == 5
    assert outcome.difference(1.5, 1.0) == 0.5
    assert outcome.difference(None, 1.0) is None
    assert outcome.is_greater(5, 4) is True
    assert outcome.is_greater(4, 4) is False
    assert outcome.is_greater(4, None) is None


def test_counters_that_vanish(tmp_path: Path) -> None:
    (tmp_path / "memory.events").mkdir()
    (tmp_path / "cpu.stat").mkdir()
    assert usage.Meter(str(tmp_path)).read() == usage.Counters(None, None)


def test_own_peak_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "STATUS", "/no/status")
    assert not usage.Meter().is_over_own_peak(1)
    assert usage.Meter().is_over_own_peak(2**40)


def test_a_peak_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def peak_kib() -> int:
        return usage._own_peak_kib()

    monkeypatch.setattr(kernel, "_clear_refs", None)
    assert kernel.clear_refs() == -1
    large = bytearray(64 * 2**20)
    large[:: os.sysconf("SC_PAGESIZE")] = b"x" * (len(large) // os.sysconf("SC_PAGESIZE"))
    before = peak_kib()
    del large
    kernel.harden()
    # As the start path in C does.
    os.write(kernel.clear_refs(), b"5")
    assert peak_kib() < before - 50 * 1024
    os.close(kernel.clear_refs())
