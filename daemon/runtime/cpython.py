"""The long part of the compile: CPython without anything of ours in it, in the cache.

It takes minutes, since CPython is compiled twice. ``interpreter`` links our own modules to it, which
takes seconds. The result::

    link/*.a                    what the interpreter is linked from
    link/include/               headers, for our own modules
    lib/python3.13/             sources, without what cannot work here
    lib/python3.13/lib-dynload/ empty: CPython looks for it to find the library
    licenses/                   the terms of what is linked in
    CPYTHON.json                what it was made of
    build.log
"""

import fcntl
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from daemon.runtime import recipe, shell, sources
from daemon.runtime.shell import BuildError
from daemon.runtime.sources import PrivateApt, Unpacked

PARTS = "CPYTHON.json"
LOG = "build.log"
LINK = "link"
HEADERS = "link/include"
# Stands for the directory of the build wherever its name would end up in the result.
ANYWHERE = "/usr/src/sandman"


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where one build happens and with which compiler."""

    root: Path
    log: Path
    compiler: Path
    triplet: str

    @property
    def dependencies(self) -> Path:
        """Headers and archives that we built ourselves."""
        return self.root / "dependencies"

    def run(self, command: shell.Command, cwd: Path, env: dict[str, str] | None = None) -> None:
        """Run a step of the build, its output into the log."""
        shell.run(command, self.log, cwd=cwd, env=env)


def missing_packages(tools: Mapping[str, str]) -> set[str]:
    """The packages of those programs that are not there."""
    return {package for tool, package in tools.items() if shutil.which(tool) is None}


def install(packages: set[str]) -> None:
    """Install what is missing, if anything is: that takes root and a while."""
    if not packages:
        return
    shell.announce(f"installing {' '.join(sorted(packages))}")
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    shell.read([*apt, "update"])
    shell.read([*apt, "install", "--yes", "--no-install-recommends", *sorted(packages)])


def install_compiler() -> None:
    """Everything that the compile needs of the machine."""
    needed = missing_packages(recipe.TOOLS)
    needed |= {package for header, package in recipe.HEADERS.items() if not Path(header).exists()}
    if not sources.KEYRING.exists():
        needed.add("debian-archive-keyring")
    install(needed)


def open_workshop(root: Path) -> Workshop:
    """Prepare a compiler for static musl programs that may also include the kernel's headers."""
    triplet = f"{platform.machine()}-linux-musl"
    headers = root / "kernel-headers"
    headers.mkdir(parents=True)
    system = Path("/usr/include")
    for name in ("linux", "asm-generic"):
        (headers / name).symlink_to(system / name)
    (headers / "asm").symlink_to(system / f"{platform.machine()}-linux-gnu" / "asm")
    # CPython's configure takes the profiling flags from the name: it has to contain "gcc".
    compiler = root / "static-musl-gcc"
    compiler.write_text(
        "#!/bin/sh\n"
        # Debian's gcc answers for glibc, and CPython's configure refuses the contradiction.
        f'[ "$1" = --print-multiarch ] && echo {triplet} && exit 0\n'
        f'exec musl-gcc -idirafter {headers} -ffile-prefix-map={root}={ANYWHERE} "$@"\n'
    )
    compiler.chmod(0o755)
    return Workshop(root, root / LOG, compiler, triplet)


def build_zlib(shop: Workshop, source: Path) -> None:
    """A static zlib, headers and archive, into the dependencies."""
    (source / "configure").chmod(0o755)
    env = {"CC": str(shop.compiler), "CFLAGS": recipe.COMPILER_FLAGS}
    shop.run(["./configure", "--static"], source, env)
    shop.run(["make", f"-j{os.cpu_count()}", "libz.a"], source)
    shop.dependencies.mkdir()
    for name in ("libz.a", "zlib.h", "zconf.h"):
        shutil.copy(source / name, shop.dependencies)


def configure(shop: Workshop, source: Path) -> None:
    """Settle what is built. Our header is added afterwards: it confuses configure's own questions."""
    linking = " ".join(recipe.LINKING)
    settings = [
        f"CC={shop.compiler}",
        f"CFLAGS={recipe.COMPILER_FLAGS}",
        f"LDFLAGS={linking}",
        # Debian's patch makes the interpreter's own link ignore LDFLAGS and read this one.
        f"LDFLAGS_NODIST={linking}",
        f"ZLIB_CFLAGS=-I{shop.dependencies}",
        f"ZLIB_LIBS=-L{shop.dependencies} -lz",
    ]
    shop.run(["./configure", *settings, *recipe.CONFIGURE], source)
    if "PGO_PROF_USE_FLAG=-fprofile-use" not in (source / "Makefile").read_text():
        raise BuildError("configure did not recognise the compiler: it would not use the profile")
    with (source / "pyconfig.h").open("a") as file:
        file.write((recipe.NATIVE / "compat.h").read_text())


