"""What can go wrong with an admission, and what the API server is told.

    MalformedReviewError   400  the body is not an AdmissionReview that we understand
    RefusedError           200  `allowed: false`: the pod must not run so; the text says what to do
    NotReadyError          500  no key yet: the API server fails the pod's creation, and it is retried

Anything else is a fault of ours and a 500: by `failurePolicy: Fail` the pod is then not made.
"""

from __future__ import annotations


class MalformedReviewError(ValueError):
    """The request is not an AdmissionReview v1 with a request in it."""


class RefusedError(Exception):
    """The pod cannot be a sandbox as it is; the text is shown by kubectl to whoever made it."""


class NotReadyError(Exception):
    """The webhook lacks something that it will have in a moment."""
