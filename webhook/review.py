"""AdmissionReview, version 1: bytes in, a frozen value; a decision out as bytes. Pure.

The only module that sees the review's own form. The answer repeats the request's uid, which the API
server checks.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import msgspec

from webhook.errors import MalformedReviewError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from webhook.patch import Operation

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"


class Kind(msgspec.Struct, frozen=True):
    """What sort of object is reviewed."""

    group: str = ""
    version: str = ""
    kind: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the API server asks. `object` is the pod as JSON values, of whatever form."""

    uid: str
    kind: Kind
    operation: str
    namespace: str = ""
    sub_resource: str = ""
    dry_run: bool | None = None
    object: Any = None

    @property
    def makes_pod(self) -> bool:
        """Whether a pod is being made; all else is none of our business."""
        return (
            self.operation == "CREATE"
            and (self.kind.group, self.kind.version, self.kind.kind) == ("", "v1", "Pod")
            and not self.sub_resource
        )


class _Review(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    api_version: str
    kind: str
    request: Request


def parse(body: bytes) -> Request:
    """The request in an AdmissionReview.

    Raises:
        MalformedReviewError: not one, of another version, or without uid.
    """
    try:
        review = msgspec.json.decode(body, type=_Review)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedReviewError(f"not an AdmissionReview: {error}") from None
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        raise MalformedReviewError(
            f"{review.kind} of {review.api_version} came: this webhook speaks {KIND} of {API_VERSION}"
        )
    if not review.request.uid:
        raise MalformedReviewError("the request has no uid")
    return review.request


WARNING_MAX = 256
"""Characters; the API server cuts what is longer."""


def allowed(
    uid: str, operations: Sequence[Operation] = (), *, warnings: Sequence[str] = ()
) -> bytes:
    """The pod may be made, changed by the patch if there is one; kubectl shows the warnings."""
    response: dict[str, object] = {"uid": uid, "allowed": True}
    if warnings:
        response["warnings"] = [_short(text) for text in warnings]
    if operations:
        steps = msgspec.json.encode([operation.to_json() for operation in operations])
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(steps).decode()}
    return _render(response)


def _short(text: str) -> str:
    return text if len(text) <= WARNING_MAX else f"{text[: WARNING_MAX - 1]}…"


def refused(uid: str, message: str) -> bytes:
    """The pod may not be made; kubectl shows the message."""
    status = {"code": 422, "reason": "Invalid", "message": message}
    return _render({"uid": uid, "allowed": False, "status": status})


def _render(response: dict[str, object]) -> bytes:
    return msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})
