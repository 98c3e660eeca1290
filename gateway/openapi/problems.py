"""Which errors each kind of call may end in."""

from __future__ import annotations

from gateway.openapi import schema as s
from sandman import errors

PROBLEM = s.answer(
    {
        "type": s.text("urn:sandman: and the reason"),
        "title": s.text(),
        "status": s.whole("the answer's own", 400, 599),
        "reason": s.text("which error it is; see the table of errors"),
        "cause": s.one_of((errors.CALLER, errors.SANDBOX, errors.INFRASTRUCTURE)),
        "retryable": s.flag("whether the same call may do better later"),
        "detail": s.text("what happened, for a person"),
    },
    {
        "field": s.text("the part of the request at fault"),
        "sandbox": s.text("id of the sandbox concerned"),
        "facts": s.anything("values that help, by name"),
        "retry_after": s.number("seconds", minimum=0),
    },
    "RFC 9457",
)

CALL = frozenset({
    errors.UnauthenticatedError,
    errors.ForbiddenError,
    errors.ThrottledError,
    errors.UnreachableError,
    errors.InternalError,
})  # fmt: skip
"""Any call with a token."""

BODY = frozenset({errors.BadRequestError, errors.TooLargeError})
"""Any call with a body of JSON."""

QUERY = frozenset({errors.BadRequestError})
"""Any call with parameters."""

ENDS = frozenset({
    errors.ReleasedError,
    errors.ExpiredError,
    errors.IdleError,
    errors.OomError,
    errors.DiedError,
    errors.EvictedError,
    errors.PreemptedError,
    errors.NodeLostError,
    errors.DeletedError,
})  # fmt: skip
"""What has ended a sandbox."""

SANDBOX = CALL | ENDS | {errors.NotFoundError}
"""Any call about one sandbox."""

DAEMON = SANDBOX | {
    errors.BadRequestError,
    errors.MethodNotAllowedError,
    errors.OutcomeUnknownError,
    errors.VersionSkewError,
}
"""Any call that goes on to a sandbox's daemon. 405 where that is older than the call."""

PATHS = DAEMON | {
    errors.PathNotFoundError,
    errors.IsADirectoryPathError,
    errors.NotADirectoryPathError,
    errors.PathDeniedError,
    errors.ConflictError,
    errors.TooLargeError,
    errors.NoSpaceError,
    errors.UserUnsupportedError,
}
"""Any call about a path in a sandbox."""

COMMAND = PATHS | {errors.TerminalUnsupportedError}
"""Any call that starts something in a sandbox."""

ALLOCATION = (
    CALL
    | BODY
    | ENDS
    | {
        errors.ConflictError,
        errors.ImageNotFoundError,
        errors.ImageDeniedError,
        errors.ImagePullError,
        errors.NetworkDeniedError,
        errors.NetworkUnsupportedError,
        errors.NetworkNotAppliedError,
        errors.UserUnsupportedError,
        errors.PrepareFailedError,
        errors.QuotaError,
        errors.CapacityError,
        errors.UnschedulableError,
        errors.VersionSkewError,
        errors.OutcomeUnknownError,
        errors.NoSpaceError,
    }
)
"""Any call that has a sandbox made."""
