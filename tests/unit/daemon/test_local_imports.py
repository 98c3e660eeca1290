"""From the root of an image this Python's files are not seen: what is imported later must be there already."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ELSEWHERE = {"_sandman", "importlib", "pkgutil"}
"""The runtime's own module, which local mode does without; and what loads the others."""
LOADED = """
import sys
from daemon.local import confine
import daemon.serve
confine.load_all()
print(*(name for name in sys.argv[1:] if name not in sys.modules))
"""


def later(file: Path) -> set[str]:
    """Modules that its functions import."""
    tree = ast.parse(file.read_text("utf-8"))
    found: set[str] = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Import):
                    found |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    found |= {node.module or ""}
    return found


def contract() -> list[Path]:
    """What ships with the daemon."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (modules,) = [
        one["source_modules"] for one in contracts if one["name"].startswith("The contract ships")
    ]
    return [ROOT / f"{name.replace('.', '/')}.py" for name in modules]


def test_nothing_is_left_to_be_imported_in_a_sandbox_of_local_mode() -> None:
    files = [*(ROOT / "daemon").glob("*.py"), *contract()]
    wanted = set[str]().union(*(later(file) for file in files)) - ELSEWHERE
    assert {"sandman.unpack", "base64"} <= wanted
    command = [sys.executable, "-c", LOADED, *sorted(wanted)]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert told.split() == []