def build_python(shop: Workshop, source: Path, epoch: str) -> None:
    """Compile CPython twice: to measure, then for good."""
    configure(shop, source)
    # The date in sys.version is then the source's and not that of this build.
    env = {"SOURCE_DATE_EPOCH": epoch}
    task = f"PROFILE_TASK=-I -S {recipe.TRAINING}"
    shop.run(["make", f"-j{os.cpu_count()}", "profile-opt", task], source, env)


def collect_parts(shop: Workshop, source: Path, into: Path) -> None:
    """Take what our own modules are compiled and linked with."""
    (into / LINK).mkdir(parents=True)
    for archive in [*source.rglob("*.a"), *shop.dependencies.glob("*.a")]:
        # CPython's archive holds its whole directory's objects; those of its parts lie beside it.
        if not archive.is_symlink():
            shutil.copy(archive, into / LINK)
    shutil.copytree(source / "Include", into / HEADERS)
    shutil.copy(source / "pyconfig.h", into / HEADERS)


def collect_library(shop: Workshop, source: Path, into: Path) -> None:
    """Take the library as a program needs it; ``make install`` brings five times that."""
    library = into / recipe.LIBRARY
    ignore = shutil.ignore_patterns("__pycache__", *recipe.UNUSABLE_LIBRARY)
    shutil.copytree(source / "Lib", library, ignore=ignore)
    (library / "lib-dynload").mkdir()
    built = source / (source / "pybuilddir.txt").read_text().strip()
    for file in built.glob("_sysconfigdata*.py"):
        text = file.read_text().replace(str(shop.root), ANYWHERE)
        (library / file.name).write_text(text)


def copy_licenses(into: Path, unpacked: list[Unpacked]) -> None:
    """The terms under which the linked parts may be passed on."""
    licenses = into / "licenses"
    licenses.mkdir()
    for source in unpacked:
        shutil.copy(source.directory / "debian" / "copyright", licenses / source.package)
    shutil.copy("/usr/share/doc/musl-dev/copyright", licenses / "musl")


def describe(shop: Workshop, source: Path, unpacked: list[Unpacked]) -> dict[str, object]:
    """Enough to tell which security fixes a running daemon has."""
    musl = shell.read(["dpkg-query", "--show", "--showformat", "${Version}", "musl-dev"])
    program = "import sys; print(sys.version.split()[0])"
    version = shell.read([source / "python", "-I", "-S", "-c", program])
    return {
        "python": version.strip(),
        "target": shop.triplet,
        "sources": [one.record() for one in unpacked],
        "musl": musl.strip(),
        "compiler": shell.read([shop.compiler, "--version"]).splitlines()[0],
    }


def compile_into(root: Path) -> Path:
    """Do the whole build below ``root``; return the finished directory."""
    shop = open_workshop(root)
    apt = PrivateApt(root / "apt", sources.machine_mirrors(), shop.log)
    shell.announce("fetching Debian's sources")
    apt.update()
    unpacked = [sources.fetch(apt, name, root, shop.log) for name in recipe.SOURCES]
    python, zlib = (source.directory for source in unpacked)
    epoch = shell.read(["dpkg-parsechangelog", "--show-field", "Timestamp"], cwd=python).strip()
    shell.announce("compiling CPython twice, which takes some minutes")
    build_zlib(shop, zlib)
    build_python(shop, python, epoch)
    done = root / "done"
    collect_parts(shop, python, done)
    collect_library(shop, python, done)
    copy_licenses(done, unpacked)
    parts = describe(shop, python, unpacked)
    (done / PARTS).write_text(json.dumps(parts, indent=2) + "\n")
    shutil.copy(shop.log, done / LOG)
    return done


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One build at a time: a second caller waits and then finds the first one's result."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def cached(final: Path, make: Callable[[Path], Path], complete: str, *, refresh: bool) -> Path:
    """What ``make`` makes, taken from the cache unless it is not there or a fresh one is wanted.

    Args:
        final: its place in the cache, where it appears only when it is complete.
        make: makes it below the directory that it is given; returns the finished directory.
        complete: a file in it that shows that it is complete.
        refresh: make it anew.
    """
    with locked(final.with_suffix(".lock")):
        if not refresh and (final / complete).exists():
            return final
        started = time.monotonic()
        root = final.with_suffix(".work")
        shutil.rmtree(root, ignore_errors=True)
        done = make(root)
        shutil.rmtree(final, ignore_errors=True)
        done.rename(final)
        shutil.rmtree(root)
        shell.announce(f"built {final.name} in {time.monotonic() - started:.0f} s")
    return final


def build(*, refresh: bool = False) -> Path:
    """The compiled parts, made unless this recipe has been compiled before."""

    def make(root: Path) -> Path:
        install_compiler()
        return compile_into(root)

    final = recipe.cache_root() / f"cpython-{recipe.cpython_identity()}"
    return cached(final, make, PARTS, refresh=refresh)
