"""A Python to bring along: the same static interpreter with the full standard library, as a tar.

Images under test often hold no Python. The tar is unpacked into a sandbox (``python/bin/python3``)
and runs test suites there. It is for work inside a sandbox, hence writable and with assertions and
docstrings kept: code under test may depend on them.
"""

import io
import tarfile
import tempfile
from pathlib import Path

from daemon.runtime import interpreter, library, recipe

TOP = "python"


def normal(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """No trace of who packed it and when; directories stay writable, or unpacking would fail."""
    executable = member.isdir() or "/bin/" in member.name
    member.mode = 0o755 if executable else 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mtime = 0
    return member


def directory(name: str) -> tarfile.TarInfo:
    """A directory's entry."""
    member = tarfile.TarInfo(name)
    member.type = tarfile.DIRTYPE
    return normal(member)


def pack(built: Path, compiled: Path, out: Path) -> None:
    """Write the tar: interpreter, byte code, the empty directory that CPython looks for."""
    with tarfile.open(out, "w") as tar:
        for name in ("", "/bin", "/lib", f"/{recipe.LIBRARY}", f"/{recipe.LIBRARY}/lib-dynload"):
            tar.addfile(directory(f"{TOP}{name}"))
        tar.add(built / "bin" / "python3", f"{TOP}/bin/python3", filter=normal)
        for file in sorted(compiled.rglob("*")):
            name = f"{TOP}/{recipe.LIBRARY}/{file.relative_to(compiled)}"
            tar.add(file, name, recursive=False, filter=normal)
        manifest = (built / interpreter.MANIFEST).read_bytes()
        member = normal(tarfile.TarInfo(f"{TOP}/{interpreter.MANIFEST}"))
        member.size = len(manifest)
        tar.addfile(member, io.BytesIO(manifest))
        tar.add(built / "licenses", f"{TOP}/licenses", filter=normal)


def write(built: Path, out: Path) -> Path:
    """Compile the library and pack it; ``out`` appears only when it is complete."""
    partial = out.with_name(f".{out.name}.partial")
    with tempfile.TemporaryDirectory() as scratch:
        compiled = Path(scratch)
        files = library.library_files(built)
        library.compile_tree(built, built / recipe.LIBRARY, compiled, files, optimize=0)
        pack(built, compiled, partial)
    partial.replace(out)
    return out
