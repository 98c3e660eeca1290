"""Each job of a client on asyncio, on trio and without a loop, against the real cluster."""

from __future__ import annotations

import pytest

from tests.clients import runs


@pytest.mark.parametrize("backend", runs.BACKENDS)
@pytest.mark.parametrize("job", runs.JOBS)
def test_a_job_is_done(sandman, job, backend, tmp_path):
    made = sandman.installation
    how = {
        "url": made.url,
        "token": made.token,
        "ca": made.ca,
        "server_name": made.server_name,
    }
    runs.run(job, backend, how, sandman.image("debian"), tmp_path)
    sandman.wait_nothing_leased()
