"""Each job of a client on asyncio, on trio and without a loop, against local mode."""

from __future__ import annotations

import ssl

import pytest

from tests.clients import runs
from tests.flow.local_mode import running

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def how(tmp_path_factory):
    with running(tmp_path_factory.mktemp("state"), free=2, most=20) as one:
        trust = ssl.create_default_context(cadata=one.connection.ca)
        yield {"url": one.connection.url, "token": one.connection.token, "ca": trust}


@pytest.mark.parametrize("backend", runs.BACKENDS)
@pytest.mark.parametrize("job", runs.JOBS)
def test_a_job_is_done(how, job, backend, tmp_path):
    runs.run(job, backend, how, "registry.test/task:1", tmp_path)


def test_there_are_jobs():
    assert runs.JOBS == ["ahead", "commands", "ends", "files", "several"]
