"""Point 61 on cgroup v2, which counts in other files than v1, each container seeing its own group as the root."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest

from daemon.runtime import interpreter, tree
from sandman import control, evidence, wire
from tests.unified import inside, machine

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(1800)  # a cold build of the interpreter
BOTH = pytest.mark.parametrize("group", ["node", "pod"])
_RESULT = re.compile(r"RESULT (\S+) (\S+) (.*?)\r?$", re.MULTILINE)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """What came of each command in each group."""
    if lacking := machine.missing():
        pytest.skip(lacking)
    scratch: Path = tmp_path_factory.mktemp("machine")
    runtime = tree.compose(interpreter.build(), scratch / "tree")
    text = machine.boot(machine.tools(), machine.root(runtime, scratch))
    found = {(group, label): answer for group, label, answer in _RESULT.findall(text)}
    assert len(found) == 3 * (len(inside.COMMANDS) + 2), text[-3000:]
    return found


def result(said: dict[tuple[str, str], str], group: str, label: str) -> wire.ExecResult:
    return wire.ExecResult.from_json(json.loads(said[group, label]))


@BOTH
def test_61_a_kill_for_want_of_memory_is_told_from_any_other(
    said: dict[tuple[str, str], str], group: str
) -> None:
    greedy = result(said, group, "greedy")
    assert (greedy.exit_code, greedy.signal, greedy.oom_killed) == (137, 9, True)
    assert greedy.peak_memory_bytes is not None
    assert 32 << 20 < greedy.peak_memory_bytes <= inside.MEMORY_BYTES
    child = result(said, group, "greedy-child")
    assert (child.exit_code, child.signal, child.oom_killed) == (5, None, True)
    killed = result(said, group, "killed")
    assert (killed.exit_code, killed.signal, killed.oom_killed) == (137, 9, False)
    for label in ("true", "after"):
        assert (result(said, group, label).exit_code, result(said, group, label).oom_killed) == (0, False)  # fmt: skip
    assert said[group, "daemon"] == "-1"  # it lives


@BOTH
def test_61_throttled_time_is_what_the_limit_took(
    said: dict[tuple[str, str], str], group: str
) -> None:
    """A fifth of a processor for what would use all of it."""
    busy = result(said, group, "busy")
    assert busy.exit_code == 0
    assert busy.throttled_s is not None
    assert busy.cpu_s is not None
    assert 1.0 < busy.throttled_s < busy.wall_s
    assert 0 < busy.cpu_s < busy.wall_s / 2


@BOTH
def test_a_certificate_has_the_pressure_of_the_sandboxs_own_group(
    said: dict[tuple[str, str], str], group: str
) -> None:
    told = json.loads(said[group, "evidence"])
    whole, [busy] = evidence.answer_from_json(told, ("busy",))
    assert whole["cgroup"] == 2
    assert whole["memory"]["oom_kills"] == 2  # type: ignore[index]
    # What the limit takes is time in which nothing of it ran although it could have.
    stalled = busy["stalled_s"]
    assert isinstance(stalled, dict)
    assert stalled["cpu"] > result(said, group, "busy").wall_s * 0.02
    assert stalled["memory"] is not None
    assert stalled["io"] is not None
    reasons = control.judge({"commands": [busy]})
    assert {"throttled", "cpu"} <= {one.code for one in reasons}
    assert control.unmeasured({"commands": [busy]}) == []


def test_61_where_the_kernel_kills_a_container_whole_there_is_no_answer(
    said: dict[tuple[str, str], str],
) -> None:
    """As kubelets have it unless told otherwise: then the gateway tells `oom`."""
    assert result(said, "whole", "killed").oom_killed is False
    assert said["whole", "greedy"] == ""
    assert os.WTERMSIG(int(said["whole", "daemon"])) == 9
