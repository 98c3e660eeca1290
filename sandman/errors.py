"""Everything that can go wrong, one class a reason, and its one form on the wire.

    SandmanError
    ├── CallerError                the caller can mend it
    │   ├── BadRequestError            400 bad_request
    │   ├── UnauthenticatedError       401 unauthenticated
    │   ├── ForbiddenError             403 forbidden
    │   ├── NotFoundError              404 not_found
    │   ├── MethodNotAllowedError      405 method_not_allowed
    │   ├── ConflictError              409 conflict
    │   ├── TooLargeError              413 too_large
    │   ├── ImageNotFoundError         422 image_not_found
    │   ├── ImageDeniedError           403 image_denied
    │   ├── NetworkDeniedError         403 network_denied
    │   ├── NetworkUnsupportedError    422 network_unsupported
    │   ├── UserUnsupportedError       422 user_unsupported
    │   ├── TerminalUnsupportedError   422 terminal_unsupported
    │   ├── QuotaError                 429 quota              retryable
    │   ├── ThrottledError             429 throttled          retryable
    │   ├── PrepareFailedError         422 prepare_failed
    │   ├── PathNotFoundError          404 path_not_found
    │   ├── IsADirectoryPathError      409 is_a_directory
    │   ├── NotADirectoryPathError     409 not_a_directory
    │   ├── PathDeniedError            403 path_denied
    │   ├── ReleasedError              410 released
    │   ├── ExpiredError               410 expired
    │   └── IdleError                  410 idle
    ├── SandboxFaultError          what runs inside caused it: no free retry
    │   ├── NoSpaceError               507 no_space
    │   ├── PortClosedError            503 port_closed        retryable
    │   ├── OomError                   410 oom
    │   └── DiedError                  410 died
    └── InfrastructureError        not the caller's fault, nor the sandbox's
        ├── CapacityError              429 capacity           retryable
        ├── ImagePullError             503 image_pull         retryable
        ├── UnschedulableError         503 unschedulable      retryable
        ├── UnreachableError           503 unreachable        retryable
        ├── VersionSkewError           503 version_skew
        ├── NetworkNotAppliedError     503 network_not_applied retryable
        ├── EvictedError               410 evicted
        ├── PreemptedError             410 preempted
        ├── NodeLostError              410 node_lost
        ├── DeletedError               410 deleted
        ├── OutcomeUnknownError        502 outcome_unknown
        └── InternalError              500 internal

On the wire an error is `application/problem+json` (RFC 9457). A command that fails is a result,
never an error. Standard library only: the daemon ships this file.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - `typing` costs the daemon 4 ms

CALLER, SANDBOX, INFRASTRUCTURE = "caller", "sandbox", "infrastructure"
_MEMBERS = ("status", "reason", "cause", "retryable", "detail", "field", "sandbox", "facts", "retry_after")  # fmt: skip


class SandmanError(Exception):
    """Root of the tree. Subclasses say reason, status, cause and whether a retry can help.

    Args:
        detail: what happened and what to do, one or two sentences for a person.
        field: the field of the request at fault, as a dotted path.
        sandbox: id of the sandbox concerned.
        retry_after: seconds after which a retry makes sense.
        cause: overrides the class's cause where the facts of the case are known better.
        facts: further values that help (exit code, node, place in queue …), JSON values.
    """

    reason = "internal"
    status = 500
    cause = INFRASTRUCTURE
    retryable = False

    def __init__(
        self,
        detail: str = "",
        *,
        field: str | None = None,
        sandbox: str | None = None,
        retry_after: float | None = None,
        cause: str | None = None,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail or self.reason)
        self.detail = detail or self.reason
        self.field = field
        self.sandbox = sandbox
        self.retry_after = retry_after
        self.cause = cause or self.cause
        self.facts = dict(facts or {})

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"

    def problem(self) -> dict[str, object]:
        """The error as the members of a problem+json document."""
        document: dict[str, object] = {
            "type": f"urn:sandman:{self.reason}",
            "title": self.reason.replace("_", " "),
        }
        values = {name: getattr(self, name) for name in _MEMBERS}
        return document | {name: one for name, one in values.items() if one not in (None, {})}


class CallerError(SandmanError):
    """The caller asked for something that cannot be; a retry unchanged will fail again."""

    reason = "caller"
    status = 400
    cause = CALLER


class BadRequestError(CallerError):
    """The request is malformed; `field` names the part at fault."""

    reason = "bad_request"


class UnauthenticatedError(CallerError):
    """No token, or one that is not known."""

    reason = "unauthenticated"
    status = 401


class ForbiddenError(CallerError):
    """The caller is known and may not."""

    reason = "forbidden"
    status = 403


class NotFoundError(CallerError):
    """No such thing, or not the caller's: the answer is the same on purpose."""

    reason = "not_found"
    status = 404


class MethodNotAllowedError(CallerError):
    """The path exists, the method does not."""

    reason = "method_not_allowed"
    status = 405


class ConflictError(CallerError):
    """The state of the thing forbids it (claimed by another, key used with another request)."""

    reason = "conflict"
    status = 409


