"""The client against a real HTTP server: what it sends, what it makes of answers, when it tries again."""

from __future__ import annotations

import pytest
import trio

from sandman.service import kube
from sandman.service.kube import client, retry
from tests.unit.service.fake_api import Answer, pod, serving, status


async def test_get_reads_a_typed_subset():
    async with serving() as (api, client):
        found = await client.get(kube.PODS, "a", namespace="x")
        assert isinstance(found, kube.Pod)
        assert (found.metadata.uid, found.status.pod_ip, found.spec.node_name) == (
            "uid-a", "10.0.0.1", "n1",
        )  # fmt: skip
        assert api.seen[0].path == "/api/v1/namespaces/x/pods/a"
        assert "authorization" not in api.seen[0].headers
        raw = await client.get(kube.as_raw(kube.PODS), "a", namespace="x")
        assert raw["metadata"]["managedFields"] == [{"manager": "m"}]


async def test_a_subresource_and_a_plain_path():
    async with serving() as (api, client):
        await client.get(kube.PODS, "a", namespace="x", subresource="status")
        await client.get_path("/version")
        assert [seen.path for seen in api.seen] == [
            "/api/v1/namespaces/x/pods/a/status", "/version",
        ]  # fmt: skip


async def test_list_reads_all_pages():
    def handler(seen):
        at = int(seen.params.get("continue", "0"))
        token = str(at + 2) if at + 2 < 5 else ""
        items = [pod(f"p{n}") for n in range(at, min(at + 2, 5))]
        return Answer(
            body={"metadata": {"resourceVersion": "7", "continue": token}, "items": items}
        )

    async with serving() as (api, client):
        api.handler = handler
        found = await client.list(
            kube.PODS,
            namespace="x",
            label_selector="a=b",
            field_selector="c=d",
            resource_version="0",
        )
        assert [item.metadata.name for item in found.items] == ["p0", "p1", "p2", "p3", "p4"]
        assert found.resource_version == "7"
        first, second, _ = (seen.params for seen in api.seen)
        assert first == {
            "labelSelector": "a=b", "fieldSelector": "c=d", "limit": "500", "resourceVersion": "0",
        }  # fmt: skip
        # A version beside a token is refused by the server.
        assert "resourceVersion" not in second


async def test_a_list_of_nothing():
    async with serving() as (api, client):
        api.answer_with(Answer(body={"metadata": {"resourceVersion": "1"}, "items": None}))
        assert (await client.list(kube.NODES)).items == []
        assert api.seen[0].path == "/api/v1/nodes"


async def test_create_names_kind_and_version():
    async with serving() as (api, client):
        body = kube.Pod(metadata=kube.ObjectMeta(name="a"), spec=kube.PodSpec(node_name="n"))
        await client.create(kube.PODS, body, namespace="x", dry_run=True)
        [seen] = api.seen
        assert (seen.method, seen.path, seen.params) == (
            "POST", "/api/v1/namespaces/x/pods", {"dryRun": "All"},
        )  # fmt: skip
        assert seen.json == {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"nodeName": "n"},
        }  # fmt: skip
        with pytest.raises(ValueError, match="namespace"):
            await client.create(kube.PODS, body)


async def test_create_of_a_subresource_sends_the_body_as_it_is():
    async with serving() as (api, client):
        await client.create(
            kube.as_raw(kube.PODS), {"kind": "Eviction"}, namespace="x", name="a",
            subresource="eviction",
        )  # fmt: skip
        assert api.seen[0].path == "/api/v1/namespaces/x/pods/a/eviction"
        assert api.seen[0].json == {"kind": "Eviction"}


async def test_cluster_wide_objects_need_no_namespace():
    async with serving() as (api, client):
        await client.create(kube.TOKEN_REVIEWS, {"spec": {"token": "t"}})
        assert api.seen[0].path == "/apis/authentication.k8s.io/v1/tokenreviews"


async def test_patches_say_what_they_are():
    async with serving() as (api, client):
        operations = [{"op": "test", "path": "/metadata/uid", "value": "u"}]
        await client.patch_json(kube.PODS, "a", operations, namespace="x")
        await client.patch_merge(
            kube.PODS, "a", {"metadata": {}}, namespace="x", subresource="resize"
        )
        one, two = api.seen
        assert one.headers["content-type"] == "application/json-patch+json"
        assert one.json == operations
        assert two.headers["content-type"] == "application/merge-patch+json"
        assert two.path.endswith("/pods/a/resize")


async def test_replace_puts_the_whole():
    async with serving() as (api, client):
        await client.replace(kube.as_raw(kube.SECRETS), "s", {"data": {}}, namespace="x")
        assert (api.seen[0].method, api.seen[0].json["kind"]) == ("PUT", "Secret")


async def test_delete_carries_its_conditions():
    async with serving() as (api, client):
        await client.delete(kube.PODS, "a", namespace="x")
        deletion = kube.Deletion(
            uid="u", resource_version="3", grace_period_s=0, propagation="Background", dry_run=True
        )
        await client.delete(kube.PODS, "a", deletion, namespace="x")
        assert api.seen[0].json == {"apiVersion": "v1", "kind": "DeleteOptions"}
        assert api.seen[1].json == {
            "apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
            "preconditions": {"uid": "u", "resourceVersion": "3"}, "dryRun": ["All"],
            "propagationPolicy": "Background",
        }  # fmt: skip


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (400, "BadRequest", kube.BadRequestError),
        (401, "Unauthorized", kube.UnauthorizedError),
        (403, "Forbidden", kube.ForbiddenError),
        (404, "NotFound", kube.NotFoundError),
        (405, "MethodNotAllowed", kube.UnexpectedStatusError),
        (409, "Conflict", kube.ConflictError),
        (409, "AlreadyExists", kube.AlreadyExistsError),
        (410, "Expired", kube.GoneError),
        (422, "Invalid", kube.InvalidError),
        (429, "TooManyRequests", kube.ThrottledError),
        (500, "InternalError", kube.UnavailableError),
        (504, "Timeout", kube.UnavailableError),
    ],
)
async def test_each_status_has_its_error(code, reason, error):
    async with serving() as (api, client):
        api.answer_with(status(code, reason, "the server's words"))
        with pytest.raises(error, match="the server's words") as caught:
            await client.patch_merge(kube.PODS, "a", {}, namespace="x")
        assert type(caught.value) is error
        assert (caught.value.status, caught.value.reason) == (code, reason)
        assert len(api.seen) == 1


