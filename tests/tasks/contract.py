"""What the scenario asks of a client: the part of `sandman.client.Client` that it uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from sandman.wire import ExecResult


class Files(Protocol):
    """Files of a sandbox, whole, by absolute path."""

    async def write(self, path: str, data: bytes, /, *, mode: int = ...) -> object:
        """Write a file; directories above it are made."""

    async def read(self, path: str, /) -> bytes:
        """A file's bytes; PathNotFoundError when it is not there."""


class Box(Protocol):
    """A sandbox."""

    @property
    def files(self) -> Files:
        """Its files."""

    async def exec(
        self,
        argv: list[str],
        /,
        *,
        cwd: str = ...,
        env: Mapping[str, str] = ...,
        timeout_s: float = ...,
    ) -> ExecResult:
        """Run a program to its end."""

    async def run(self, command: str, /, *, cwd: str = ..., timeout_s: float = ...) -> ExecResult:
        """Run a string by the image's shell."""


class Client(Protocol):
    """Gives sandboxes, each released when its context ends."""

    def sandbox(
        self, *, image: str, pool: str = ..., run: str = ...
    ) -> AbstractAsyncContextManager[Box]:
        """A fresh sandbox."""
