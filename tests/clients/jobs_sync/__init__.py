# Written by scripts/unasync.py from tests/clients/jobs_async/__init__.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