async def test_what_a_proxy_says_is_an_error_too():
    async with serving() as (api, client):
        api.answer_with(Answer(502, raw=b"<html>Bad gateway</html>"))
        with pytest.raises(kube.UnavailableError, match="Bad gateway"):
            await client.patch_merge(kube.PODS, "a", {}, namespace="x")


async def test_an_answer_that_makes_no_sense():
    async with serving() as (api, client):
        api.answer_with(Answer(raw=b'{"metadata": 3}'))
        with pytest.raises(kube.UnavailableError, match="no sense"):
            await client.get(kube.PODS, "a", namespace="x")


async def test_a_failed_test_is_told_from_a_failed_validation():
    async with serving() as (api, client):
        api.answer_with(status(422, "Invalid", "the server rejected our request"))
        with pytest.raises(kube.InvalidError) as caught:
            await client.patch_json(kube.PODS, "a", [], namespace="x")
        assert caught.value.is_patch_failure
        api.answer_with(status(422, "Invalid", "x", causes=[{"field": "spec.containers"}]))
        with pytest.raises(kube.InvalidError) as caught:
            await client.patch_json(kube.PODS, "a", [], namespace="x")
        assert not caught.value.is_patch_failure


async def test_no_server_means_nothing_was_applied():
    async with serving() as (_, client):
        nowhere = kube.Target("http://127.0.0.1:1")
        async with kube.Kube(nowhere, luck=lambda: 0.0) as lost:
            with pytest.raises(kube.UnavailableError, match="connect") as caught:
                await lost.patch_merge(kube.PODS, "a", {}, namespace="x")
            assert not caught.value.maybe_applied
        assert repr(client).startswith("<Kube http://127.0.0.1")


async def test_a_lost_connection_may_mean_that_it_was_applied():
    async with serving() as (api, client):
        api.answer_with(Answer(cut=True))
        with pytest.raises(kube.UnavailableError) as caught:
            await client.patch_merge(kube.PODS, "a", {}, namespace="x")
        assert caught.value.maybe_applied
        assert len(api.seen) == 1


async def test_no_answer_in_time(monkeypatch):
    monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", 0.1)
    async with serving() as (api, kube_client):
        api.delay_s = 5
        with pytest.raises(kube.RequestTimeoutError, match=r"no answer in 0\.1 s"):
            await kube_client.get(kube.PODS, "a", namespace="x")


# --- retries -------------------------------------------------------------------------------------


async def test_reads_are_repeated_and_writes_are_not():
    busy = status(503, "ServiceUnavailable")
    async with serving() as (api, client):
        api.answer_with(busy, Answer(cut=True), Answer(body=pod("a")))
        assert (await client.get(kube.PODS, "a", namespace="x")).metadata.name == "a"
        assert len(api.seen) == 3
        api.answer_with(busy, Answer(body=pod("a")))
        with pytest.raises(kube.UnavailableError):
            await client.create(kube.PODS, {}, namespace="x")


async def test_idempotent_writes_are_repeated():
    async with serving() as (api, client):
        for call in (
            lambda: client.patch_json(kube.PODS, "a", [], namespace="x", idempotent=True),
            lambda: client.patch_merge(kube.PODS, "a", {}, namespace="x", idempotent=True),
            lambda: client.delete(kube.PODS, "a", namespace="x", idempotent=True),
            lambda: client.create(kube.PODS, {}, namespace="x", dry_run=True),
        ):
            api.seen.clear()
            api.answer_with(status(429, "TooManyRequests"), Answer(body=pod("a")))
            await call()
            assert len(api.seen) == 2


async def test_retry_after_is_kept():
    async with serving() as (api, client):
        busy = status(429, "TooManyRequests")
        busy.headers["Retry-After"] = "1"
        api.answer_with(busy, Answer(body=pod("a")))
        began = trio.current_time()
        await client.get(kube.PODS, "a", namespace="x")
        assert trio.current_time() - began >= 1


@pytest.mark.parametrize(
    ("error", "attempt", "wait"),
    [
        (kube.UnavailableError(""), 1, 0.1),
        (kube.UnavailableError(""), 4, 0.8),
        (kube.UnavailableError(""), 5, None),
        (kube.ThrottledError("", retry_after=3), 1, 3.1),
        (kube.ThrottledError("", retry_after=1000), 1, retry.MAX_DELAY_S),
        (kube.NotFoundError(""), 1, None),
        (kube.ConflictError(""), 1, None),
    ],
)
def test_delays(error, attempt, wait):
    assert retry.delay_before_retry(error, attempt, 0.0) == wait


def test_backoff_grows_to_its_limit():
    waits = [retry.backoff(failures, 0.999, first_s=0.5) for failures in range(1, 100)]
    assert waits == sorted(waits)
    assert waits[-1] <= retry.MAX_DELAY_S
    assert retry.backoff(1, 0.0, first_s=0.5) == 0.25
    assert retry.backoff(99, 0.999, first_s=0.5, most_s=5.0) == pytest.approx(5.0, rel=1e-2)
