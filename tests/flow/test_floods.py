"""Malformed requests to a gateway, a webhook and a daemon that run as their programs start them, some thousand here;
`make fuzz-malformed` goes on to 100,000."""

from __future__ import annotations

import os

import pytest

from tests.flood import kinds, run

COUNT = int(os.environ.get("SANDMAN_TEST_FLOOD", "3000"))
SEED = 20261130
AIM = kinds.Aim("t", (("/v1/exec", {"argv": ["true"]}),), ("/v1/info",), ("/v1/x/terminal",))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_flood_of_malformed_requests_is_refused_and_honest_callers_notice_nothing():
    reports = run.run(SEED, COUNT)
    assert [one.name for one in reports] == ["gateway", "webhook", "daemon"]
    for one in reports:
        sent = {kind for kind, _ in one.answers}
        assert sent >= set(kinds.KINDS) - {"bad_socket"}
        assert one.honest >= 20


def test_a_request_is_the_same_whenever_it_is_made():
    made = [kinds.some(AIM, 1, "daemon", number) for number in range(400)]
    assert made == [kinds.some(AIM, 1, "daemon", number) for number in range(400)]
    assert {one.kind for one in made} == set(kinds.KINDS)
    assert made[0] != kinds.some(AIM, 2, "daemon", 0)


def test_without_websockets_none_is_asked_for():
    made = {kinds.some(AIM._replace(sockets=()), 1, "x", number).kind for number in range(400)}
    assert made == set(kinds.KINDS) - {"bad_socket"}
