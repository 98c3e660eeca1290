"""AdmissionReview as bytes: what is understood, and the answers."""

from __future__ import annotations

import base64
import json

import pytest

from tests.unit.webhook import pods
from webhook import review
from webhook.errors import MalformedReviewError
from webhook.patch import Operation


def body(**request: object) -> bytes:
    base = {
        "uid": "u1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "boxes",
        "userInfo": {"username": "somebody"},
        "object": pods.pod(),
        "oldObject": None,
        "dryRun": False,
    }
    return document(request=base | request)


def document(**members: object) -> bytes:
    return json.dumps(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"} | members
    ).encode()


def test_a_pods_creation_is_understood():
    request = review.parse(body())
    assert (request.uid, request.namespace, request.dry_run) == ("u1", "boxes", False)
    assert request.makes_pod
    assert request.object == pods.pod()


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"operation": "CONNECT"},
        {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}},
        {"kind": {"group": "", "version": "v2", "kind": "Pod"}},
        {"kind": {"group": "metrics.k8s.io", "version": "v1", "kind": "Pod"}},
        {"subResource": "binding"},
    ],
)
def test_everything_else_is_none_of_our_business(request_):
    assert not review.parse(body(**request_)).makes_pod


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not an AdmissionReview"),
        (b"{", "not an AdmissionReview"),
        (b"[]", "not an AdmissionReview"),
        (b"\xff\xfe", "not an AdmissionReview"),
        (b"[" * 100_000, "not an AdmissionReview"),
        (document(), "required field `request`"),
        (document(request=None), r"Expected `object`, got `null` - at `\$.request`"),
        (document(request={"uid": "u"}), "required field `kind`"),
        (
            document(apiVersion="admission.k8s.io/v1beta1", request=json.loads(body())["request"]),
            "v1beta1 came",
        ),
        (
            document(kind="Pod", request=json.loads(body())["request"]),
            "Pod of admission.k8s.io/v1 came",
        ),
        (body(uid=""), "no uid"),
        (body(uid=3), r"at `\$.request.uid`"),
    ],
)
def test_what_is_malformed_is_said_to_be(data, text):
    with pytest.raises(MalformedReviewError, match=text):
        review.parse(data)


def response(data: bytes) -> dict[str, object]:
    answer = json.loads(data)
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    assert answer["kind"] == "AdmissionReview"
    return answer["response"]


def test_allowed_without_a_patch():
    assert response(review.allowed("u1")) == {"uid": "u1", "allowed": True}


def test_allowed_with_a_patch():
    steps = [Operation("add", "/a", None), Operation("remove", "/b")]
    answer = response(review.allowed("u1", steps))
    assert answer["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(answer["patch"])) == [
        {"op": "add", "path": "/a", "value": None},
        {"op": "remove", "path": "/b"},
    ]


def test_refused():
    assert response(review.refused("u1", "because")) == {
        "uid": "u1",
        "allowed": False,
        "status": {"code": 422, "reason": "Invalid", "message": "because"},
    }
