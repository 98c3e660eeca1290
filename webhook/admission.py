"""One admission from bytes to bytes: which of review's answers the pod gets. Pure but for the nonce."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from webhook import inject, metrics, review
from webhook.errors import NotReadyError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandman.service.keyring import Keyring
    from webhook.inject import Settings


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
        NotReadyError: a pod wants injection and there is no key yet.
    """
    request = review.parse(body)
    if not request.makes_pod or not inject.wants_injection(request.object):
        return Answer(review.allowed(request.uid), metrics.PASSED, request.namespace)
    if keyring is None:
        raise NotReadyError("the signing keys have not been read yet: try again in a moment")
    given = inject.credential(keyring, request.namespace, make_nonce())
    try:
        operations = inject.inject(request.object, request.namespace, given, settings)
    except RefusedError as error:
        message = f"not injected: {error}"
        answer = review.refused(request.uid, message)
        return Answer(answer, metrics.REFUSED, request.namespace, message)
    return Answer(review.allowed(request.uid, operations), metrics.INJECTED, request.namespace)
