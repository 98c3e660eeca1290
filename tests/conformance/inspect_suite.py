"""inspect_ai's own checks of a sandbox, on the daemon that the environment names.

Collected by a pytest of its own, in the virtual environment that `inspect_run` makes: the name of this file
keeps it from ours.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from inspect_ai.util._sandbox.self_check import *  # noqa: F403 - how inspect_ai hands them out

from tests.conformance import direct
from tests.conformance.inspect_adapter import Environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EXPECTED = set(filter(None, os.environ["CONFORMANCE_EXPECTED_FAILURES"].split(",")))


@pytest.fixture
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[Environment]:
    """The sandbox, under the name that the checks ask for."""
    if request.node.originalname in EXPECTED:
        request.applymarker(pytest.mark.xfail(strict=True, reason="root, or no root, by design"))
    url, token = os.environ["CONFORMANCE_URL"], os.environ["CONFORMANCE_TOKEN"]
    async with direct.open_sandbox(url, token) as sandbox:
        yield Environment(sandbox)
