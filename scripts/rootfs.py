"""Runs in the build of scripts/Containerfile: copies what a Python program needs, and nothing else.

    python3 rootfs.py VENV WHEELS TARGET

TARGET becomes a root file system of the interpreter that runs this, its standard library, the packages of VENV, and
the shared libraries that these are linked to. No shell, no package manager, no other program comes along: who breaks
into a service finds an interpreter and no tools. What Debian packages the files are of is kept below
var/lib/dpkg/status.d, where scanners look for it, and the wheels' SHA-256 beside the packages; scripts/sbom.py reads
both. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

USER_ID = 65532
STATUS = "var/lib/dpkg/status.d"
WHEELS_LIST = "wheels.sha256"
# No service uses them, and some would bring libraries along.
LEFT_OUT = (
    *("__pycache__", "config-*", "dist-packages", "site-packages", "ensurepip", "idlelib", "lib2to3", "pydoc_data"),
    *("test", "tests", "tkinter", "turtle*", "venv", "sitecustomize.py", "*.a", "_sysconfigdata__darwin*"),
    *("_ctypes_test.*", "_curses*", "_dbm*", "_gdbm*", "_sqlite3*", "_test*", "_tkinter*", "_xx*", "nis.*", "readline.*", "sqlite3", "xx*"),
)  # fmt: skip
# What glibc loads by name at run time, and no program is linked to: the end of a thread, and names of hosts and users
# where glibc is older than 2.34.
LOADED_LATE = ("libgcc_s.so.1", "libnss_dns.so.2", "libnss_files.so.2")
_USERS = f"root:x:0:0:root:/:/none\nsandman:x:{USER_ID}:{USER_ID}:sandman:/:/none\n"
_GROUPS = f"root:x:0:\nsandman:x:{USER_ID}:\n"


def main(venv: Path, wheels: Path, target: Path) -> None:
    """Make the root file system."""
    target.mkdir(parents=True)
    _link_directories(target)
    library = Path(sysconfig.get_path("stdlib"))
    interpreter = Path(sys.executable).resolve()
    _copy(interpreter, target)
    ignore = shutil.ignore_patterns(*LEFT_OUT)
    shutil.copytree(
        library,
        _place(library, target),
        ignore=ignore,
        symlinks=False,
        ignore_dangling_symlinks=True,
    )
    _move_packages(venv, interpreter, wheels, target)
    shared = _shared_libraries(target, interpreter, _place(venv, target))
    for file in shared:
        _copy(file, target)
    _forbid_execution(target, interpreter)
    _write_settings(target)
    _write_packages([interpreter, *library.glob("*.py"), *library.glob("*/*.so"), *shared], target)
    # Byte code is made now, for the root file system is read-only later, and checked against nothing: layers lose the
    # times that it is checked against usually.
    compiled = [str(_place(library, target)), str(_place(venv, target))]
    options = ["--invalidation-mode", "unchecked-hash", "-s", str(target), "-p", "/", "-j", "0"]
    _run(sys.executable, "-m", "compileall", "-q", *options, *compiled)


def _place(path: Path, target: Path) -> Path:
    return target / path.relative_to("/")


def _link_directories(target: Path) -> None:
    """/lib and the like are links on a merged /usr, and programs name their loader by them."""
    for name in ("bin", "lib", "lib32", "lib64"):
        link = Path("/", name)
        if link.is_symlink():
            (target / link.readlink()).mkdir(parents=True, exist_ok=True)
            (target / name).symlink_to(link.readlink())
    # Not there by name: nobody looks for programs here.
    (target / "bin").unlink(missing_ok=True)


def _copy(file: Path, target: Path) -> None:
    """One file under the name that it is looked for by, whatever it is a link to."""
    place = _place(file, target)
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.exists():
        shutil.copy2(file.resolve(), place)


def _move_packages(venv: Path, interpreter: Path, wheels: Path, target: Path) -> None:
    """The packages; of the programs of a virtual environment Python's name alone."""
    place = _place(venv, target)
    # What came from where was said in the lock; pip leaves the address in here when it knows one.
    shutil.copytree(
        venv / "lib", place / "lib", ignore=shutil.ignore_patterns("__pycache__", "direct_url.json")
    )
    shutil.copy(venv / "pyvenv.cfg", place)
    (place / "bin").mkdir()
    (place / "bin" / "python").symlink_to(interpreter)
    lines = [f"{_sha256(wheel)}  {wheel.name}\n" for wheel in sorted(wheels.glob("*.whl"))]
    (place / WHEELS_LIST).write_text("".join(lines))


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _shared_libraries(target: Path, interpreter: Path, packages: Path) -> list[Path]:
    """All that the interpreter and the extension modules are linked to, and what is loaded late; by the loader's names."""
    modules = [file for file in target.rglob("*.so*") if file.is_file()]
    found = {path for file in [interpreter, *modules] for path in _linked(file, packages)}
    directories = {path.parent for path in found}
    found |= {
        place / name for name in LOADED_LATE for place in directories if (place / name).exists()
    }
    # A package's own libraries lie beside it.
    return sorted(path for path in found if not path.is_relative_to(target))


