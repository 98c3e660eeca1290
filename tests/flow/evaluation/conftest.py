"""A gateway of local mode to evaluate with, for a module; each test's client leaves no sandbox behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.flow.local_mode import Gateway, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sandman import Client


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("state"), most=12) as one:
        yield one


@pytest.fixture
async def client(whole) -> AsyncIterator[Client]:
    async with whole.bed() as bed:
        yield bed.sandman
        await bed.release_all()
