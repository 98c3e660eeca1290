"""In local mode a daemon changes its root, and then nothing more can be loaded: all that may be needed later was before."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
OURS = ("daemon", "sandman")
ELSEWHERE = {"_sandman"}
"""Of the runtime in pods alone; whoever wants it does without."""


def imports(path: Path) -> set[str]:
    """Modules that this file names, wherever; those for the type checker apart."""
    found: set[str] = set()
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{one.name}" for one in node.names}
            found |= {name for name in names if is_module(name)} or {node.module}
    return found - ELSEWHERE


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def needed() -> set[str]:
    """All that the daemon may come to import, through what it imports of ours."""
    todo = {f"daemon.{path.stem}" for path in (ROOT / "daemon").glob("[!_]*.py")}
    known: set[str] = set()
    while todo:
        name = todo.pop()
        known.add(name)
        if name.split(".")[0] in OURS:
            path = ROOT.joinpath(*name.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            todo |= imports(path) - known
    return known


def test_what_the_daemon_imports_at_any_time_was_loaded_before_it_changed_its_root():
    code = (
        "import json, sys; from daemon.local import confine; confine.load_all();"
        "print(json.dumps(sorted(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    loaded = set(json.loads(told.stdout))
    wanted = needed()
    assert {"daemon.archives", "sandman.unpack", "zlib"} <= wanted
    missing = {name for name in wanted - loaded if importlib.util.find_spec(name) is not None}
    assert missing == set()
