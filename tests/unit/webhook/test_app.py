"""The webhook's HTTP, in process."""

from __future__ import annotations

import base64
import json
import re

import httpx
import pytest

from sandman import names
from tests.unit.webhook import pods, rfc6902
from tests.unit.webhook.test_review import body
from webhook import app, inject
from webhook.metrics import Metrics


class Door:
    """The application with its parts in reach."""

    def __init__(self) -> None:
        self.keyring = pods.KEYRING
        self.reason = ""
        self.nonces = iter(f"n{i}" for i in range(100))
        parts = app.Parts(
            settings=pods.SETTINGS,
            keyring=lambda: self.keyring,
            make_nonce=lambda: next(self.nonces),
            why_not_ready=lambda: self.reason,
            certificate_not_after=lambda: 1796083200.0,
            metrics=Metrics(),
        )
        transport = httpx.ASGITransport(app.build(parts), raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="https://webhook.test")

    async def mutate(self, content: bytes) -> httpx.Response:
        return await self.http.post("/mutate", content=content)


@pytest.fixture
def door() -> Door:
    return Door()


def patch(answer: httpx.Response) -> list[dict[str, object]]:
    return json.loads(base64.b64decode(answer.json()["response"]["patch"]))


async def test_a_pool_pod_is_injected_with_a_nonce_of_its_own_each_time(door):
    nonces = []
    for _ in range(2):
        answer = await door.mutate(body())
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["response"]["uid"] == "u1"
        result = rfc6902.apply(pods.pod(), patch(answer))
        nonces.append(result["metadata"]["annotations"][names.ANNOTATION_NONCE])
    assert nonces == ["n0", "n1"]


async def test_a_dry_run_is_answered_alike(door):
    answer = await door.mutate(body(dryRun=True))
    wet = await Door().mutate(body())
    assert answer.json() == wet.json()


async def test_the_namespace_of_the_request_counts_not_the_pods_own(door):
    document = pods.pod()
    document["metadata"]["namespace"] = "elsewhere"
    result = rfc6902.apply(document, patch(await door.mutate(body(object=document))))
    digest = result["spec"]["containers"][0]["env"][0]["value"]
    assert digest == inject.credential(pods.KEYRING, "boxes", "n0").digest


async def test_what_asks_for_nothing_gets_nothing(door):
    document = pods.pod()
    document["metadata"]["labels"] = {}
    for content in (body(object=document), body(operation="DELETE", object=None)):
        answer = await door.mutate(content)
        assert answer.json()["response"] == {"uid": "u1", "allowed": True}


async def test_a_refusal_tells_the_reason(door):
    answer = await door.mutate(body(object=pods.pod(hostPID=True)))
    assert answer.status_code == 200
    response = answer.json()["response"]
    assert response["allowed"] is False
    assert response["status"]["message"].startswith("not injected: hostPID opens the node")


async def test_what_is_malformed_is_a_bad_request(door):
    answer = await door.mutate(b"{}")
    assert answer.status_code == 400
    assert "not an AdmissionReview" in answer.text


async def test_without_a_key_pods_wait_and_others_pass(door):
    door.keyring = None
    answer = await door.mutate(body())
    assert answer.status_code == 500
    assert "try again" in answer.text
    assert (await door.mutate(body(operation="UPDATE"))).status_code == 200


async def test_a_fault_of_ours_is_a_500_with_its_name(door):
    door.nonces = iter(())
    answer = await door.mutate(body())
    assert answer.status_code == 500
    assert answer.text.startswith("the webhook failed: StopIteration")


async def test_health_is_not_readiness(door):
    door.reason = "no key"
    assert (await door.http.get("/healthz")).text == "ok"
    answer = await door.http.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "no key")
    door.reason = ""
    assert (await door.http.get("/readyz")).status_code == 200


async def test_outcomes_are_counted(door):
    for content in (body(), body(operation="UPDATE"), body(object=pods.pod(hostPID=True)), b"x"):
        await door.mutate(content)
    text = (await door.http.get("/metrics")).text
    counted = dict(re.findall(r'sandman_webhook_reviews_total\{outcome="(\w+)"\} (\S+)', text))
    assert counted == {"injected": "1.0", "passed": "1.0", "refused": "1.0", "malformed": "1.0"}
    assert "sandman_webhook_certificate_not_after_seconds 1.7960832e+09" in text
    assert "sandman_webhook_review_seconds_count 4.0" in text


async def test_only_post_mutates(door):
    assert (await door.http.get("/mutate")).status_code == 405
