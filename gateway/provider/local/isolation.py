"""What this machine can keep apart, and what of it each sandbox has; told to whoever has one."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import sandman
from gateway import sizing
from gateway.model import NO_AMOUNTS

if TYPE_CHECKING:
    from gateway.model import Amounts

ROOT = Path(__file__).parents[3]
"""Of the checkout, or of the archive that all programs are in."""
PROBE_S = 30.0
"""Seconds for the trial: three processes that a busy machine starts in one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """What was found by trying: why it cannot be had, "" where it can."""

    namespaces: str = ""
    network: str = ""
    overlay: str = ""
    cgroup: str = "no limits are set"
    uid: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether a sandbox gets a root of its own."""
        return not self.namespaces


def command(*arguments: str) -> list[str]:
    """The daemon's program, by this Python."""
    return [sys.executable, "-m", "daemon", *arguments]


def environment() -> dict[str, str]:
    """Of that program: nothing of ours, which may hold secrets."""
    places = dict.fromkeys((str(ROOT), str(Path(sandman.__file__).parents[1])))
    return {"PYTHONPATH": os.pathsep.join(places), "PATH": os.defpath}


def probe(place: Path) -> Machine:
    """Try it. Blocks for some tenths of a second.

    Args:
        place: a directory of the file system where sandboxes are to be.

    Raises:
        OSError: the trial itself could not be made.
    """
    try:
        done = subprocess.run(  # noqa: S603 - our own program, by this Python
            command("confine", "--probe", str(place)),
            capture_output=True,
            env=environment(),
            timeout=PROBE_S,
            check=True,
        )
        found = {name: str(why) for name, why in json.loads(done.stdout).items()}
        return Machine(**found, uid=os.geteuid())
    except (subprocess.SubprocessError, ValueError, TypeError, AttributeError) as error:
        raise OSError(f"what this machine can keep apart is not known: {error}") from error


def told(
    machine: Machine, *, is_own_root: bool, network: str, limits: Amounts = NO_AMOUNTS
) -> dict[str, str]:
    """How a sandbox is kept apart, for people to read and programs to compare the first word of: `own`, `read-only`,
    `limited`, `mapped` or `shared`.

    Args:
        machine: what it can do.
        is_own_root: whether its root is the machine's own.
        network: its profile.
        limits: of cpu and memory.
    """
    if not machine.is_whole:
        why = f"shared: {machine.namespaces}"
        apart = dict.fromkeys(("files", "processes", "users", "network"), why)
        return {**apart, **limited(machine, limits), "kernel": "shared"}
    files = "read-only: the machine's own root, homes hidden" if is_own_root else "own"
    users = (
        "mapped: all of the machine's, root without its powers"
        if machine.uid == 0
        else f"mapped: root is the machine's uid {machine.uid}, there are no others"
    )
    is_apart = network == "none" and not machine.network
    return {
        "files": files,
        "processes": "own",
        "users": users,
        "network": "own: none" if is_apart else "shared",
        **limited(machine, limits),
        "kernel": "shared",
    }


def limited(machine: Machine, limits: Amounts) -> dict[str, str]:
    """What is told of cpu and memory."""
    if machine.cgroup:
        return dict.fromkeys(("cpu", "memory"), f"shared: {machine.cgroup}")
    texts = sizing.texts(limits)
    return {
        one: f"limited: {texts[one]}" if one in texts else "shared" for one in ("cpu", "memory")
    }
