"""What callers can name: every type that the client shows them is there, at the top."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys

import pytest

import sandman
from sandman import client, errors, problems, sync
from tests.unit.daemon.harness import ROOT

INTERNAL = {"Answer"}
"""Of `ExecStream.of`, by which the client itself makes one."""
SPECIAL = {"__aenter__", "__enter__", "__aiter__", "__iter__", "__anext__", "__next__"}


def imports_of(tree: ast.Module) -> set[str]:
    """Names that a module takes from ours, and those that it makes itself."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sandman"):
            found |= {alias.asname or alias.name for alias in node.names}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def annotations_of(cls: ast.ClassDef) -> list[ast.expr | None]:
    """What the class's public methods take and give, and what its fields are."""
    found: list[ast.expr | None] = []
    for node in cls.body:
        if isinstance(node, ast.AnnAssign):
            found.append(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            is_made_by_callers = node.name == "__init__" and cls.name == "Client"
            if node.name.startswith("_") and node.name not in SPECIAL and not is_made_by_callers:
                continue
            args = node.args
            every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
            found += [arg.annotation for arg in every if arg is not None]
            found.append(node.returns)
    return found


def shown_by(module: object) -> set[str]:
    """Our own types in the signatures of a client module's classes."""
    classes = [vars(module)[name] for name in vars(module)["__all__"]]
    found: set[str] = set()
    for cls in classes:
        if not isinstance(cls, type):
            continue
        tree = ast.parse(inspect.getsource(importlib.import_module(cls.__module__)))
        ours = imports_of(tree)
        [node] = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == cls.__name__]
        for annotation in annotations_of(node):
            parts = ast.walk(annotation) if annotation is not None else ()
            found |= {part.id for part in parts if isinstance(part, ast.Name) and part.id in ours}
    return found


@pytest.mark.parametrize("module", [client, sync])
def test_every_type_in_a_signature_can_be_imported(module: object) -> None:
    shown = shown_by(module)
    assert {"ExecOptions", "TerminalSpec", "Data", "Remote", "FileStream"} <= shown
    exported = {*vars(module)["__all__"], *vars(errors)}
    assert shown - INTERNAL <= exported


def test_the_top_has_the_async_client_with_its_types_and_the_errors() -> None:
    assert len(set(sandman.__all__)) == len(sandman.__all__)
    for name in client.__all__:
        assert getattr(sandman, name) is getattr(client, name)
    for cls in problems.by_reason().values():
        if cls.__module__ == errors.__name__:
            assert getattr(sandman, cls.__name__) is cls
    known = {*client.__all__, *vars(errors), "SyncClient", "__version__"}
    assert set(sandman.__all__) <= known
    assert sandman.SyncClient is sync.Client
    with pytest.raises(AttributeError, match="Nothing"):
        sandman.Nothing  # noqa: B018
    namespace: dict[str, object] = {}
    exec("from sandman import *", namespace)
    assert set(sandman.__all__) <= namespace.keys()


def test_an_error_is_had_without_the_client() -> None:
    script = "import sys, sandman; sandman.PortClosedError; print(*sorted(sys.modules))"
    argv = [sys.executable, "-S", "-c", script]
    loaded = subprocess.run(
        argv, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()
    assert "sandman.errors" in loaded
    assert not {"httpx", "anyio", "sandman.client"} & set(loaded)
