"""Sandman: sandboxes for reinforcement learning of agents, on Kubernetes.

What callers import: the async client with all its types, the sync one as `SyncClient` (its own types are in
`sandman.sync`), and the errors. Names are resolved on first use (PEP 562), so that the daemon can ship
`sandman.wire`, `sandman.names` and `sandman.errors` without the client's dependencies.
"""

from __future__ import annotations

import importlib

from sandman.version import __version__

# Not from `typing`: the daemon imports this package at each pod's start, and typing costs it 4 ms.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from sandman.client import (
        Batch,
        Certificate,
        CertificateReason,
        Client,
        CommandError,
        ConfigurationError,
        Data,
        EntryInfo,
        EvaluationKey,
        EvaluationOptions,
        EvaluationProgress,
        EvaluationRecord,
        EvaluationReport,
        Event,
        ExecOptions,
        ExecResult,
        ExecStream,
        FileInfo,
        Files,
        FileStream,
        Follow,
        Gap,
        Limits,
        NetworkInfo,
        OverviewInfo,
        PoolInfo,
        Process,
        ProcessInfo,
        Progress,
        Remote,
        Reservation,
        ReservationInfo,
        ReservationOptions,
        Resources,
        Retry,
        Sandbox,
        SandboxInfo,
        SandboxOptions,
        Session,
        SessionInfo,
        SessionOptions,
        SessionResult,
        Stderr,
        Stdout,
        Step,
        TaskListError,
        TaskReport,
        TaskRow,
        Terminal,
        TerminalSpec,
        TreeInfo,
        User,
        WorkloadOptions,
    )
    from sandman.errors import (
        BadRequestError,
        CallerError,
        CapacityError,
        ConflictError,
        DeletedError,
        DiedError,
        EvictedError,
        ExpiredError,
        ForbiddenError,
        IdleError,
        ImageDeniedError,
        ImageNotFoundError,
        ImagePullError,
        InfrastructureError,
        InternalError,
        IsADirectoryPathError,
        MethodNotAllowedError,
        NetworkDeniedError,
        NetworkNotAppliedError,
        NetworkUnsupportedError,
        NodeLostError,
        NoSpaceError,
        NotADirectoryPathError,
        NotFoundError,
        OomError,
        OutcomeUnknownError,
        PathDeniedError,
        PathNotFoundError,
        PortClosedError,
        PreemptedError,
        PrepareFailedError,
        QuotaError,
        ReleasedError,
        SandboxFaultError,
        SandmanError,
        TerminalUnsupportedError,
        ThrottledError,
        TooLargeError,
        UnauthenticatedError,
        UnreachableError,
        UnschedulableError,
        UserUnsupportedError,
        VersionSkewError,
    )
    from sandman.sync import Client as SyncClient

__all__ = [
    "BadRequestError", "Batch", "CallerError", "CapacityError", "Certificate", "CertificateReason", "Client", "CommandError", "ConfigurationError", "ConflictError", "Data", "DeletedError", "DiedError", "EntryInfo", "EvaluationKey", "EvaluationOptions", "EvaluationProgress", "EvaluationRecord", "EvaluationReport", "Event", "EvictedError", "ExecOptions",
    "ExecResult", "ExecStream", "ExpiredError", "FileInfo", "FileStream", "Files", "Follow", "ForbiddenError",
    "Gap", "IdleError", "ImageDeniedError", "ImageNotFoundError", "ImagePullError", "InfrastructureError",
    "InternalError", "IsADirectoryPathError", "Limits", "MethodNotAllowedError", "NetworkDeniedError", "NetworkInfo",
    "NetworkNotAppliedError", "NetworkUnsupportedError", "NoSpaceError", "NodeLostError", "NotADirectoryPathError", "NotFoundError", "OomError", "OutcomeUnknownError",
    "OverviewInfo", "PathDeniedError", "PathNotFoundError", "PoolInfo", "PortClosedError", "PreemptedError",
    "PrepareFailedError", "Process", "ProcessInfo", "Progress", "QuotaError", "ReleasedError", "Remote",
    "Reservation", "ReservationInfo", "ReservationOptions", "Resources", "Retry", "Sandbox", "SandboxFaultError", "SandboxInfo", "SandboxOptions", "SandmanError", "Session",
    "SessionInfo", "SessionOptions", "SessionResult", "Stderr", "Stdout", "Step", "SyncClient", "TaskListError", "TaskReport", "TaskRow", "Terminal",
    "TerminalSpec", "TerminalUnsupportedError", "ThrottledError", "TooLargeError", "TreeInfo", "UnauthenticatedError",
    "UnreachableError", "UnschedulableError", "User", "UserUnsupportedError", "VersionSkewError", "WorkloadOptions", "__version__",
]  # fmt: skip

_SYNC = "SyncClient"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == _SYNC:
        return importlib.import_module("sandman.sync").Client
    errors = importlib.import_module("sandman.errors")
    if hasattr(errors, name):
        return getattr(errors, name)
    return getattr(importlib.import_module("sandman.client"), name)
