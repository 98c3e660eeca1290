"""Runs the processes of sandboxes: each has an address, a directory, limits and a keeper, one after the other."""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING

import trio

from gateway import sizing
from gateway.model import NO_AMOUNTS, Bounds
from gateway.provider import RefusedError
from gateway.provider.local import isolation, life, pods
from sandman.errors import BadRequestError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

    from gateway.model import Amounts, Ending, Instance
    from gateway.provider.local.cgroups import Group, Groups
    from gateway.provider.local.images import Image, Images
    from gateway.provider.local.isolation import Machine


LOOKS = 500
LOOK_S = 0.01
"""Seconds between two looks whether processes that were killed have left their group, and how many there are: a busy
machine takes its time."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """This machine, as sandboxes have it."""

    machine: Machine
    scratch: Path
    """A directory that is this gateway's alone."""
    groups: Groups | None = None
    """What limits them; None: nothing does."""
    whole: Amounts = NO_AMOUNTS
    """What there is for all of them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where sandboxes are, and what their daemons are reached by."""

    here: Here
    daemon_port: int
    key_id: str
    daemon_key: bytes = dataclasses.field(repr=False)


class Runner:
    """What of sandboxes is this machine's.

    Args:
        place: where they are.
        images: what runs in them.
        wall: seconds since the epoch.
    """

    def __init__(self, place: Place, images: Images, wall: Callable[[], float]) -> None:
        self._place = place
        self._images = images
        self._wall = wall
        self._sockets: dict[str, socket.socket] = {}
        self._groups: dict[str, Group] = {}

    async def run(
        self,
        instance: Instance,
        now: Callable[[], Instance | None],
        put: Callable[[Instance], object],
    ) -> Ending:
        """One process of a sandbox, until it ends. Cancelled, it ends first.

        Args:
            instance: whose.
            now: the sandbox as it is; None when it is gone, or going.
            put: told what it becomes.

        Raises:
            ImageError: its image cannot be had.
            OSError: it could not be started.
        """
        image = await self._images.get(instance.image)
        name = f"{instance.uid[:16]}-{secrets.token_hex(4)}"
        group = self._limited(name, now() or instance)
        try:
            if (there := now()) is not None:
                # Before it runs: who is told that it does is told this.
                put(pods.apart(there, self._told(there, image)))
            code, said = await self._live(instance, image, name, group, now, put)
            is_short = group is not None and group.was_short()
            return pods.why(code, said, self._wall(), oom=is_short)
        finally:
            if group is not None:
                # Another process of it may have one by now.
                if self._groups.get(instance.uid) is group:
                    del self._groups[instance.uid]
                with trio.CancelScope(shield=True):
                    await _emptied(group)

    async def _live(
        self,
        instance: Instance,
        image: Image,
        name: str,
        group: Group | None,
        now: Callable[[], Instance | None],
        put: Callable[[Instance], object],
    ) -> tuple[int, str]:
        sock = self._sockets.get(instance.uid)
        if sock is None:
            sock = self._sockets[instance.uid] = life.listener(self._place.daemon_port)
        scratch = self._place.here.scratch / name
        one = life.Life(instance, image, self._place, sock, scratch, group)
        address = sock.getsockname()[0]
        codes: list[int] = []
        async with trio.open_nursery() as nursery:

            async def run(task_status: trio.TaskStatus[None]) -> None:
                codes.append(await one.run(task_status=task_status))

            await nursery.start(run)
            if (running := now()) is not None:
                put(pods.running(running, address, image.digest, self._wall()))
        return codes[0], one.said

    def _limited(self, name: str, instance: Instance) -> Group | None:
        if self._place.here.groups is None:
            return None
        group = self._place.here.groups.make(name, instance.bounds.limits)
        self._groups[instance.uid] = group
        return group

    def _told(self, instance: Instance, image: Image) -> dict[str, str]:
        return isolation.told(
            self._place.here.machine,
            is_own_root=image.directory is None,
            network=instance.network,
            limits=instance.bounds.limits,
        )

    def check(self, limits: Amounts) -> None:
        """Whether this machine can have a sandbox that was asked for with these limits at all.

        Raises:
            RefusedError: it has less, or sets no limits.
        """
        if limits != NO_AMOUNTS and self._place.here.groups is None:
            text = f"local mode sets no limits here: {self._place.here.machine.cgroup}"
            raise RefusedError(BadRequestError(text, field="resources"))
        if not sizing.fits(Bounds(limits=self._place.here.whole), limits):
            told = " and ".join(sizing.texts(self._place.here.whole).values())
            text = f"this machine has no more than {told} for all of its sandboxes"
            raise RefusedError(BadRequestError(text, field="resources"))

    def limit(self, instance: Instance, limits: Amounts) -> dict[str, str]:
        """Give it these limits from now on; what is told of it then.

        Raises:
            OSError: it has no limits, or the kernel refused these.
        """
        group = self._groups.get(instance.uid)
        if group is not None:
            group.limit(limits)
        elif self._place.here.groups is None:
            raise OSError(self._place.here.machine.cgroup)
        return {**(instance.isolation or {}), **isolation.limited(self._place.here.machine, limits)}

    def close(self, uid: str) -> None:
        """Whoever waits to be accepted hears that nobody is there."""
        if (sock := self._sockets.pop(uid, None)) is not None:
            sock.close()

    def close_all(self) -> None:
        """The gateway ends."""
        for uid in list(self._sockets):
            self.close(uid)


async def _emptied(group: Group) -> None:
    """Take it away; what still holds something is taken away with the gateway's."""
    for _ in range(LOOKS):
        if group.remove():
            return
        await trio.sleep(LOOK_S)
