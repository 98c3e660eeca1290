"""Local mode does as a cluster does: the flow tests of files, commands, shells, terminals and ports, on its sandboxes.

Without namespaces, since the tests look at the files of their sandboxes from outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.flow.local_mode import Gateway, running
from tests.flow.test_files import *  # noqa: F403
from tests.flow.test_ports import *  # noqa: F403
from tests.flow.test_processes import *  # noqa: F403
from tests.flow.test_sessions import *  # noqa: F403
from tests.flow.test_terminals import *  # noqa: F403

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.flow.conftest import Bed


@pytest.fixture(scope="module")
def local_gateway(tmp_path_factory) -> Iterator[Gateway]:
    with running(tmp_path_factory.mktemp("local"), {"namespaces": "a test says so"}) as one:
        yield one


@pytest.fixture
async def bed(local_gateway) -> AsyncIterator[Bed]:
    async with local_gateway.bed() as one:
        yield one
        await one.release_all()


# What dies there dies by the test's own word to the registry.
del test_a_server_that_ends_its_websocket_rudely_and_a_sandbox_that_dies  # noqa: F821
