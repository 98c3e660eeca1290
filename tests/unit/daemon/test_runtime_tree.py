"""The daemon's runtime as it is delivered: run in places that offer nothing.

Needs the static interpreter (minutes to build, then cached) and, for the empty root, root rights.
"""

import hashlib
import os
import re
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from daemon.runtime import interpreter, library, recipe, toolchain, tree
from daemon.runtime.shell import BuildError
from sandman import names

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(1200)]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="chroot takes root")

SIZE_BUDGET_BYTES = 20_000_000
NOBODY = "65534:65534"
CHROOT = shutil.which("chroot") or "chroot"


@pytest.fixture(scope="module")
def built() -> Path:
    return interpreter.build()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as they are now: somebody may be editing them while the tests run."""
    root = tmp_path_factory.mktemp("checkout")
    for package in (tree.DAEMON_PACKAGE, tree.SHARED_PACKAGE):
        shutil.copytree(tree.repository() / package, root / package)
    return root


@pytest.fixture(scope="module")
def shipped(built: Path, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tree.compose(built, tmp_path_factory.mktemp("runtime") / "tree", checkout)


def start(
    command: list[str | Path], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, env=dict(env or {}), check=False, timeout=60
    )


def run(
    python: Path, code: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return start([python, "-I", "-S", "-c", code], env)


def run_in_empty_root(root: Path, code: str, at: str = "/.sandman") -> str:
    """Run as nobody in a root file system that holds the runtime and nothing else."""
    python = f"{at}/bin/python3"
    done = start([CHROOT, f"--userspec={NOBODY}", root, python, "-I", "-S", "-c", code])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def empty_root(shipped: Path, tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    shutil.copytree(shipped, root / ".sandman")
    tmp_path.chmod(0o755)
    return root


@needs_root
def test_it_runs_where_there_is_nothing_else(empty_root: Path) -> None:
    assert run_in_empty_root(empty_root, "print(1)") == "1\n"


@needs_root
def test_it_runs_from_any_place(shipped: Path, tmp_path: Path) -> None:
    shutil.copytree(shipped, tmp_path / "root")
    code = "import json, sys; print(sys.prefix, json.__file__)"
    assert run_in_empty_root(tmp_path / "root", code, at="") == (
        f"/ /{recipe.LIBRARY}/json/__init__.pyc\n"
    )


@needs_root
def test_descriptors_do_not_leak_into_commands_even_without_proc(empty_root: Path) -> None:
    code = """
