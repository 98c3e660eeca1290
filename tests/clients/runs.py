"""Runs a job on either event loop, and its twin without one."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import anyio

from sandman.client import Client
from sandman.sync import Client as SyncClient
from tests.clients.jobs_async import whole as jobs
from tests.clients.jobs_sync import whole as twins

if TYPE_CHECKING:
    from pathlib import Path

BACKENDS = ("asyncio", "trio", "sync")
JOBS = [name for name, _ in inspect.getmembers(jobs, inspect.iscoroutinefunction) if name[0] != "_"]


def run(name: str, backend: str, how: dict[str, Any], image: str, here: Path) -> None:
    """Do it.

    Args:
        name: of a job.
        backend: of `BACKENDS`.
        how: what the client is made with.
        image: one that has a shell.
        here: an empty directory.
    """
    needs = {"image": image, "here": here}
    given = {
        one: needs[one] for one in inspect.signature(getattr(jobs, name)).parameters if one in needs
    }
    if backend == "sync":
        with SyncClient(**how) as client:
            getattr(twins, name)(client, **given)
        return

    async def job() -> None:
        async with Client(**how) as client:
            await getattr(jobs, name)(client, **given)

    anyio.run(job, backend=backend)
