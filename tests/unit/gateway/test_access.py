"""Asking the API server what a caller may: as whom, for how long the answer holds, and that no answer is no."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from gateway import access
from gateway.access import Access
from gateway.model import Identity
from sandman.errors import InternalError, UnreachableError
from sandman.service import kube

ALICE = Identity("alice", ("dev",))


@pytest.fixture
def clock():
    return MockClock(autojump_threshold=0)


class Reviews:
    """An API server that judges by what it is told, and keeps what it was asked."""

    def __init__(self, verdict) -> None:
        self.verdict = verdict
        self.asked: list[dict] = []

    async def create(self, resource, body):
        assert resource is kube.SUBJECT_ACCESS_REVIEWS
        self.asked.append(body["spec"])
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return {"status": self.verdict}


async def test_it_asks_as_the_caller_for_that_pod_and_nothing_else(clock):
    api = Reviews({"allowed": True})
    assert await Access(api).may_exec(ALICE, "shop", "web-1")
    assert api.asked == [
        {
            "user": "alice",
            "groups": ["dev", "system:authenticated"],
            "resourceAttributes": {
                "namespace": "shop", "verb": "create", "version": "v1", "resource": "pods",
                "subresource": "exec", "name": "web-1",
            },
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    "verdict", [{"allowed": False}, {}, {"allowed": "true"}, {"allowed": True, "denied": True}]
)
async def test_only_a_clear_yes_is_one(clock, verdict):
    assert not await Access(Reviews(verdict)).may_exec(ALICE, "shop")


async def test_a_verdict_holds_for_seconds_and_for_nothing_else(clock):
    api = Reviews({"allowed": True})
    one = Access(api)
    for _ in range(2):
        assert await one.may_exec(ALICE, "shop")
    assert len(api.asked) == 1
    api.verdict = {"allowed": False}
    assert not await one.may_exec(ALICE, "shop", "web")
    assert not await one.may_exec(ALICE, "other")
    assert not await one.may_exec(Identity("alice"), "shop")
    clock.jump(access.VERDICT_S)
    assert not await one.may_exec(ALICE, "shop")


async def test_the_verdicts_that_are_kept_have_a_bound(clock, monkeypatch):
    monkeypatch.setattr(access, "VERDICTS_MAX", 2)
    api = Reviews({"allowed": True})
    one = Access(api)
    for namespace in ("a", "b", "c", "a"):
        await one.may_exec(ALICE, namespace)
    assert len(api.asked) == 4
    assert len(one._verdicts) == 2


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (kube.UnavailableError("away"), UnreachableError),
        (kube.ForbiddenError("no", status=403), InternalError),
    ],
)
async def test_no_verdict_is_an_error(clock, failure, error):
    with pytest.raises(error):
        await Access(Reviews(failure)).may_exec(ALICE, "shop")


def test_groups_that_everybody_has():
    robot = Identity("system:serviceaccount:ci:runner", ("system:authenticated",))
    assert access.groups(robot) == (
        "system:authenticated", "system:serviceaccounts", "system:serviceaccounts:ci",
    )  # fmt: skip
