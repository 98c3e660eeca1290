# Written by scripts/unasync.py from tests/unit/client/twins_async/test_lifecycle.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Sandboxes come and go: options, retries under one key, release whatever happens."""

from __future__ import annotations

import logging

import pytest

from sandman import errors
from sandman.sync import Client, Limits, PoolInfo, Retry
from tests.unit.client.fake_gateway import (
    TOKEN,
    FakeGateway,
    answer,
    cut,
    drop,
    drop_after,
    hang,
    problem,
)

CREATE = "POST /v1/sandboxes"


def test_a_block_releases_its_sandbox(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        with client.sandbox(image="img:1", run="r1", labels={"a": "b"}) as box:
            assert (box.info.image, box.info.run, box.info.labels) == ("img:1", "r1", {"a": "b"})
            assert (box.info.tier, box.info.timings["claim_ms"]) == ("warm", 8.0)
            assert box.info.token == "sbt_x"
            assert "sbt_x" not in repr(box) + repr(box.info)
            assert list(gateway.sandboxes) == [box.id]
        assert gateway.released
        with pytest.raises(ZeroDivisionError):
            with client.sandbox():
                raise ZeroDivisionError
        assert gateway.released


@pytest.mark.parametrize("key", ["", "a\nb", "\u00e9", " a", "x" * 201])
def test_a_key_that_cannot_be_a_header_is_refused_at_once(gateway, key) -> None:
    with Client(gateway.url, TOKEN) as client:
        with pytest.raises(errors.BadRequestError, match="idempotency_key"):
            client.create(idempotency_key=key)
    assert gateway.requests == []


def test_options_travel(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        with client.sandbox():
            pass
        body = gateway.requests[0].json()
        own_run = body.pop("run")
        assert body == {"wait_s": 20.0, "lease": {"ttl_s": 300.0, "run": True}}
        key = gateway.requests[0].headers["idempotency-key"]
        with client.sandbox(
            image="i", pool="p", resources={"cpu": "500m", "memory": "2Gi"}, node_class="gpu",
            env={"A": "1"}, workdir="/w", user="u", run="r",
            labels={"l": "m"}, ttl_s=20, idle_s=30, max_s=60, owner="job", wait_s=5,
            idempotency_key="mine",
        ) as box:  # fmt: skip
            assert box.info.resources == {"cpu": "500m", "memory": "2Gi"}
        assert gateway.requests[-2].json() == {
            "image": "i", "pool": "p", "resources": {"cpu": "500m", "memory": "2Gi"},
            "node_class": "gpu", "env": {"A": "1"}, "workdir": "/w", "user": "u", "run": "r",
            "labels": {"l": "m"}, "wait_s": 5, "owner": {"kind": "Job", "name": "job"},
            "lease": {"ttl_s": 20, "idle_s": 30, "max_s": 60, "run": True},
        }  # fmt: skip
        assert gateway.requests[-2].headers["idempotency-key"] == "mine" != key
        # Those that are given no run share one, and a key's is the key's, in the next process too.
        for options, run in (({}, own_run), ({"idempotency_key": "k"}, None)):
            with client.sandbox(**options):
                pass
            found = gateway.requests[-2].json()["run"]
            assert found == (run or "key-8254c329a92850f6d539dd376f4816ee")
        for options, lease in (({}, None), ({"ttl_s": 9, "idle_s": 8}, {"ttl_s": 9, "idle_s": 8})):
            with client.sandbox(heartbeat=False, **options):
                pass
            body = gateway.requests[-2].json()
            assert (body.get("lease"), "run" in body) == (lease, False)
        with pytest.raises(TypeError, match="imagee"):
            client.create(imagee="x")  # type: ignore[call-arg]


def test_without_a_block(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        one = client.create(image="i", run="a")
        two = client.create(image="i", run="b")
        assert [box.id for box in client.list()] == [one.id, two.id]
        assert [box.id for box in client.list(run="b")] == [two.id]
        again = client.get(one.id)
        assert (again.id, again.info.state, again.info.token) == (one.id, "ready", None)
        assert (client.attach(two.id).exec(["true"])).ok
        one.release()
        one.release()
        assert client.release_run("b") == 1
        client.release("never-was")
        assert gateway.released
        with pytest.raises(errors.NotFoundError) as caught:
            client.get(one.id)
        assert caught.value.sandbox == one.id
        pool = PoolInfo(name="root", image="default", free=3, leased=1, wanted=4, resize=True)
        assert client.pools() == [pool]
        assert gateway.url in repr(client)


def test_a_lost_answer_does_not_cost_a_second_sandbox(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        gateway.plan(CREATE, drop_after)
        with client.sandbox(image="i") as box:
            assert gateway.created == 1
            assert list(gateway.sandboxes) == [box.id]
        first, second = gateway.requests[0], gateway.requests[1]
        assert first.body == second.body
        assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert gateway.released


PASSING = {
    "hang-up": drop,
    "proxy 502": answer(502, b"bad gateway"),
    "proxy 503": answer(503, b"<html>", content_type="text/html"),
    "proxy 504": answer(504),
    "proxy 429": answer(429),
    "capacity": problem(errors.CapacityError("full")),
    "quota": problem(errors.QuotaError("yours")),
    "unreachable": problem(errors.UnreachableError("gone")),
    "pull": problem(errors.ImagePullError("throttled")),
}


@pytest.mark.parametrize("case", PASSING)
def test_what_may_pass_is_retried_and_told(gateway: FakeGateway, case: str, caplog) -> None:
    told: list[Retry] = []
    with Client(gateway.url, TOKEN, on_retry=told.append) as client:
        gateway.plan(CREATE, PASSING[case], PASSING[case])
        with caplog.at_level(logging.INFO, "sandman"):
            with client.sandbox():
                pass
    assert [(retry.call, retry.attempt) for retry in told] == [(CREATE, 1), (CREATE, 2)]
    assert [retry.pause_s for retry in told] == [0.05, 0.1]
    assert len([r for r in caplog.records if r.name == "sandman"]) == 2
    assert gateway.created == 1


LASTING = {
    "bad request": (problem(errors.BadRequestError("x", field="image")), errors.BadRequestError),
    "image": (problem(errors.ImageNotFoundError("x")), errors.ImageNotFoundError),
    "internal": (problem(errors.InternalError("x")), errors.InternalError),
    "unknown reason": (
        answer(418, b'{"reason": "teapot", "detail": "short"}', content_type="application/json"),
        errors.InternalError,
    ),
    "proxy 400": (answer(400), errors.BadRequestError),
    "proxy 401": (answer(401), errors.UnauthenticatedError),
    "proxy 403": (answer(403), errors.ForbiddenError),
    "proxy 404": (answer(404, b"not found"), errors.NotFoundError),
    "proxy 413": (answer(413), errors.TooLargeError),
    "proxy 418": (answer(418), errors.CallerError),
    "proxy 500": (answer(500), errors.InternalError),
    "other JSON": (answer(400, b"[]", content_type="application/json"), errors.BadRequestError),
    "broken JSON": (answer(403, b"{", content_type="application/json"), errors.ForbiddenError),
    "redirect": (answer(302, location="https://login.example"), errors.BadRequestError),
    "html": (answer(200, b"<html>", content_type="text/html"), errors.InternalError),
    "no id": (answer(201, b"{}", content_type="application/json"), errors.InternalError),
    "endless": (answer(500, b"x" * 3_000_000), errors.InternalError),
}


@pytest.mark.parametrize("case", LASTING)
def test_what_will_not_pass_is_raised_at_once(gateway: FakeGateway, case: str) -> None:
    action, kind = LASTING[case]
    with Client(gateway.url, TOKEN) as client:
        gateway.plan(CREATE, action)
        with pytest.raises(kind) as caught:
            client.create()
        assert type(caught.value) is kind
        assert gateway.created == 0
        assert len(gateway.requests) == 1
        client.release(_id(client))


def _id(client: Client) -> str:
    return (client.create()).id


def test_retry_after_is_honoured_within_the_wait(gateway: FakeGateway) -> None:
    told: list[Retry] = []
    with Client(gateway.url, TOKEN, on_retry=told.append) as client:
        gateway.plan(CREATE, problem(errors.CapacityError("full", retry_after=1)))
        client.create()
        assert [retry.pause_s for retry in told] == [1.0]
        gateway.plan(CREATE, answer(429, retry_after="1"))
        client.create()
        assert told[1].pause_s == 1.0
        # An hour is not within wait_s: the error comes now, not in wait_s seconds.
        gateway.plan(CREATE, problem(errors.CapacityError("full", retry_after=3600)))
        with pytest.raises(errors.CapacityError) as caught:
            client.create(wait_s=30)
        assert caught.value.retry_after == 3600
        assert caught.value.facts["attempts"] == 1


def test_the_last_error_is_raised_when_the_wait_is_over(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        gateway.plan(CREATE, *[problem(errors.CapacityError("full"))] * 20)
        with pytest.raises(errors.CapacityError) as caught:
            client.create(wait_s=0.4)
        assert caught.value.facts["attempts"] in {3, 4}


def test_a_release_that_fails_at_a_blocks_end_is_logged(
    gateway: FakeGateway, monkeypatch, caplog
) -> None:
    monkeypatch.setattr("sandman._sync.sandbox.RELEASE_LIMIT_S", 0.2)
    with Client(gateway.url, TOKEN) as client:
        gateway.plan("DELETE", *[answer(503)] * 20)
        with client.sandbox() as box:
            pass
        assert f"{box.id} is left to its lease" in caplog.text
        with pytest.raises(errors.UnreachableError):
            box.release()


def test_answers_of_another_shape_are_named(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        gateway.plan("GET", *[answer(200, b"[3]")] * 2)
        with pytest.raises(errors.InternalError, match="list of sandboxes"):
            client.list()
        with pytest.raises(errors.InternalError, match="list of pools"):
            client.pools()
        gateway.plan("DELETE", answer(200, b"{}"))
        with pytest.raises(errors.InternalError, match="a count"):
            client.release_run("r")


def test_a_wrong_token_says_so(gateway: FakeGateway) -> None:
    with Client(gateway.url, "other") as client:
        with pytest.raises(errors.UnauthenticatedError):
            client.list()


def test_a_silent_gateway_is_unreachable(gateway: FakeGateway, monkeypatch) -> None:
    monkeypatch.setattr("sandman._sync.client.REPLY_MARGIN_S", 0.1)
    with Client(gateway.url, TOKEN, limits=Limits(silence_s=0.2, retry_s=0.1)) as client:
        gateway.plan("GET", hang)
        with pytest.raises(errors.UnreachableError, match="fell silent"):
            client.pools()
        gateway.plan(CREATE, *[hang] * 3)
        with pytest.raises(errors.UnreachableError, match="fell silent"):
            client.create(wait_s=0.2)


def test_an_answer_that_breaks_off_is_as_good_as_none(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN, limits=Limits(retry_s=0.2)) as client:
        gateway.plan("GET", cut)
        assert len(client.pools()) == 1
        gateway.plan("GET", *[cut] * 9)
        with pytest.raises(errors.UnreachableError, match="broke"):
            client.pools()


def test_releases_do_not_cost_connections(gateway: FakeGateway) -> None:
    """An answer without a body ends with its head: the next call need not shake hands anew."""
    with Client(gateway.url, TOKEN) as client:
        for _ in range(3):
            with client.sandbox(heartbeat=False):
                pass
        assert gateway.connections == 1


def test_refusals_do_not_cost_connections(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        for _ in range(5):
            with pytest.raises(errors.NotFoundError):
                client.get("nope")
        gateway.plan(CREATE, problem(errors.CapacityError("full")))
        client.create()
        assert gateway.connections == 1
        assert repr(client._transport._lanes) == "<Lanes idle=1>"


def test_connections_that_idled_too_long_are_not_used(gateway: FakeGateway) -> None:
    with (
        Client(gateway.url, TOKEN, limits=Limits(idle_s=0.0)) as client,
        client.sandbox() as box,
    ):
        with box.stream(["true"]) as one, box.stream(["true"]) as two:
            one.wait()
            two.wait()
        before = gateway.connections
        client.pools()
        client.pools()
        assert gateway.connections == before + 2
        assert repr(client._transport._lanes) == "<Lanes idle=1>"


def test_a_broken_idle_connection_is_replaced(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        gateway.hang_up_all()
        assert (box.exec(["true"])).ok


def test_a_client_closed_during_a_call_closes_that_connection_after_it(
    gateway: FakeGateway,
) -> None:
    client = Client(gateway.url, TOKEN)
    box = client.create()
    with box.stream(["echo", "a"]) as stream:
        client.close()
        assert (stream.wait()).ok
    assert repr(client._transport._lanes) == "<Lanes idle=0>"


def test_steps_of_a_preparation_travel_with_bytes_as_base64(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        client.create(
            prepare=[
                {"exec": {"argv": ["make"], "timeout_s": 5}},
                {"file": {"path": "/a", "content": b"\x00\xff", "mode": "0600"}},
                {"file": {"path": "/b", "content": "text"}},
                {"archive": {"path": "/c", "tar": bytearray(b"tar")}},
            ],
        )
    assert gateway.requests[0].json()["prepare"] == [
        {"exec": {"argv": ["make"], "timeout_s": 5}},
        {"file": {"path": "/a", "content_b64": "AP8=", "mode": "0600"}},
        {"file": {"path": "/b", "content": "text"}},
        {"archive": {"path": "/c", "tar_b64": "dGFy"}},
    ]


def test_a_renewal_says_until_when(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        assert box.renew() == "2026-11-30T12:00:00Z"
        gateway.plan(f"POST /v1/sandboxes/{box.id}/renew", answer(200, b'{"expires_at": null}'))
        assert box.renew() is None
        gateway.plan(f"POST /v1/sandboxes/{box.id}/renew", answer(200, b"[]"))
        with pytest.raises(errors.InternalError):
            box.renew()


def test_another_network_comes_with_what_was_probed(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client, client.sandbox(network="model") as box:
        assert gateway.requests[0].json()["network"] == "model"
        applied = box.set_network("open", wait_s=5.0)
        assert (applied.network, applied.took_ms) == ("open", 12.5)
        assert applied.probes == [
            {"what": "10.0.0.1:443", "expected": "open", "outcome": "reachable"}
        ]
        sent = next(one for one in gateway.requests if one.method == "PUT")
        assert sent.json() == {"network": "open", "wait_s": 5.0}
        path = f"PUT /v1/sandboxes/{box.id}/network"
        for nonsense in (b"[]", b'{"applied": false, "probes": []}', b'{"applied": true}'):
            gateway.plan(path, answer(200, nonsense))
            with pytest.raises(errors.InternalError):
                box.set_network("open")
        gateway.plan(path, problem(errors.NetworkDeniedError("not here")))
        with pytest.raises(errors.NetworkDeniedError, match="not here"):
            box.set_network("open")


def test_what_has_ended_is_listed_with_its_reason(gateway: FakeGateway) -> None:
    with Client(gateway.url, TOKEN) as client:
        with client.sandbox(run="r1") as box:
            assert client.list("r1", ended=True) == []
        assert client.list("r1") == []
        [gone] = client.list("r1", ended=True)
        assert gone.id == box.id
        assert gone.info.ended is not None
        assert gone.info.ended["reason"] == "released"
        assert [one.id for one in client.list(ended=True)] == [box.id]


ATTACH = "POST /v1/sandboxes/attach"
ATTACHED = b'{"id":"sandman-attached-x-1","tier":"attached","boot_id":"b"}'


def test_a_workload_is_attached_to_under_one_key(gateway: FakeGateway) -> None:
    gateway.plan(ATTACH, drop, answer(201, ATTACHED))
    with Client(gateway.url, TOKEN) as client:
        box = client.attach_workload(
            "shop", selector={"app": "web"}, run="r", env={"A": "1"}, max_s=60
        )
        assert (box.id, box.info.tier) == ("sandman-attached-x-1", "attached")
        first, second = gateway.requests
        assert first.json() == {
            "namespace": "shop", "selector": {"app": "web"}, "run": "r", "env": {"A": "1"},
            "lease": {"ttl_s": 300.0, "max_s": 60, "run": True},
        }  # fmt: skip
        assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
        assert "r" in repr(client._heart)


def test_an_attachment_that_outlives_its_process(gateway: FakeGateway) -> None:
    gateway.plan(ATTACH, answer(201, ATTACHED), answer(201, ATTACHED))
    with Client(gateway.url, TOKEN) as client:
        client.attach_workload("shop", "web", heartbeat=False)
        client.attach_workload("shop", "web", heartbeat=False, ttl_s=9, idle_s=8)
        first, second = gateway.requests
        assert first.json() == {"namespace": "shop", "pod": "web"}
        assert second.json() == {
            "namespace": "shop", "pod": "web", "lease": {"ttl_s": 9, "idle_s": 8},
        }  # fmt: skip
        assert not client._heart.beats


def test_workloads_are_listed(gateway: FakeGateway) -> None:
    gateway.plan("GET /v1/sandboxes", answer(200, b'{"attachable":[{"pod":"web"}]}'))
    with Client(gateway.url, TOKEN) as client:
        assert client.workloads("a b") == [{"pod": "web"}]
        assert gateway.requests[0].target == "/v1/sandboxes?attachable=1&namespace=a%20b"