class TooLargeError(CallerError):
    """The body is over the stated limit."""

    reason = "too_large"
    status = 413


class ImageNotFoundError(CallerError):
    """The registry says that there is no such image."""

    reason = "image_not_found"
    status = 422


class ImageDeniedError(CallerError):
    """The registry, or the key's allowlist, refuses this image."""

    reason = "image_denied"
    status = 403


class NetworkDeniedError(CallerError):
    """Neither the pool, nor perhaps the key, lets this caller have that egress profile."""

    reason = "network_denied"
    status = 403


class NetworkUnsupportedError(CallerError):
    """Nobody here can enforce that, or tell whether it is: no such profile, or rules where a name is meant."""

    reason = "network_unsupported"
    status = 422


class UserUnsupportedError(CallerError):
    """The command cannot run as that user here: unknown, or the daemon may not switch."""

    reason = "user_unsupported"
    status = 422


class TerminalUnsupportedError(CallerError):
    """The sandbox has no terminals to give: no /dev/ptmx, no /dev/pts, or no more of them."""

    reason = "terminal_unsupported"
    status = 422


class QuotaError(CallerError):
    """A limit of the tenant or of the namespace is reached."""

    reason = "quota"
    status = 429
    retryable = True


class ThrottledError(CallerError):
    """Too many tokens that are not known came from the caller's address."""

    reason = "throttled"
    status = 429
    retryable = True


class PrepareFailedError(CallerError):
    """A step that the caller gave for the preparation failed; `facts` hold its index, exit code and output."""

    reason = "prepare_failed"
    status = 422


class PathNotFoundError(CallerError):
    """No such file or directory in the sandbox."""

    reason = "path_not_found"
    status = 404


class IsADirectoryPathError(CallerError):
    """The path is a directory where a file is meant."""

    reason = "is_a_directory"
    status = 409


class NotADirectoryPathError(CallerError):
    """A part of the path is a file where a directory is meant."""

    reason = "not_a_directory"
    status = 409


class PathDeniedError(CallerError):
    """The sandbox's user may not read or write that path, or the file system is read-only."""

    reason = "path_denied"
    status = 403


class ReleasedError(CallerError):
    """The sandbox was released by its owner."""

    reason = "released"
    status = 410


class ExpiredError(CallerError):
    """The sandbox's lease ran out."""

    reason = "expired"
    status = 410


class IdleError(CallerError):
    """The sandbox was idle for longer than its lease allows."""

    reason = "idle"
    status = 410


class SandboxFaultError(SandmanError):
    """What runs inside the sandbox caused it: it counts as the sandbox's own failure."""

    reason = "sandbox"
    status = 410
    cause = SANDBOX


class NoSpaceError(SandboxFaultError):
    """The sandbox's disk is full."""

    reason = "no_space"
    status = 507


class PortClosedError(SandboxFaultError):
    """Nothing in the sandbox listens on that port (yet), or it does not accept; nothing was sent."""

    reason = "port_closed"
    status = 503
    retryable = True


class OomError(SandboxFaultError):
    """The sandbox as a whole was killed for want of memory."""

    reason = "oom"


class DiedError(SandboxFaultError):
    """The sandbox's first process ended; nothing that was in it is left."""

    reason = "died"


class InfrastructureError(SandmanError):
    """Neither caller nor sandbox is at fault: earns a free retry of the whole episode."""

    reason = "infrastructure"
    status = 503


class CapacityError(InfrastructureError):
    """No sandbox, or no turn for a certificate, could be had in time; `facts` hold the place in the queue."""

    reason = "capacity"
    status = 429
    retryable = True


class ImagePullError(InfrastructureError):
    """The image exists, its pull failed or was throttled."""

    reason = "image_pull"
    retryable = True


class UnschedulableError(InfrastructureError):
    """No node had room in time."""

    reason = "unschedulable"
    retryable = True


class UnreachableError(InfrastructureError):
    """The sandbox does not answer just now; whether it lives is not known."""

    reason = "unreachable"
    retryable = True


class VersionSkewError(InfrastructureError):
    """Gateway and daemon are more than one minor version apart."""

    reason = "version_skew"


class NetworkNotAppliedError(InfrastructureError):
    """The network is not, or not yet, as the egress profile says: `facts` hold what was probed."""

    reason = "network_not_applied"
    retryable = True


class EvictedError(InfrastructureError):
    """The node put the pod out (disk or memory pressure of the node)."""

    reason = "evicted"
    status = 410


class PreemptedError(InfrastructureError):
    """A pod of higher priority took the place."""

    reason = "preempted"
    status = 410


class NodeLostError(InfrastructureError):
    """The node went away."""

    reason = "node_lost"
    status = 410


class DeletedError(InfrastructureError):
    """Somebody else deleted the pod."""

    reason = "deleted"
    status = 410


class OutcomeUnknownError(InfrastructureError):
    """The call reached the sandbox and its answer was lost: it may or may not have run."""

    reason = "outcome_unknown"
    status = 502


class InternalError(InfrastructureError):
    """A fault of Sandman itself."""

    reason = "internal"
    status = 500
