"""What adapters promise, on real pods: the example of each, and a pod that is deleted under a framework's hands.

The whole of their suites runs against local mode (tests/adapters).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandman import names
from tests import venvs
from tests.adapters import frameworks
from tests.conformance import inspect_run, swerex_run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.deployed import Deployed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # it may wait for virtual environments
HERE = frameworks.HERE
RUNS = {
    "inspect_ai": (inspect_run.LOCK, "documentation or deleted", 2),
    "minisweagent": (HERE / "minisweagent.lock", "real_task", 1),
    "swerex": (swerex_run.LOCK, "example or swe_agent", 2),
    "harbor": (HERE / "harbor.lock", "oracle", 1),
    "nemo_gym": (HERE / "nemo_gym.lock", "example or timeout", 2),
}
"""What of each suite, and how many tests that is."""


def test_the_examples_of_all_frameworks(sandman: Deployed, tmp_path: Path) -> None:
    site = frameworks.build_wheel(tmp_path / "site")
    bed = sandman.bed
    delete = f"{bed.bin / 'kubectl'} --kubeconfig {bed.kubeconfig} -n {names.SANDBOX_NAMESPACE} delete pod --wait=false"
    environ = {
        **sandman.installation.environment(),
        "ADAPTERS_IMAGE": sandman.image("debian"),
        "ADAPTERS_DELETE_POD": delete,
        **frameworks.materials(),
    }
    runs = {}
    for name, (lock, select, _) in RUNS.items():
        base = venvs.newer() if name in frameworks.NEWER else frameworks.OWN
        framework = frameworks.Framework(
            lock, f"{name}_suite", (), base, is_async=name in frameworks.ASYNC
        )
        (tmp_path / name).mkdir()
        runs[name] = frameworks.Run(framework, site, tmp_path / name, environ, select)
    try:
        verdicts = {name: run.verdict() for name, run in runs.items()}
    finally:
        for run in runs.values():
            run.close()
    failures = {name: one.failures() for name, one in verdicts.items() if one.failures()}
    assert not failures, "\n".join(words for one in failures.values() for words in one.values())
    assert {name: len(one.tests) for name, one in verdicts.items()} == {
        name: count for name, (_, _, count) in RUNS.items()
    }
