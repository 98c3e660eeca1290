"""The directory that is delivered into pods: interpreter, needed library, daemon.

::

    bin/python3                 started as  <mount>/bin/python3 -I -S <mount>/app …
    lib/python3.13/             byte code of what the daemon imports
    app/__main__.pyc            the daemon
    app/daemon/  app/sandman/
    app/RUNTIME.json            what it was made of, for /v1/info
    licenses/                   and what is in all this, when the caller has a document of it

It works from wherever it is mounted or copied to: the interpreter finds its library from its own
path. Nothing in it is writable. Of the same interpreter and sources its bytes are the same.
"""

import os
import shutil
from pathlib import Path

from daemon.runtime import interpreter, library, recipe
from daemon.runtime.shell import BuildError

OWNER = 65532
MODE = 0o555
# Of the shared package only the contract that all programs speak; the client needs what a sandbox
# does not have.
SHARED_PACKAGE = "sandman"
SHARED_MODULES = (
    "__init__", "claims", "descent", "errors", "evidence", "fields", "handles", "names", "notation", "pack", "probes", "records", "sessions", "sparse",
    "tar", "terminal", "unpack", "version", "websocket", "wire",
)  # fmt: skip
DAEMON_PACKAGE = "daemon"
NOT_SHIPPED = ("runtime", "tests", "local")


def repository() -> Path:
    """The checkout that this package belongs to."""
    return recipe.HERE.parent.parent


def daemon_sources(root: Path) -> list[Path]:
    """The daemon's modules, relative to ``root``, without the build and without tests."""
    package = root / DAEMON_PACKAGE
    files = (file.relative_to(root) for file in package.rglob("*.py"))
    return sorted(file for file in files if file.parts[1] not in NOT_SHIPPED)


def shared_sources(root: Path) -> list[Path]:
    """The shared contract's modules, relative to ``root``."""
    files = [Path(SHARED_PACKAGE, f"{name}.py") for name in SHARED_MODULES]
    return [file for file in files if (root / file).exists()]


def compile_app(built: Path, root: Path, app: Path) -> list[str]:
    """The daemon and what it shares as byte code; return the names of its modules."""
    files = [*daemon_sources(root), *shared_sources(root)]
    if Path(DAEMON_PACKAGE, "__main__.py") not in files:
        raise BuildError(f"no {DAEMON_PACKAGE}/__main__.py below {root}")
    library.compile_tree(built, root, app, files, optimize=2)
    main = recipe.HERE / "app_main.py"
    library.compile_tree(built, main.parent, app, [Path(main.name)], optimize=2)
    (app / main.name).with_suffix(".pyc").rename(app / "__main__.pyc")
    return [library.module_name(root, root / file) for file in files]


def late_imports(root: Path) -> library.Names:
    """What the daemon's import statements name, wherever they stand."""
    found = [library.imported_names((root / f).read_text()) for f in daemon_sources(root)]
    return library.Names(
        frozenset().union(*(names.modules for names in found)),
        frozenset().union(*(names.possible for names in found)),
    )


def check(tree: Path, modules: list[str]) -> None:
    """Import every module with nothing but the tree: a missing one must fail here, not in a pod."""
    found = library.try_imports(tree / "bin" / "python3", tree / "app", modules)
    if found.failed:
        raise BuildError(f"imports that fail in the finished tree: {found.failed}")
    foreign = [str(file) for file in found.files.values() if not file.is_relative_to(tree)]
    strangers = [file for file in foreign if not file.startswith(str(library.INSIDE))]
    if strangers:
        raise BuildError(f"loaded from outside the tree: {strangers}")


def seal(tree: Path, epoch: int = 0) -> None:
    """Fix owner, modes and times, so that nobody can write and two builds do not differ."""
    for path in [tree, *tree.rglob("*")]:
        if os.geteuid() == 0:
            os.chown(path, OWNER, OWNER)
        path.chmod(MODE)
        os.utime(path, (epoch, epoch))


def copy_runtime(built: Path, tree: Path) -> None:
    """Interpreter, licenses and manifest, without the library."""
    (tree / "bin").mkdir(parents=True)
    shutil.copy(built / "bin" / "python3", tree / "bin" / "python3")
    (tree / recipe.LIBRARY / "lib-dynload").mkdir(parents=True)
    shutil.copytree(built / "licenses", tree / "licenses")
    (tree / "app").mkdir()
    shutil.copy(built / interpreter.MANIFEST, tree / "app" / interpreter.MANIFEST)


def compose(
    built: Path,
    out: Path,
    root: Path | None = None,
    *,
    document: Path | None = None,
    epoch: int = 0,
) -> Path:
    """Make the tree at ``out``, which appears only when it is complete and checked.

    Args:
        built: the interpreter.
        out: where the tree will be.
        root: the checkout whose daemon it is; this one by default.
        document: a file to be put beside the licenses.
        epoch: the time of all files in it, in seconds since 1970.
    """
    root = root or repository()
    partial = out.with_name(f".{out.name}.partial")
    remove(partial)
    copy_runtime(built, partial)
    if document is not None:
        shutil.copy(document, partial / "licenses")
    own = compile_app(built, root, partial / "app")
    late = library.real_modules(built, partial / "app", late_imports(root))
    modules = sorted({*own, *late})
    files = library.needed_files(built, partial / "app", modules)
    target = partial / recipe.LIBRARY
    library.compile_tree(built, built / recipe.LIBRARY, target, files, optimize=2)
    check(partial, [*modules, *library.LATE_MODULES])
    seal(partial, epoch)
    replace(partial, out)
    return out


def remove(tree: Path) -> None:
    """Delete a tree of ours, whose directories forbid it to all but root."""
    if not tree.exists():
        return
    for path in [tree, *tree.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(tree)


def replace(partial: Path, out: Path) -> None:
    """Put the finished tree in place of an older one, and of nothing else."""
    if out.exists() and any(out.iterdir()):
        if not (out / "app" / interpreter.MANIFEST).exists():
            raise BuildError(f"{out} holds something that is not a runtime: choose another place")
        remove(out)
    elif out.exists():
        out.rmdir()
    partial.rename(out)


def size_of(tree: Path) -> int:
    """Bytes in files."""
    return sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
