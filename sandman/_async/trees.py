"""Directories as one stream, both ways. The local side runs in worker threads, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Self

import anyio

from sandman._async.bodies import Body, Source
from sandman._core.local_trees import Receiver, Sender
from sandman._core.sources import CHUNK_BYTES

if TYPE_CHECKING:
    import os

    from sandman._async.transport import Answer
    from sandman._core.values import TreeInfo

Progress = Callable[[int, int | None], None]
"""Is told the bytes so far, and their total where it is known."""


class Tree:
    """A local directory as an iterable of bytes: its tar."""

    def __init__(self, sender: Sender, progress: Progress | None) -> None:
        self._sender = sender
        self._progress = progress
        self._done = 0

    def __aiter__(self) -> Self:
        self._done = 0
        self._sender.open()
        return self

    async def __anext__(self) -> bytes:
        data = await anyio.to_thread.run_sync(self._sender.read)
        if not data:
            raise StopAsyncIteration
        self._done += len(data)
        if self._progress is not None:
            self._progress(self._done, None)
        return data


class TreeBody(Body):
    """A directory on its way. Nobody asks for the digest of its tar, so none is made."""

    def __init__(self, sender: Sender, progress: Progress | None) -> None:
        super().__init__(Source(Tree(sender, progress)))

    async def __anext__(self) -> bytes:
        data = await self.source.read()
        if not data:
            raise StopAsyncIteration
        return data


async def save(
    answer: Answer,
    local: str | os.PathLike[str],
    max_bytes: int | None,
    sandbox: str,
    progress: Progress | None,
) -> TreeInfo:
    """Unpack the answer's tar. An error leaves what was whole by then."""
    receiver = Receiver(local, max_bytes, sandbox)
    done, batch = 0, bytearray()
    try:
        await anyio.to_thread.run_sync(receiver.open)
        async for chunk in answer.chunks:
            done += len(chunk)
            batch += chunk
            if len(batch) >= CHUNK_BYTES:
                await anyio.to_thread.run_sync(receiver.feed, batch)
                batch = bytearray()
                if progress is not None:
                    progress(done, None)
        await anyio.to_thread.run_sync(receiver.feed, batch)
        info = await anyio.to_thread.run_sync(receiver.finish)
        if progress is not None:
            progress(done, done)
        return info
    finally:
        receiver.close()
