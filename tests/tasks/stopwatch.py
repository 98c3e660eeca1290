"""Seconds by step, and a line to a log about each."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from contextlib import AbstractAsyncContextManager

Log = Callable[[str], None]
T = TypeVar("T")


class Stopwatch:
    """Keeps how long each step took; a step of a name that was there before adds to it."""

    def __init__(self, log: Log | None = None) -> None:
        self.log = log or (lambda _line: None)
        self.seconds: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Stopwatch {self.seconds}>"

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what happens inside; a step that fails is timed as well."""
        start = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + took
            self.log(f"{name}: {took:.2f} s")

    @asynccontextmanager
    async def around(self, name: str, thing: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
        """Enter a context, timing only how long it takes to enter."""
        start = time.perf_counter()
        async with thing as entered:
            self.seconds[name] = took = time.perf_counter() - start
            self.log(f"{name}: {took:.2f} s")
            yield entered
