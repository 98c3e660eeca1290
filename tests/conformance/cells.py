"""The matrix: each kind of image, for root and for users who are not."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import pytest

from sandman import names
from tests.conformance import container, direct, rootfs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    from sandman._async.sandbox import Sandbox
    from sandman._core.config import Limits
    from sandman.wire import ExecResult

NOBODY = 65534
PYTHON = [*names.DAEMON_COMMAND[:3], "-c"]
"""The one program that is in every image: the daemon's own interpreter."""
LEFT_OVER_S = 8.0
"""What a test ended may take until it is gone: five seconds of grace, and a loaded machine."""


@dataclass(frozen=True, slots=True)
class Image:
    """One kind of image, and what tests may count on in it."""

    name: str
    layers: tuple[rootfs.Root, ...]
    uids: tuple[int, ...] = (0, NOBODY)
    shell: str | None = "sh"
    has_tools: bool = True  # ps, sleep, seq, head, wc …
    read_only: bool = False
    workdir: str = "/"


@dataclass(frozen=True, slots=True)
class Cell:
    """An image, and who the daemon is in it."""

    image: Image
    uid: int

    @property
    def name(self) -> str:
        """As it stands in the names of tests."""
        return f"{self.image.name}-{self.uid}"

    @property
    def shell(self) -> str | None:
        """The shell that `run` finds."""
        return self.image.shell

    @property
    def scratch(self) -> str:
        """Where this user may write: the image's own file system where it allows that."""
        is_open = self.image.has_tools and not self.image.read_only
        return "/tmp" if is_open else container.VOLUME


IMAGES = (
    Image("debian", (rootfs.DEBIAN,), shell="bash"),
    Image("musl", (rootfs.MUSL,)),
    Image("busybox", (rootfs.BUSYBOX,)),
    # An image with a USER of its own, in a pod with a read-only root.
    Image(
        "readonly",
        (rootfs.AGENT, rootfs.DEBIAN),
        uids=(0, 1000, NOBODY),
        shell="bash",
        read_only=True,
        workdir="/home/agent",
    ),
    Image("empty", (rootfs.EMPTY,), shell=None, has_tools=False),
)
CELLS = tuple(Cell(image, uid) for image in IMAGES for uid in image.uids)
BY_NAME = {cell.name: cell for cell in CELLS}
EACH_IMAGE = [
    BY_NAME[name]
    for name in ("debian-0", "musl-65534", "busybox-0", "readonly-1000", "empty-65534")
]


def over(*cells: str, where: Callable[[Cell], bool] = lambda _: True) -> pytest.MarkDecorator:
    """Run the test with a `box` of each of these cells; without names in all that fit."""
    chosen = [BY_NAME[name] for name in cells] or [cell for cell in CELLS if where(cell)]
    return pytest.mark.parametrize(
        "box", [pytest.param(cell, id=cell.name) for cell in chosen], indirect=True
    )


def over_each_image() -> pytest.MarkDecorator:
    """One cell of each image, root and users in turn: for tests that have to wait for something."""
    return over(*(cell.name for cell in EACH_IMAGE))


def with_shell(cell: Cell) -> bool:
    """Whether the image has a shell and the usual tools."""
    return cell.shell is not None


def as_root(cell: Cell) -> bool:
    """Whether the daemon is root."""
    return cell.uid == 0


def as_user(cell: Cell) -> bool:
    """Whether the daemon is not root."""
    return cell.uid != 0


class Box:
    """A running daemon of one cell, by the sync client; `sandbox` and `files` are the real ones."""

    def __init__(self, cell: Cell, running: container.Container) -> None:
        self._stack = ExitStack()
        self.cell = cell
        self.container = running
        self.sandbox = self._stack.enter_context(direct.sandbox(running.url, container.TOKEN))
        self.files = self.sandbox.files
        self.exec = self.sandbox.exec
        self.run = self.sandbox.run
        self.http = self._stack.enter_context(
            httpx.Client(
                base_url=running.url,
                headers={"Authorization": f"Bearer {container.TOKEN}"},
                timeout=60,
                verify=False,  # spares the loading of certificates
            )
        )

    def __repr__(self) -> str:
        return f"<Box {self.cell.name}>"

    def close(self) -> None:
        """Close the connections, end the daemon."""
        self._stack.close()
        self.container.stop()

    def python(self, script: str, *args: str, **options: object) -> ExecResult:
        """Run a script by the interpreter that every image has."""
        return self.exec([*PYTHON, script, *args], **options)

    @asynccontextmanager
    async def aio(self, limits: Limits | None = None) -> AsyncIterator[Sandbox]:
        """The same sandbox by the async client."""
        async with direct.open_sandbox(self.container.url, container.TOKEN, limits) as made:
            yield made

    def new_place(self) -> str:
        """A directory of the test's own, where the daemon's user may write."""
        path = f"{self.cell.scratch}/{uuid.uuid4().hex}"
        self.files.mkdir(path)
        return path

    def wait_alone(self) -> dict[int, str]:
        """Wait until nothing but the daemon runs; what still does is told."""
        deadline = time.monotonic() + LEFT_OVER_S
        while (left := self.container.strangers()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left


def close(boxes: Iterable[Box]) -> None:
    """End all of them at once."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(Box.close, boxes))


def start(cell: Cell, runtime: Path, scratch: Path, **options: object) -> Box:
    """A daemon of this cell; see `container.Container`."""
    running = container.Container(
        scratch,
        [layer.ready() for layer in cell.image.layers],
        runtime,
        uid=cell.uid,
        read_only=cell.image.read_only,
        workdir=cell.image.workdir,
        **{"env": {"FROM_IMAGE": "yes"}, **options},
    )
    return Box(cell, running)
