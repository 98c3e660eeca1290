"""What the gateway says of itself is so: schemathesis asks a live one, in a short form that is always the same."""

from __future__ import annotations

import re

import httpx
import pytest

from gateway.openapi.document import OPERATIONS, document
from tests.flow.local_mode import running
from tests.openapi import run

EXAMPLES = 6
"""Calls of each operation."""


@pytest.mark.timeout(300)
def test_a_live_gateway_answers_as_it_describes(tmp_path):
    done = run.fuzz(
        tmp_path,
        "--phases=fuzzing", "--generation-deterministic", f"--max-examples={EXAMPLES}",
        timeout_s=280, capture=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:]
    # That it asked anything at all.
    assert int(re.search(r"(\d+) generated", done.stdout)[1]) >= 200, done.stdout[-2000:]


def test_it_is_served_to_anybody_and_all_else_wants_a_token(tmp_path):
    with (
        running(tmp_path) as one,
        httpx.Client(base_url=one.connection.url, verify=one.connection.trust()) as http,
    ):
        assert http.get("/v1/openapi.json").json() == document()
        for operation in OPERATIONS:
            answer = http.request(operation.method, re.sub(r"{\w+}", "1", operation.path))
            # Who comes too often without one is told to wait.
            assert operation.is_open or answer.status_code in {401, 429}, operation.name
            assert not operation.is_open or answer.status_code == 200, operation.name
