"""Local mode's program: `python -m gateway local`, which `sandman serve --local` runs.

The same gateway on another ground: this machine. Its API key and address are written where clients of this user look.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import secrets
import socket
import sys
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from gateway import machine
from gateway.config import Settings
from gateway.model import NO_AMOUNTS, Amounts
from gateway.provider.local import cgroups, isolation
from gateway.provider.local.images import HOST, Images, platform
from gateway.provider.local.pulls import Pull
from gateway.provider.local.running import Here
from gateway.provider.local.trees import remove_tree
from gateway.serve import Gateway, wall
from sandman import local
from sandman.service import https

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

FREE = 2
"""Placeholders that are kept: each is a process of some 20 MB that waits."""
MOST = 32
"""Sandboxes at once, unless the operator says otherwise: what a machine of somebody's desk bears."""
GRACE_S = 2.0
"""Seconds that calls in flight get at the end: whoever ends local mode sits before it."""
DAEMON_PORT = 21764
"""Of all sandboxes, each on a loopback address of its own."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the operator says."""

    port: int = 0
    """0: any that is free."""
    image: str = HOST
    """What placeholders run."""
    free: int = FREE
    most: int = MOST
    images: Mapping[str, Path] = dataclasses.field(default_factory=dict)
    """Directories and archives by name."""
    pull: bool = True
    """Whether images that are named nowhere are looked for in registries."""
    limits: Amounts = NO_AMOUNTS
    """Of a sandbox whose caller asks for nothing else; what is None is `default_limits`."""


@contextmanager
def own_directory(state: Path) -> Iterator[Path]:
    """A directory for this process alone, gone afterwards; what processes that are gone have left is taken
    away first.

    Raises:
        OSError: it could not be made.
    """
    runs = state / "runs"
    runs.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in runs.iterdir():
        _remove_left(left)
    own = runs / f"{os.getpid()}-{secrets.token_hex(4)}"
    own.mkdir(mode=0o711)
    lock = os.open(own / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield own
    finally:
        remove_tree(own)
        os.close(lock)


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """For as long as this lasts no other gateway has these files: clients find one by them.

    Raises:
        OSError: another one has.
    """
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            text = f"a gateway of local mode runs already: end it, or give this one files of its own ({local.ENV_STATE})"
            raise OSError(text) from error
        yield
    finally:
        os.close(lock)


def _remove_left(left: Path) -> None:
    with suppress(OSError):
        # Its lock may be gone, where an earlier one could not remove all of it.
        lock = os.open(left / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(left)
        finally:
            os.close(lock)


async def main(
    options: Options,
    environ: Mapping[str, str],
    credentials: machine.MadeCredentials | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; afterwards no sandbox is left.

    Args:
        options: what the operator says.
        environ: tells where files are.
        credentials: who may call; None: the one tenant of local mode.

    Raises:
        OSError: there is no place for it, no port or no such image, or another one is there already.
    """
    stop = trio.Event()
    state = local.state_directory(environ)
    images = Images(
        options.images,
        state / "images",
        partial(Pull, platform=platform()) if options.pull else None,
    )
    if not options.pull and not images.knows(options.image):
        raise OSError(f"no image is named {options.image}; there are: {', '.join(images.names())}")
    with alone(state), own_directory(state) as own, cgroups.opened(own.name) as groups:
        await trio.to_thread.run_sync(images.tidy)
        found = await trio.to_thread.run_sync(isolation.probe, _made(own / "probe"))
        found = dataclasses.replace(found, cgroup=groups if isinstance(groups, str) else "")
        settings = Settings(
            bind=machine.ADDRESS,
            port=options.port or _free_port(),
            pod_name="local",
            server_name="localhost",
            daemon_port=DAEMON_PORT,
            lame_duck_s=0.0,
            grace_s=GRACE_S,
            # A process has a network of its own or the machine's: nobody has to be asked which.
            eval_network_wait=False,
        )
        credentials = credentials or machine.MadeCredentials()
        limits = default_limits(options.limits)
        ground = machine.ground(
            settings,
            credentials,
            machine.Wanted(
                image=options.image,
                free=options.free,
                most=options.most,
                limits=limits,
            ),
            images,
            Here(
                machine=found,
                scratch=own,
                groups=None if isinstance(groups, str) else groups,
                whole=has(),
            ),
            wall,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(https.stop_on_signals, stop)
            gateway = Gateway(settings, ground, stop)

            async def serve(task_status: trio.TaskStatus[list[https.Bound]]) -> None:
                await gateway.run(task_status=task_status)
                nursery.cancel_scope.cancel()

            [bound] = await nursery.start(serve)
            connection = local.Connection(
                f"https://{machine.ADDRESS}:{bound.port}",
                next(iter(credentials.tokens.values())),
                ground.certificates.authority.decode(),
                os.getpid(),
            )
            path = local.write(connection, environ)
            _tell(connection, path, found, options.image == HOST, limits)
            try:
                await trio.sleep_forever()
            finally:
                local.forget(connection, environ)


def has() -> Amounts:
    """Cpu and memory of this machine."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Amounts(len(os.sched_getaffinity(0)) * 1000, memory)


def default_limits(asked: Amounts) -> Amounts:
    """All of the machine's cpu, and of its memory half: one sandbox alone does not take the machine along."""
    whole = has()
    half = (whole.memory or 0) // 2 >> 20 << 20
    return Amounts(asked.cpu or whole.cpu, asked.memory or half)


def _free_port() -> int:
    with socket.create_server((machine.ADDRESS, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def _tell(
    connection: local.Connection,
    path: Path,
    found: isolation.Machine,
    is_own_root: bool,
    limits: Amounts,
) -> None:
    """To the person at the terminal, on stderr."""
    told = isolation.told(found, is_own_root=is_own_root, network="none", limits=limits)
    lines = [
        f"local mode at {connection.url}; clients of this user find it by {path}",
        *(f"  {name}: {how}" for name, how in told.items()),
        f"a page to look at: {connection.url}/ui/ (its token is in that file)",
        "try: sandman run -- uname -a    (Ctrl-C here ends it, and all its sandboxes)",
    ]
    sys.stderr.write("".join(f"sandman: {line}\n" for line in lines))
    sys.stderr.flush()
