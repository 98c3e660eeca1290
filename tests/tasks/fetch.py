"""Download by pip, keep in a cache, hand over as trees in memory.

pip knows from its own settings where packages come from; nothing here names a place. Every file is
pinned by hash. pip checks that before it does anything else with a file; afterwards, for a source
distribution, it runs the distribution's build hook for metadata (it offers no way around that).
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.tasks import archives, unified
from tests.tasks.catalog import Source

if TYPE_CHECKING:
    from tests.tasks.catalog import Task
    from tests.tasks.unified import Tree

CACHE = Path.home() / ".cache" / "sandman" / "tasks"
PIP_TIMEOUT_S = 600

# The last series of pytest that runs without Pygments; with these it needs nothing else from
# Python 3.11 on, and all of it is pure Python.
RUNNER = {
    "pytest": Source("8.3.5", "c69214aa47deac29fad6c2a4f590b9c4a9fdb16a403176fe154b79c0b4d4d820"),
    "pluggy": Source("1.5.0", "44e1ad92c8ca002de6377e165f3e0f1be63266ab4d554740532335b9d75ea669"),
    "iniconfig": Source(
        "2.1.0", "9deba5723312380e77435581c6bf4935c94cbfab9b1ed33ef8d238ea168eb760"
    ),
    "packaging": Source("24.2", "09abb1bccd265c01f4a3aa3f7a7db064b36514d2cba19a2f694fe6150451a759"),
}


class FetchError(Exception):
    """pip could not download, or what it downloaded is not what was pinned."""


@dataclass(frozen=True, slots=True)
class Materials:
    """All that a task needs: the releases' files and the test runner's."""

    task: Task
    buggy: Tree
    fixed: Tree
    pytest: Tree

    @property
    def gold_patch(self) -> str:
        """The fix as a patch: what differs in the package's own code."""
        before, after = self.fix()
        return unified.diff(before, after)

    def fix(self) -> tuple[Tree, Tree]:
        """The files that the fix concerns, before and after; one missing on a side is new or gone."""
        before, after = (
            {path: data for path, data in tree.items() if self.task.is_source(path)}
            for tree in (self.buggy, self.fixed)
        )
        paths = {path for path in before | after if before.get(path) != after.get(path)}
        return (
            {path: before[path] for path in sorted(paths & before.keys())},
            {path: after[path] for path in sorted(paths & after.keys())},
        )

    def source_tar(self) -> bytes:
        """The buggy release with its own tests."""
        return archives.tar_of(self.buggy)

    def tests_tar(self) -> bytes:
        """The tests of the fixed release."""
        return archives.tar_of(archives.below(self.fixed, self.task.tests))

    def pytest_tar(self) -> bytes:
        """The test runner, as it lies in `site-packages`."""
        return archives.tar_of(self.pytest)


def materials(task: Task, cache: Path = CACHE) -> Materials:
    """Everything for a task, downloaded unless the cache has it.

    Raises:
        FetchError: no download, or a file with another hash.
        ArchiveError: a file that is no archive of its kind.
    """
    buggy, fixed = (
        archives.read_sdist(sdist(task.name, s, cache)) for s in (task.buggy, task.fixed)
    )
    pytest: Tree = {}
    for name, source in RUNNER.items():
        pytest |= archives.read_wheel(_wheel(name, source, cache))
    return Materials(task, buggy, fixed, pytest)


def sdist(name: str, source: Source, cache: Path) -> Path:
    """The source distribution in the cache, downloaded when it is not there.

    Raises:
        FetchError: no download, or a file with another hash.
    """
    return _cached(name, source, cache, ".tar.gz", ["--no-binary", name])


def _wheel(name: str, source: Source, cache: Path) -> Path:
    return _cached(name, source, cache, ".whl", ["--only-binary", ":all:"])


def _cached(name: str, source: Source, cache: Path, suffix: str, options: list[str]) -> Path:
    """The file in the cache, whose name is its hash; it appears there complete or not at all."""
    kept = cache / f"{name}-{source.version}-{source.sha256[:16]}{suffix}"
    if kept.is_file() and _sha256(kept) == source.sha256:
        return kept
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        _pip_download(name, source, options, Path(scratch))
        for file in Path(scratch).glob(f"*{suffix}"):
            if _sha256(file) == source.sha256:
                return file.replace(kept)
    raise FetchError(f"pip brought no {suffix} of {name} {source.version} with the pinned hash")


def _pip_download(name: str, source: Source, options: list[str], out: Path) -> None:
    requirements = out / "requirements.txt"
    requirements.write_text(f"{name}=={source.version} --hash=sha256:{source.sha256}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    wanted = ["--no-deps", "--require-hashes", f"--requirement={requirements}", f"--dest={out}"]
    done = subprocess.run(
        [*pip, *options, *wanted],
        capture_output=True,
        text=True,
        timeout=PIP_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise FetchError(f"pip could not download {name} {source.version}: {done.stderr.strip()}")


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
