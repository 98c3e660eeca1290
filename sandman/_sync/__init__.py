# Written by scripts/unasync.py from sandman/_async/__init__.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""The client over anyio: runs on asyncio and on trio alike.

The source of both twins: `scripts/unasync.py` writes `sandman/_sync` from here. Nothing here may
import asyncio or trio, or use a name of anyio that `sandman._core.blocking` does not have.
"""
