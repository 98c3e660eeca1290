"""One admission from bytes to bytes: which of review's answers the pod gets. Pure but for the nonce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandman import names
from webhook import inject, metrics, review, workload
from webhook.errors import NotReadyError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandman.service.keyring import Keyring
    from webhook.inject import Settings
    from webhook.patch import Operation


_NO_KEYS = "the signing keys have not been read yet: try again in a moment"


@dataclass(frozen=True, slots=True)
class Answer:
    """The AdmissionReview to send, and what it was, for logs and counters."""

    body: bytes
    outcome: str
    namespace: str = ""
    detail: str = ""


def admit(
    body: bytes, keyring: Keyring | None, settings: Settings, make_nonce: Callable[[], str]
) -> Answer:
    """Decide one admission. A dry run is answered alike: there is no side effect to leave out.

    Raises:
        MalformedReviewError: the body is no AdmissionReview v1.
        NotReadyError: a pool's pod wants injection and there is no key yet.
    """
    request = review.parse(body)
    wanted = inject.wanted(request.object) if request.makes_pod else None
    if wanted is None:
        return Answer(review.allowed(request.uid), metrics.PASSED, request.namespace)
    if wanted == names.INJECT_WORKLOAD:
        return _workload(request, keyring, settings, make_nonce)
    if keyring is None:
        raise NotReadyError(_NO_KEYS)
    given = inject.credential(keyring, request.namespace, make_nonce())
    try:
        operations = inject.inject(request.object, request.namespace, given, settings)
    except RefusedError as error:
        message = f"not injected: {error}"
        answer = review.refused(request.uid, message)
        return Answer(answer, metrics.REFUSED, request.namespace, message)
    return Answer(review.allowed(request.uid, operations), metrics.INJECTED, request.namespace)


def _workload(
    request: review.Request,
    keyring: Keyring | None,
    settings: Settings,
    make_nonce: Callable[[], str],
) -> Answer:
    """It is somebody's production: whatever is wrong, the pod is made."""
    document, namespace = request.object, request.namespace
    if keyring is None:
        return _left(request, _NO_KEYS)
    try:
        operations = workload.attach(document, namespace, keyring, make_nonce(), settings)
    except RefusedError as error:
        return _left(request, str(error))
    return Answer(review.allowed(request.uid, operations), metrics.INJECTED, namespace)


def _left(request: review.Request, why: str) -> Answer:
    warning = f"sandman: runs without the daemon: {why}"
    answer = review.allowed(request.uid, _told(request, why), warnings=[warning])
    return Answer(answer, metrics.LEFT, request.namespace, why)


def _told(request: review.Request, why: str) -> tuple[Operation, ...]:
    try:
        return workload.left(request.object, why)
    except RefusedError:
        return ()  # not a pod that can be read: the API server has its own word on that
