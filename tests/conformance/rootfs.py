"""Root file systems: each made once, kept in the cache under the hash of its recipe, never written again."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.bed import images, roots
from tests.cluster.bed.model import Bed
from tests.conformance import musl, spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CACHE = Path.home() / ".cache" / "sandman" / "conformance"

# What must be on the machine -> Debian package. Whatever builds the interpreter and the base images
# installs its own.
TOOLS = {
    "/bin/busybox": "busybox-static",
    "debootstrap": "debootstrap",
    "runc": "runc",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}


@dataclass(frozen=True, slots=True)
class Root:
    """One layer, and what it is made of: `recipe` changes whenever the result should."""

    name: str
    recipe: str
    make: Callable[[Path], None]

    @property
    def place(self) -> Path:
        """Where it is kept."""
        return CACHE / f"{self.name}-{hashlib.sha256(self.recipe.encode()).hexdigest()[:16]}"

    def ready(self) -> Path:
        """The finished directory, made now when it is not there."""
        with one_at_a_time():
            if not self.place.exists():
                part = self.place.with_name(f"{self.place.name}.part")
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(mode=0o755)
                part.chmod(0o755)
                self.make(part)
                part.rename(self.place)
        return self.place


def missing() -> list[str]:
    """What the machine lacks, one sentence each."""
    if os.geteuid() != 0:
        return ["Root is needed: containers are started."]
    absent = {package for tool, package in TOOLS.items() if shutil.which(tool) is None}
    if not spec.SECCOMP.exists():
        absent.add("golang-github-containers-common")
    return [f"These Debian packages are needed: {', '.join(sorted(absent))}."] if absent else []


def _unpack_debian(root: Path) -> None:
    archive = images.packed(Bed.from_env(), images.DEBIAN).file
    subprocess.run(["tar", "-C", root, "-xpzf", archive], check=True)


DEBIAN = Root("debian", images.DEBIAN.recipe, _unpack_debian)
AGENT = Root("agent", "agent 1", roots.make_agent_user)
MUSL = Root("musl", musl.RECIPE, musl.make)
BUSYBOX = Root("busybox", "busybox 1", roots.make_busybox)
EMPTY = Root("empty", "empty 1", roots.make_empty)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Sessions that run side by side make nothing twice."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