def _linked(file: Path, packages: Path) -> Iterator[Path]:
    said = _run("ldd", str(file))
    if "not found" in said and file.is_relative_to(packages):
        raise SystemExit(f"{file} needs a library that the base has not:\n{said}")
    if "not found" in said:
        file.unlink()  # A part of the standard library that does not work in the base either.
        return
    for found in re.findall(r"(?:=> |^\s*)(/\S+) \(0x", said, re.MULTILINE):
        yield Path(found)


def _forbid_execution(target: Path, interpreter: Path) -> None:
    """Scripts of the library are no programs here: the interpreter is, and the loader that it names."""
    for file in target.rglob("*"):
        if file.is_file() and not file.is_symlink() and not file.name.startswith("ld-"):
            file.chmod(0o755 if file == _place(interpreter, target) else 0o644)


def _write_settings(target: Path) -> None:
    etc = target / "etc"
    etc.mkdir(exist_ok=True)
    (etc / "passwd").write_text(_USERS)
    (etc / "group").write_text(_GROUPS)
    (etc / "nsswitch.conf").write_text("hosts: files dns\n")
    for name in ("/etc/ld.so.cache", "/etc/os-release"):
        if Path(name).exists():
            shutil.copy(Path(name).resolve(), _place(Path(name), target))
    (target / "tmp").mkdir()
    (target / "tmp").chmod(0o1777)


def _write_packages(files: Iterable[Path], target: Path) -> None:
    """What dpkg knows of the files' packages; a base without dpkg is described by its digest alone."""
    status = target / STATUS
    status.mkdir(parents=True)
    if shutil.which("dpkg-query") is None:
        return
    for package in sorted(set(_owners(files))):
        (status / package.replace(":", "-")).write_text(_run("dpkg-query", "--status", package))


def _owners(files: Iterable[Path]) -> Iterator[str]:
    """The packages that files are of, which dpkg may know by the name before /usr was merged."""
    names = {str(path) for file in files for path in (file, file.resolve())}
    names |= {name.removeprefix("/usr") for name in names}
    # It ends with 1 when it does not know one of them, as always here.
    command = ["dpkg-query", "--search", *sorted(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - paths as words
    for line in done.stdout.splitlines():
        if not line.startswith("diversion"):
            yield from line.rsplit(": ", 1)[0].split(", ")


def _run(*command: str) -> str:
    environment = os.environ | {"LC_ALL": "C"}
    done = subprocess.run(  # noqa: S603 - words of this file, and paths
        command, capture_output=True, text=True, check=False, env=environment
    )
    # ldd says of a static program that it is none of its business, with a code of its own.
    if done.returncode != 0 and "not a dynamic executable" not in done.stderr:
        raise SystemExit(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))
