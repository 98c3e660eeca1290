"""What is built and how it is configured: the values whose change must rebuild the interpreter.

Nothing here acts. ``identity`` names a cache entry, so whatever influences CPython has to be in this
file, in ``cpython.py`` or in ``native/compat.h``, and what influences our own modules there, in
``interpreter.py`` or below ``native/``: a change to those does not cost a compile of CPython.
"""

import hashlib
import os
import platform
from pathlib import Path

HERE = Path(__file__).resolve().parent
NATIVE = HERE / "native"
TRAINING = HERE / "inside" / "training.py"

PYTHON = "3.13"
LIBRARY = f"lib/python{PYTHON}"

# Debian's stable sources carry the security fixes as patches; upstream's tarballs do not.
SUITE = "trixie"
PYTHON_SOURCE = f"python{PYTHON}"
ZLIB_SOURCE = "zlib"
SOURCES = (PYTHON_SOURCE, ZLIB_SOURCE)

# Program that must be there -> Debian package that brings it.
TOOLS = {
    "musl-gcc": "musl-tools",
    "gcc": "build-essential",
    "make": "build-essential",
    "strip": "binutils",
    "readelf": "binutils",
    "dpkg-source": "dpkg-dev",
    "dpkg-parsechangelog": "dpkg-dev",
}
# Header that must be there -> package. The kernel's headers come beside glibc's development files.
HEADERS = {"/usr/include/linux/limits.h": "linux-libc-dev"}

# A thread's stack with musl is 128 KiB by default. CPython counts on megabytes: one deeply nested
# JSON document would then overflow it and kill PID 1 instead of raising RecursionError. The
# memory is only reserved; what is not touched costs nothing.
THREAD_STACK_BYTES = 8 << 20

# Modules that need libraries which we do not link. Cryptography is not missing: hashlib, hmac and
# secrets work on CPython's own built-in implementations.
ABSENT_MODULES = (
    "_bz2",
    "_crypt",
    "_ctypes",
    "_curses",
    "_curses_panel",
    "_dbm",
    "_gdbm",
    "_hashlib",
    "_lzma",
    "_sqlite3",
    "_ssl",
    "_tkinter",
    "_uuid",
    "nis",
    "ossaudiodev",
    "readline",
)

COMPILER_FLAGS = "-O2 -g0"
LINKING = ("-static", f"-Wl,-z,stack-size={THREAD_STACK_BYTES}")

CONFIGURE = (
    # Where the library is sought when it is not beside the interpreter. CPython's search upwards
    # from bin/ stops short of the root directory, which is where it is in our own image.
    "--prefix=/",
    # Measured: a tenth less processor time for a start, a sixth less for a call, and half a megabyte
    # less to deliver. The compile takes twice as long.
    "--enable-optimizations",
    "--disable-shared",
    "--disable-test-modules",
    "--without-doc-strings",
    "--without-ensurepip",
    "--without-readline",
    # The coercion exports LC_CTYPE, which every command in the sandbox would then inherit.
    "--without-c-locale-coercion",
    "MODULE_BUILDTYPE=static",
    "LINKFORSHARED= ",
    "PKG_CONFIG=false",
    # Declared in native/compat.h, which the configure script cannot see.
    "ac_cv_func_close_range=yes",
    *(f"py_cv_module_{name}=n/a" for name in ABSENT_MODULES),
)

# Parts of the standard library that no program of ours, nor a test suite in a sandbox, can use.
UNUSABLE_LIBRARY = (
    "ensurepip",
    "idlelib",
    "lib2to3",
    "test",
    "tkinter",
    "turtle.py",
    "turtledemo",
    "venv",
)


def cpython_ingredients() -> list[Path]:
    """Files that decide what CPython becomes, in a fixed order."""
    return [HERE / "recipe.py", HERE / "cpython.py", TRAINING, NATIVE / "compat.h"]


def native_sources() -> list[Path]:
    """The C sources of our own modules and of the program, in a fixed order."""
    return sorted(NATIVE.glob("*.c"))


def ingredients() -> list[Path]:
    """Files that decide what the interpreter becomes, in a fixed order."""
    own = [file for file in sorted(NATIVE.iterdir()) if file.suffix in {".c", ".h"}]
    return [*cpython_ingredients(), HERE / "interpreter.py", *own]


def essence(file: Path) -> bytes:
    """What of a file can change the result: of Python all but comment lines and blank lines."""
    content = file.read_bytes()
    if file.suffix != ".py":
        return content
    lines = (line.rstrip() for line in content.splitlines())
    return b"\n".join(line for line in lines if line and not line.lstrip().startswith(b"#"))


def identity(files: list[Path], machine: str) -> str:
    """A short name for everything that decides what is built, except Debian's versions.

    Versions are left out on purpose: knowing them takes the network, and a cached interpreter must
    be found without it. ``build --refresh`` asks for newer ones.
    """
    digest = hashlib.sha256(machine.encode())
    for file in files:
        content = essence(file)
        digest.update(f"\0{file.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def current_identity() -> str:
    """The identity of the recipe as it stands in this checkout, for this machine's processor."""
    return identity(ingredients(), platform.machine())


def cpython_identity() -> str:
    """The identity of CPython alone."""
    return identity(cpython_ingredients(), platform.machine())


def cache_root() -> Path:
    """Where finished interpreters are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sandman" / "runtime"
