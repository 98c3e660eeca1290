"""Runs an async test on asyncio and on trio; `scripts/unasync.py` drops it for the sync twin."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING

import anyio
import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def on_backends(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A sync test with one more parameter: on which loop it runs."""

    @functools.wraps(test)
    def run(*, backend: str, **arguments: object) -> None:
        anyio.run(functools.partial(test, **arguments), backend=backend)

    signature = inspect.signature(test)
    backend = inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), backend]
    )
    return pytest.mark.parametrize("backend", ["asyncio", "trio"])(run)