import os, subprocess, sys
os.dup2(1, 500, inheritable=True)
ask = "import os\\ntry: os.fstat(500)\\nexcept OSError: print('closed')"
command = [sys.executable, "-I", "-S", "-c", ask]
sys.exit(subprocess.run(command, stdin=0, close_fds=True).returncode)
"""
    assert run_in_empty_root(empty_root, code) == "closed\n"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for_health(port: int, deadline_s: float = 30) -> bytes:
    end = time.monotonic() + deadline_s
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: sandbox\r\n\r\n")
                return connection.recv(4096)
        except ConnectionRefusedError:
            assert time.monotonic() < end, "the daemon does not listen"
            time.sleep(0.001)


@needs_root
def test_the_daemon_answers_where_there_is_nothing_else(empty_root: Path) -> None:
    port = free_port()
    place = "/.sandman"
    command = [f"{place}/bin/python3", "-I", "-S", f"{place}/app", "serve"]
    env = {names.ENV_TOKEN_SHA256: hashlib.sha256(b"token").hexdigest(), names.ENV_PORT: str(port)}
    started = time.perf_counter()
    with subprocess.Popen(
        [CHROOT, f"--userspec={NOBODY}", empty_root, *command], env=env
    ) as daemon:
        try:
            reply = wait_for_health(port)
            print(f"healthy after {(time.perf_counter() - started) * 1000:.0f} ms")
            print(re.findall(r"VmRSS:.*", Path(f"/proc/{daemon.pid}/status").read_text()))
        finally:
            daemon.terminate()
    assert reply.startswith(b"HTTP/1.1 200 ")


def test_it_stays_within_its_size(shipped: Path) -> None:
    size = tree.size_of(shipped)
    print(f"tree {size / 1e6:.1f} MB")
    assert size <= SIZE_BUDGET_BYTES


def test_start_time_and_memory_are_told(shipped: Path) -> None:
    code = "print([line for line in open('/proc/self/status') if line.startswith('VmRSS')][0])"
    times = []
    for _ in range(20):
        started = time.perf_counter()
        run(shipped / "bin" / "python3", "pass")
        times.append(time.perf_counter() - started)
    memory = run(shipped / "bin" / "python3", code).stdout.strip()
    print(f"bare start {min(times) * 1000:.1f} ms, {memory}")
    assert min(times) < 5


def test_nothing_is_writable_and_nothing_is_source(shipped: Path) -> None:
    paths = [shipped, *shipped.rglob("*")]
    assert {path.stat().st_mode & 0o7777 for path in paths} == {0o555}
    assert not [path for path in paths if path.suffix in (".py", ".so", ".a")]
    if os.geteuid() == 0:
        assert {path.stat().st_uid for path in paths} == {tree.OWNER}


def test_the_pods_environment_has_no_effect(shipped: Path) -> None:
    hostile = {
        "PYTHONHOME": "/nonexistent",
        "PYTHONPATH": "/nonexistent",
        "PYTHONSTARTUP": "/nonexistent",
        "PYTHONVERBOSE": "1",
        "LD_PRELOAD": "/nonexistent.so",
        "LD_LIBRARY_PATH": "/nonexistent",
        "LC_ALL": "xx_YY.KOI8-R",
    }
    done = run(shipped / "bin" / "python3", "import socket; print(1)", hostile)
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


def test_commands_do_not_inherit_a_locale_of_ours(shipped: Path) -> None:
    code = "import os, sys; print(dict(os.environ), sys.getfilesystemencoding())"
    done = run(shipped / "bin" / "python3", code, {"LANG": "C"})
    assert done.stdout == "{'LANG': 'C'} utf-8\n"


def test_every_module_of_the_daemon_imports(shipped: Path) -> None:
    app = shipped / "app"
    modules = [library.module_name(app, file) for file in app.rglob("*/*.pyc")]
    assert "daemon.__main__" in modules
    tree.check(shipped, modules)


def test_a_missing_module_is_found_before_delivery(shipped: Path, tmp_path: Path) -> None:
    shutil.copytree(shipped, tmp_path / "copy")
    (tmp_path / "copy" / recipe.LIBRARY).chmod(0o755)
    (tmp_path / "copy" / recipe.LIBRARY / "socket.pyc").unlink()
    with pytest.raises(BuildError, match=r"No module named .*socket"):
        tree.check(tmp_path / "copy", ["socket"])


def test_the_same_sources_give_the_same_bytes(
    built: Path, checkout: Path, shipped: Path, tmp_path: Path
) -> None:
    again = tree.compose(built, tmp_path / "again", checkout)

    def digests(root: Path) -> dict[str, str]:
        files = (path for path in root.rglob("*") if path.is_file())
        return {str(f.relative_to(root)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}

    assert digests(again) == digests(shipped)


def test_nothing_tells_where_it_was_built(built: Path, shipped: Path) -> None:
    traces = (str(recipe.cache_root()).encode(), str(tree.repository()).encode())
    files = (path for path in shipped.rglob("*") if path.is_file())
    contents = [path.read_bytes() for path in files]
    assert not [t for t in traces if any(t in content for content in contents)]


def test_an_error_nobody_caught_is_told_in_full(shipped: Path) -> None:
    code = (
        "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join(); {}[1]"
    )
    done = run(shipped / "bin" / "python3", code)
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "KeyError: 1" in done.stderr
    assert "ImportError" not in done.stderr
    assert "ModuleNotFoundError" not in done.stderr


def test_a_json_bomb_in_a_thread_is_an_error_and_not_the_end(shipped: Path) -> None:
    code = """
import json, threading
def parse():
    for bomb in ("[" * 1_000_000, '{"a":' * 1_000_000):
        try:
            json.loads(bomb)
        except RecursionError:
            print("refused")
thread = threading.Thread(target=parse)
thread.start()
thread.join()
"""
    done = run(shipped / "bin" / "python3", code)
    assert (done.stdout, done.returncode) == ("refused\nrefused\n", 0)


def test_our_system_calls(shipped: Path) -> None:
    code = """
import _sandman as s
print(s.prctl(s.PR_GET_DUMPABLE), s.prctl(s.PR_SET_DUMPABLE, 0), s.prctl(s.PR_GET_DUMPABLE))
print(s.prctl(s.PR_SET_CHILD_SUBREAPER, 1), s.prctl(s.PR_SET_PDEATHSIG, 9))
s.prctl(s.PR_SET_DUMPABLE, 1)
s.set_name(b"sandman")
print(open("/proc/self/comm").read().strip())
PR_SET_MM = 35
try:
    s.prctl(PR_SET_MM, 1, 2, 3)
