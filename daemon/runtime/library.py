"""Which modules go along, and their byte code.

The daemon gets the part of the standard library that it imports and no more: half the size, and
nothing for an attacker to find. What is needed is learned by importing everything in the full
library, so it cannot be forgotten in a list; only what the library imports late is listed here.
"""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from daemon.runtime import recipe, shell
from daemon.runtime.shell import BuildError

INSIDE = recipe.HERE / "inside"

# Imported by CPython or by a library function at the moment of use, so no import shows it.
LATE_MODULES = (
    "copy",  # collections, weakref
    "encodings.aliases",
    "encodings.ascii",
    "encodings.idna",  # socket.getaddrinfo encodes each host name with it
    "encodings.latin_1",
    "encodings.utf_8",
    "gzip",  # tarfile, for compressed archives
    "heapq",  # collections.Counter
    "inspect",  # typing, when isinstance meets a protocol
    "linecache",  # with tokenize: the traceback of an error nobody caught
    "runpy",  # starts the directory given on the command line
    "stringprep",  # encodings.idna
    "textwrap",
    "tokenize",
    "traceback",
    "zlib",
)


@dataclass(frozen=True, slots=True)
class Names:
    """Names in import statements. Of ``from a import b`` only an import tells whether ``a.b`` is one."""

    modules: frozenset[str]
    possible: frozenset[str]


@dataclass(frozen=True, slots=True)
class Imports:
    """What importing a set of modules led to."""

    failed: dict[str, str]
    files: dict[str, Path]


def module_name(root: Path, file: Path) -> str:
    """``daemon.http1`` for ``<root>/daemon/http1.py``; packages go by their own name."""
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(node: ast.AST) -> bool:
    """Whether the node is ``if TYPE_CHECKING:``, whose body never runs."""
    if not isinstance(node, ast.If):
        return False
    test = node.test
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def walk_running(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that can run: all but the bodies under ``if TYPE_CHECKING``."""
    yield node
    children: list[ast.AST] = []
    if isinstance(node, ast.If) and is_type_checking(node):
        children = list(node.orelse)
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from walk_running(child)


def imported_names(source: str) -> Names:
    """The modules that a source imports anywhere, inside functions too."""
    modules: set[str] = set()
    possible: set[str] = set()
    for node in walk_running(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module)
            possible.update(f"{node.module}.{alias.name}" for alias in node.names)
    return Names(frozenset(modules), frozenset(possible))


def try_imports(python: Path, path: Path, modules: list[str]) -> Imports:
    """Import the modules in the given interpreter, with ``path`` first on its search path."""
    command: list[str | Path] = [python, "-I", "-S", INSIDE / "imports.py", path, *modules]
    # An empty environment: what the builder's shell has set must not make an import succeed.
    lines = shell.read(["/usr/bin/env", "-i", *command]).splitlines()
    rows = [line.split("\t", 2) for line in lines if line.startswith(("failed\t", "loaded\t"))]
    return Imports(
        failed={name: text for kind, name, text in rows if kind == "failed"},
        files={name: Path(text) for kind, name, text in rows if kind == "loaded"},
    )


def real_modules(built: Path, path: Path, names: Names) -> list[str]:
    """The names that are modules, as the full library knows them."""
    python = built / "bin" / "python3"
    failed = try_imports(python, path, sorted(names.modules | names.possible)).failed
    missing = {name: text for name, text in failed.items() if name in names.modules}
    if missing:
        raise BuildError(f"these imports fail even with the full library: {missing}")
    return sorted((names.modules | names.possible) - failed.keys())


def needed_files(built: Path, path: Path, modules: list[str]) -> list[Path]:
    """Files of the standard library that importing ``modules`` loads, relative to the library."""
    library = built / recipe.LIBRARY
    found = try_imports(built / "bin" / "python3", path, [*modules, *LATE_MODULES])
    files = (f for f in found.files.values() if f.is_relative_to(library))
    return sorted({file.relative_to(library) for file in files})


def library_files(built: Path) -> list[Path]:
    """All of the standard library, relative to its directory."""
    library = built / recipe.LIBRARY
    return sorted(file.relative_to(library) for file in library.rglob("*.py"))


def compile_tree(
    built: Path, source: Path, target: Path, files: list[Path], *, optimize: int
) -> None:
    """Byte code of ``files`` in ``target``, each in the place where its source would stand.

    There, and not in ``__pycache__``, Python accepts byte code without a source.
    """
    triples: list[tuple[str, str, str]] = []
    for file in files:
        compiled = target / file.with_suffix(".pyc")
        compiled.parent.mkdir(parents=True, exist_ok=True)
        triples.append((str(source / file), str(compiled), str(file)))
    request = json.dumps({"optimize": optimize, "files": triples})
    python = built / "bin" / "python3"
    # No columns: they serve to underline source text, which is not there, and cost memory.
    options = ["-I", "-S", "-B", "-X", "no_debug_ranges"]
    shell.read([python, *options, INSIDE / "compile.py"], stdin=request)
