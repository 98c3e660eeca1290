"""What SWE-ReX's own tests ask for. Copied beside them: their distribution comes without it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest
from swerex.runtime.abstract import (
    BashAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
)
from swerex.runtime.remote import RemoteRuntime

TEST_API_KEY = os.environ["SWEREX_TOKEN"]


class _Action(BashAction):
    timeout: float | None = 20


class _Command(Command):
    timeout: float | None = 20


def _patient(_: RemoteRuntime, timeout: float | None = None) -> float:
    """It waits for 0.15 s, which is short on a machine under load."""
    return 30.0 if timeout is None else timeout


RemoteRuntime._get_timeout = _patient


@dataclass
class RemoteServer:
    """Where the server is."""

    port: int
    headers: dict[str, str] = field(default_factory=lambda: {"X-API-Key": TEST_API_KEY})


@pytest.fixture
def remote_server() -> RemoteServer:
    return RemoteServer(int(os.environ["SWEREX_PORT"]))


@pytest.fixture
async def remote_runtime(remote_server):
    runtime = RemoteRuntime(port=remote_server.port, auth_token=TEST_API_KEY)
    yield runtime
    await runtime.close()


@pytest.fixture
async def runtime_with_default_session(remote_runtime):
    await remote_runtime.create_session(CreateBashSessionRequest())
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())
