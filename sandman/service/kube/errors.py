"""Everything that a call to the API server can raise; no exception of h11, trio or ssl leaves this package.

KubeError
├── BadRequestError        400
├── UnauthorizedError      401  the token is not known (any more)
├── ForbiddenError         403  RBAC, admission, quota
├── NotFoundError          404
├── ConflictError          409  Conflict: resourceVersion or uid is not the present one
├── AlreadyExistsError     409  AlreadyExists: a create of a name that is taken
├── GoneError              410  Expired, Gone: list again from the start
├── InvalidError           422  validation, or a `test` of a JSON patch that does not hold
├── ThrottledError         429  never carried out
├── UnavailableError       5xx, no connection, connection lost, an answer that cannot be read
│   └── RequestTimeoutError     no answer within the client's own limit
└── UnexpectedStatusError  anything else
"""

from __future__ import annotations

import msgspec

from sandman.service.kube import objects

MAX_RETRY_AFTER_S = 3600.0
"""Seconds; the most that a Retry-After header is believed."""


class KubeError(Exception):
    """Root of the tree.

    Args:
        message: the server's words, or what happened to the connection.
        status: HTTP status; 0 where no answer came.
        reason: the server's machine-readable reason (`NotFound`, `Expired` …), "" where none came.
        details: the `details` of the server's Status object.
        retry_after: seconds that the server asks to wait.
        maybe_applied: whether a write may have been carried out although the call failed.
    """

    maybe_applied = False

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        details: objects.StatusDetails | None = None,
        retry_after: float | None = None,
        maybe_applied: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.reason = reason
        self.details = details
        self.retry_after = retry_after
        if maybe_applied is not None:
            self.maybe_applied = maybe_applied

    def __str__(self) -> str:
        head = f"{self.status} {self.reason}".strip() if self.status else type(self).__name__
        return f"{head}: {self.message}"


class BadRequestError(KubeError):
    """400: the request makes no sense to the server."""


class UnauthorizedError(KubeError):
    """401: the token or client certificate is not accepted."""


class ForbiddenError(KubeError):
    """403: RBAC, an admission policy or a quota forbids it."""

    @property
    def is_of_authorizer(self) -> bool:
        """Whether no rule allows it. An API server that has just started says so of everything, until it has read
        its rules; what admission forbids it forbids for good."""
        return 'User "' in self.message and " cannot " in self.message


class NotFoundError(KubeError):
    """404: no such object, or no such resource."""


class ConflictError(KubeError):
    """409 Conflict: the object is another version, or has another uid, than the call demanded."""


class AlreadyExistsError(KubeError):
    """409 AlreadyExists: the name is taken."""


class GoneError(KubeError):
    """410: the resource version or continue token is too old; list from the start."""


class InvalidError(KubeError):
    """422: the object is invalid, or a JSON patch could not be applied."""

    @property
    def is_patch_failure(self) -> bool:
        """Whether the patch itself failed (a `test` that does not hold), not the object's validation.

        Validation names the fields at fault; the patch library names none.
        """
        return self.details is None or not self.details.causes


class ThrottledError(KubeError):
    """429: the server has too much to do and did not carry it out."""


class UnavailableError(KubeError):
    """No usable answer: 5xx, no connection, a lost connection. A write may have been applied."""

    maybe_applied = True


class RequestTimeoutError(UnavailableError):
    """No answer within the client's limit."""


class UnexpectedStatusError(KubeError):
    """A status that has no class of its own."""


class ConfigurationError(KubeError):
    """The kubeconfig is missing or makes no sense."""


_BY_STATUS: dict[int, type[KubeError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: ThrottledError,
}


def _class_for(status: int, reason: str) -> type[KubeError]:
    if status == 409 and reason == "AlreadyExists":
        return AlreadyExistsError
    if status >= 500:
        return UnavailableError
    return _BY_STATUS.get(status, UnexpectedStatusError)


def parse_retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header; the API server sends whole seconds, never a date."""
    if value is None or not value.strip().isdecimal():
        return None
    # A number of 400 digits would be infinite, and who sleeps for it never wakes.
    return min(float(value), MAX_RETRY_AFTER_S)


def from_status(
    status: objects.Status, *, code: int | None = None, retry_after: float | None = None
) -> KubeError:
    """The error that a Status object tells of; `code` is the HTTP status where there is one."""
    number = code or status.code
    asked = status.details.retry_after_seconds if status.details else None
    return _class_for(number, status.reason)(
        status.message or status.reason or f"HTTP status {number}",
        status=number,
        reason=status.reason,
        details=status.details,
        retry_after=retry_after if retry_after is not None else asked,
    )


def from_answer(code: int, body: bytes, retry_after: str | None = None) -> KubeError:
    """The error of an HTTP answer: a Status object from the API server, anything from a proxy."""
    try:
        status = msgspec.json.decode(body, type=objects.Status)
    except msgspec.MsgspecError:
        status = objects.Status(message=body[:500].decode("utf-8", "replace").strip())
    return from_status(status, code=code, retry_after=parse_retry_after(retry_after))
