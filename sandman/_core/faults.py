"""What became of a call, as one of `sandman.errors`: answers, and failures of the way there.

The only place that knows how other people's programs (proxies, TLS, resolvers) say no.
"""

from __future__ import annotations

import json
import socket
import ssl
from typing import TYPE_CHECKING, Self

import httpx

from sandman import errors, names, problems
from sandman.wire import ExecResult

if TYPE_CHECKING:
    from collections.abc import Iterator

TAIL_BYTES = 2000
"""Bytes of stderr that a CommandError's text holds: enough for a traceback's end."""


class ConfigurationError(errors.CallerError):
    """The client cannot start: something is not set, or set to what cannot be."""

    reason = "configuration"
    status = 400


class CommandError(errors.SandmanError):
    """A command called with `check=True` failed; `result` says how. Never raised otherwise."""

    reason = "command_failed"
    status = 422
    cause = errors.SANDBOX
    result: ExecResult = ExecResult(exit_code=1)

    @classmethod
    def of(cls, command: str, result: ExecResult, sandbox: str | None = None) -> Self:
        """The error for this result; the text has how it ended and the tail of stderr."""
        tail = (result.stderr or result.stdout)[-TAIL_BYTES:].decode("utf-8", "replace").strip()
        error = cls(
            f"{command} {_ending(result)}" + (f"; it said:\n{tail}" if tail else ""),
            sandbox=sandbox,
            facts={"exit_code": result.exit_code, "timed_out": result.timed_out},
        )
        error.result = result
        return error


def _ending(result: ExecResult) -> str:
    if result.timed_out:
        return f"was ended at its time limit after {result.wall_s:.1f} s"
    if result.start_error:
        return f"did not start: {result.start_error.replace('_', ' ')}"
    if result.oom_killed:
        return f"was killed for want of memory (exit code {result.exit_code})"
    if result.signal:
        return f"was killed by signal {result.signal} (exit code {result.exit_code})"
    return f"ended with exit code {result.exit_code}"


# --- answers -------------------------------------------------------------------------------------

_BY_STATUS: dict[int, type[errors.SandmanError]] = {
    400: errors.BadRequestError,
    401: errors.UnauthenticatedError,
    403: errors.ForbiddenError,
    404: errors.NotFoundError,
    405: errors.MethodNotAllowedError,
    408: errors.UnreachableError,
    409: errors.ConflictError,
    413: errors.TooLargeError,
    429: errors.CapacityError,
    502: errors.UnreachableError,
    503: errors.UnreachableError,
    504: errors.UnreachableError,
}
_ADVICE = {
    401: "check the token",
    404: f"check {names.ENV_URL}",
    413: "a proxy between limits the size of bodies",
}


def from_answer(response: httpx.Response, body: bytes) -> errors.SandmanError:
    """The error that an answer other than 2xx means.

    Problem documents are taken at their word. Anything else comes from a program between that
    is not ours, and is judged by its status.
    """
    document = _problem(response, body)
    if document is not None:
        error = problems.from_problem(document, response.status_code)
    else:
        error = _foreign(response, body)
    if error.retry_after is None:
        error.retry_after = _seconds(response.headers.get("retry-after"))
    return error


def _problem(response: httpx.Response, body: bytes) -> dict[str, object] | None:
    if "json" not in response.headers.get("content-type", ""):
        return None
    try:
        document = json.loads(body)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "reason" in document else None


def _foreign(response: httpx.Response, body: bytes) -> errors.SandmanError:
    status = response.status_code
    if status < 400:
        where = response.headers.get("location")
        return errors.BadRequestError(
            f"unexpected answer {status}"
            + (f", a redirect to {where}" if where else "")
            + f": {_URL_ADVICE}"
        )
    default = errors.CallerError if status < 500 else errors.InternalError
    said = " ".join(body[:200].decode("utf-8", "replace").split())
    advice = _ADVICE.get(status)
    error = _BY_STATUS.get(status, default)(
        f"HTTP status {status}, not from Sandman's own programs"
        + (f": {said}" if said else "")
        + (f" ({advice})" if advice else ""),
        facts={"foreign": True},
    )
    error.status = status
    return error


_CHECK = f"Check its address ({names.ENV_URL}, --url or the context)"
_URL_ADVICE = f"is {names.ENV_URL} the gateway itself?"


def _seconds(text: str | None) -> float | None:
    """Retry-After as seconds; a date, which no program of ours sends, is passed over."""
    return float(text) if text is not None and text.isascii() and text.isdigit() else None


def not_ours(response: httpx.Response) -> errors.SandmanError:
    """The error for an answer 2xx that cannot be the gateway's."""
    kind = response.headers.get("content-type", "no content type")
    return errors.InternalError(f"the answer is not Sandman's ({kind}): {_URL_ADVICE}")


# --- failures of the way there -------------------------------------------------------------------


def from_transport(error: Exception, url: str) -> errors.UnreachableError:
    """The error for a call that got no answer, with what to do about it."""
    detail, lasting = _diagnose(error, url)
    unreachable = errors.UnreachableError(detail)
    # A certificate does not become right by asking again, nor does a misspelt name.
    unreachable.retryable = not lasting
    return unreachable


def _diagnose(error: Exception, url: str) -> tuple[str, bool]:
    for cause in _causes(error) if isinstance(error, httpx.ConnectError) else ():
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"the certificate of {url} is not trusted: {cause.verify_message}. Give the CA by ca= (--ca) or "
                f"{names.ENV_CA}; if it names another host than the URL, give that by server_name= (--server-name) "
                f"or {names.ENV_PREFIX}SERVER_NAME",
                True,
            )
        if isinstance(cause, ssl.SSLError):
            return f"no TLS with {url}: {cause.reason or cause}. Is it http:// ?", True
        if isinstance(cause, socket.gaierror):
            return (
                f"cannot find the host of {url}: {cause.strerror}. {_CHECK}",
                cause.errno == socket.EAI_NONAME,
            )
    return _describe(error, url), False


def _describe(error: Exception, url: str) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return f"{url} does not accept connections in time. {_CHECK} and the network"
    if isinstance(error, httpx.ConnectError):
        return f"cannot connect to {url}: {error}. {_CHECK} and that the gateway runs"
    if isinstance(error, httpx.TimeoutException):
        return f"{url} fell silent ({type(error).__name__})"
    return f"the connection to {url} broke: {str(error) or type(error).__name__}"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, what it came from, and the members of groups among them."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from _causes(member)
        error = error.__cause__ or error.__context__


def unknown_outcome(detail: str, sandbox: str | None = None) -> errors.OutcomeUnknownError:
    """The error for a command that may have run."""
    return errors.OutcomeUnknownError(
        f"{detail}. It may or may not have been carried out: look before you repeat it",
        sandbox=sandbox,
    )


def not_understood(wanted: str, answer: object) -> errors.InternalError:
    """The error for JSON that is not what the API promises."""
    return errors.InternalError(
        f"the gateway's answer is not {wanted}: {str(answer)[:200]}. Are client and gateway of one version?"
    )


def altered(path: str, sandbox: str) -> errors.InternalError:
    """The error for a file whose checksum on arrival is not that of the bytes sent."""
    return errors.InternalError(
        f"{path}: other bytes arrived than were sent; write it again", sandbox=sandbox
    )
