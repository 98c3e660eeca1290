"""The client, sync: the twin of `sandman.client`, call for call.

from sandman.sync import Client

with Client() as client, client.sandbox(image="python:3.12") as box:
    result = box.run("pytest -q", timeout_s=600)
    print(result.exit_code, result.stdout_text)
"""

from sandman._core.config import Limits
from sandman._core.faults import CommandError, ConfigurationError
from sandman._core.prepare import Step
from sandman._core.retry import Retry
from sandman._core.values import (
    EntryInfo,
    Event,
    FileInfo,
    NetworkInfo,
    OverviewInfo,
    PoolInfo,
    ReservationInfo,
    Resources,
    SandboxInfo,
    Stderr,
    Stdout,
    TreeInfo,
)
from sandman._sync.bodies import Data
from sandman._sync.client import Client
from sandman._sync.command import ExecOptions
from sandman._sync.creation import Batch, SandboxOptions
from sandman._sync.files import Files, FileStream, Remote, User
from sandman._sync.follow import Follow
from sandman._sync.process import Process
from sandman._sync.reservation import Reservation, ReservationOptions
from sandman._sync.sandbox import Sandbox
from sandman._sync.session import Session, SessionOptions
from sandman._sync.stream import ExecStream
from sandman._sync.terminal import Terminal
from sandman._sync.trees import Progress
from sandman._sync.workloads import WorkloadOptions
from sandman.certificates import Certificate, CertificateReason
from sandman.evaluation.inputs import TaskListError
from sandman.evaluation.options import EvaluationOptions
from sandman.evaluation.records import EvaluationKey, EvaluationProgress, EvaluationRecord
from sandman.evaluation.report import EvaluationReport, TaskReport
from sandman.evaluation.rows import TaskRow
from sandman.handles import Gap, ProcessInfo
from sandman.sessions import SessionInfo, SessionResult
from sandman.terminal import TerminalSpec
from sandman.wire import ExecResult

__all__ = [
    "Batch", "Certificate", "CertificateReason", "Client", "CommandError", "ConfigurationError", "Data", "EntryInfo", "EvaluationKey", "EvaluationOptions", "EvaluationProgress", "EvaluationRecord", "EvaluationReport", "Event", "ExecOptions",
    "ExecResult", "ExecStream", "FileInfo", "FileStream", "Files", "Follow", "Gap", "Limits", "NetworkInfo", "OverviewInfo", "PoolInfo", "Process",
    "ProcessInfo", "Progress", "Remote", "Reservation", "ReservationInfo", "ReservationOptions", "Resources", "Retry",
    "Sandbox", "SandboxInfo", "SandboxOptions", "Session",
    "SessionInfo", "SessionOptions", "SessionResult", "Stderr", "Stdout", "Step", "TaskListError", "TaskReport", "TaskRow", "Terminal",
    "TerminalSpec",
    "TreeInfo", "User", "WorkloadOptions",
]  # fmt: skip