except ValueError as error:
    print(error)
try:
    s.prctl(s.PR_SET_PDEATHSIG, 4096)
except OSError as error:
    print(error.errno)
"""
    done = run(shipped / "bin" / "python3", code)
    told = ["1 0 0", "0 0", "sandman", "prctl option 35 is not offered", "22"]
    assert done.stdout.splitlines() == told


@needs_root
def test_a_thread_works_on_files_as_another_user(shipped: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").touch(0o600)
    code = f"""
import os, threading
from _sandman import set_fs_user
def may():
    try:
        os.close(os.open({str(tmp_path / "secret")!r}, os.O_RDONLY))
        return True
    except PermissionError:
        return False
groups = os.getgroups()
set_fs_user(1234, 5, (4, 7))
seen = may(), os.getgroups(), os.geteuid()
set_fs_user(0, 0, groups)
print(*seen, may(), os.getgroups() == groups)
go, away = threading.Event(), threading.Event()
thread = threading.Thread(target=lambda: (set_fs_user(1234, 5, None), go.set(), away.wait()))
thread.start()
go.wait()
print(may())
away.set()
thread.join()
for wrong in ((-1, 0, ()), (2**32 - 1, 0, ()), (0, 2**40, None), (0, 0, (2**32,)), (0, 0, 1)):
    try:
        set_fs_user(*wrong)
    except (TypeError, ValueError, OverflowError):
        continue
    print("taken", wrong)
"""
    done = run(shipped / "bin" / "python3", code)
    assert (done.stdout, done.stderr) == ("False [4, 7] 0 True True\nTrue\n", "")


# Imports that functions of the shipped library make only where we never come: other operating
# systems, other builds of CPython, options that the daemon does not use.
NEVER_IMPORTED = {
    "_frozen_importlib",
    "_frozen_importlib_external",
    "_hashlib",
    "_py_abc",
    "_threading_local",
    "_winapi",
    "argparse",
    "bz2",
    "doctest",
    "encodings.mbcs",
    "getopt",
    "importlib.metadata",
    "importlib.readers",
    "logging",
    "lzma",
    "msvcrt",
    "nt",
    "ntpath",
    "pkgutil",
    "statistics",
    "tracemalloc",
    "winreg",
    "zipfile",
}


def test_what_the_library_imports_late_is_there_or_known(built: Path, shipped: Path) -> None:
    """A library function that imports at its first call would fail in a pod, long after the build."""
    compiled = shipped / recipe.LIBRARY
    sources = [file.relative_to(compiled).with_suffix(".py") for file in compiled.rglob("*.pyc")]
    code = f"""
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, {str(recipe.HERE.parent.parent)!r})
from pathlib import Path
from daemon.runtime import library
for file in {[str(built / recipe.LIBRARY / source) for source in sources]!r}:
    for name in library.imported_names(Path(file).read_text()).modules:
        print(name)
"""
    # Only the same version of Python can parse its own library.
    done = run(built / "bin" / "python3", code)
    assert done.returncode == 0, done.stderr
    names = sorted(set(done.stdout.split()) - NEVER_IMPORTED)
    found = library.try_imports(shipped / "bin" / "python3", shipped / "app", names)
    assert found.failed == {}


TOOLCHAIN_TEST = """
import unittest, zipfile, tempfile, logging, argparse, asyncio, decimal, csv, xml.dom, doctest

class Sample(unittest.TestCase):
    def test_asserts_are_alive(self):
        with self.assertRaises(AssertionError):
            assert False

    def test_docstrings_are_kept(self):
        self.assertIn("JSON", __import__("json").__doc__)

unittest.main()
"""


@needs_root
def test_the_toolchain_runs_a_test_suite_without_an_image(built: Path, tmp_path: Path) -> None:
    out = toolchain.write(built, tmp_path / "python.tar")
    print(f"toolchain {out.stat().st_size / 1e6:.1f} MB")
    root = tmp_path / "root"
    with tarfile.open(out) as tar:
        assert not [n for n in tar.getnames() if "idlelib" in n or "/test/" in n]
        tar.extractall(root, filter="tar")
    (root / "sample.py").write_text(TOOLCHAIN_TEST)
    done = start([CHROOT, root, "/python/bin/python3", "/sample.py"])
    assert (done.returncode, "OK" in done.stderr) == (0, True), done.stderr
