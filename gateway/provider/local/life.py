"""One sandbox's process: its listening socket, its keeper (`daemon.local.confine`), its end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import trio

from gateway.provider.local import isolation
from sandman import grants

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.model import Instance
    from gateway.provider.local.cgroups import Group
    from gateway.provider.local.images import Image
    from gateway.provider.local.running import Place

BACKLOG = 512
SAID_MAX_BYTES = 16 * 1024
"""Of what a sandbox's daemon and its keeper write, kept: the end of it says why they ended."""
STOP_S = 10.0
"""Seconds for the keeper to end once it is told; it kills at once, or after three where there are no namespaces."""
LAST_WORDS_S = 1.0
"""Seconds to read what a keeper that has ended wrote last."""
PLACES = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost\n"
_numbers = itertools.count(secrets.randbelow(2**16))


def listener(port: int) -> socket.socket:
    """A socket on a loopback address of its own: the port is the same for all sandboxes.

    Raises:
        OSError: there is no such address free.
    """
    last: OSError | None = None
    for _ in range(64):
        high, low = divmod(next(_numbers) % (250 * 250), 250)
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((f"127.83.{high + 1}.{low + 1}", port))
            sock.listen(BACKLOG)
        except OSError as error:
            sock.close()
            last = error
        else:
            return sock
    raise last or OSError("no address")


class Life:
    """One process of a sandbox, from its start to its end.

    Args:
        instance: whose.
        image: what it runs in.
        place: how it can be kept apart, and the key of daemon tokens.
        sock: what its daemon listens on.
        scratch: a directory that is to be made for it alone; its keeper takes it away.
        group: its limits.
    """

    def __init__(
        self,
        instance: Instance,
        image: Image,
        place: Place,
        sock: socket.socket,
        scratch: Path,
        group: Group | None,
    ) -> None:
        self._instance = instance
        self._image = image
        self._machine = place.here.machine
        self._sock = sock
        self._scratch = scratch
        self._token_key = place.daemon_key
        self._group = group
        self._said = b""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> int:
        """Start it, say so, and answer the keeper's exit code. Cancelled, it ends first.

        Raises:
            OSError: it could not be started.
        """
        plan = await trio.to_thread.run_sync(self._plan)
        reader, writer = os.pipe()
        heard, says = os.pipe()
        async with trio.lowlevel.FdStream(writer) as hold, trio.lowlevel.FdStream(heard) as voice:
            try:
                process = await trio.lowlevel.open_process(
                    isolation.command("confine"),
                    stdin=reader,
                    stdout=subprocess.DEVNULL,
                    stderr=says,
                    pass_fds=[self._sock.fileno()],
                    env=isolation.environment(),
                    start_new_session=True,
                )
            finally:
                os.close(reader)
                os.close(says)
            return await self._attend(process, plan, hold, voice, task_status)

    async def _attend(
        self,
        process: trio.Process,
        plan: dict[str, object],
        hold: trio.lowlevel.FdStream,
        voice: trio.lowlevel.FdStream,
        task_status: trio.TaskStatus[None],
    ) -> int:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, voice)
                with contextlib.suppress(trio.BrokenResourceError):
                    await hold.send_all(json.dumps(plan).encode() + b"\n")
                task_status.started()
                code = await process.wait()
                # What is left in the pipe is read; nobody else holds its other end for long.
                nursery.cancel_scope.deadline = trio.current_time() + LAST_WORDS_S
            return code
        finally:
            with trio.CancelScope(shield=True):
                await _end(process, hold)

    @property
    def said(self) -> str:
        """The last line of what it has written."""
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return lines[-1].removeprefix("sandman: ") if lines else ""

    async def _listen(self, voice: trio.lowlevel.FdStream) -> None:
        async for data in voice:
            self._said = (self._said + data)[-SAID_MAX_BYTES:]

    def _plan(self) -> dict[str, object]:
        token = grants.daemon_token(self._token_key, self._instance.namespace, self._instance.nonce)
        image = self._image
        self._scratch.mkdir(mode=0o700, parents=True)
        workdir = image.workdir
        if not self._machine.is_whole:
            workdir = str(self._scratch)
        env = {"PATH": PLACES, **image.env}
        if image.directory is None:
            env["PATH"] = f"{sys.base_prefix}/bin:{PLACES}"
            if not self._machine.is_whole:
                env["HOME"] = workdir
        return {
            "listener": self._sock.fileno(),
            "token_sha256": grants.token_digest(token),
            "env": env,
            "workdir": workdir,
            "root": self._root() if self._machine.is_whole else None,
            "shares_network": bool(self._machine.network) or self._instance.network != "none",
            "hostname": self._instance.name[:63],
            "user": image.user,
            "scratch": str(self._scratch),
            "procs": self._group.procs if self._group else (),
        }

    def _root(self) -> dict[str, object]:
        target = self._made("root")
        if self._image.directory is None:
            return {"target": target, "kept": [sys.base_prefix]}
        files = [("hosts", _HOSTS), ("hostname", f"{self._instance.name[:63]}\n")]
        root: dict[str, object] = {
            "target": target,
            "image": str(self._image.directory),
            "files": files,
            "groups": self._group.shown if self._group else (),
        }
        if self._machine.overlay:
            return root
        return root | {"upper": self._made("upper"), "work": self._made("work")}

    def _made(self, name: str) -> str:
        place = self._scratch / name
        # An image's root is entered by every user of it.
        place.mkdir(mode=0o755)
        return str(place)


async def _end(process: trio.Process, hold: trio.lowlevel.FdStream) -> None:
    """Its keeper ends when nobody holds its stdin any more, and with it all else."""
    await hold.aclose()
    with trio.move_on_after(STOP_S) as scope:
        await process.wait()
    if scope.cancelled_caught:
        process.kill()
        await process.wait()
