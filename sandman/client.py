"""The client, async: on asyncio and on trio. `sandman.sync` has its twin.

from sandman.client import Client

async with Client() as client, client.sandbox(image="python:3.12") as box:
    result = await box.run("pytest -q", timeout_s=600)
    print(result.exit_code, result.stdout_text)
"""

from sandman._async.bodies import Data
from sandman._async.client import Client
from sandman._async.command import ExecOptions
from sandman._async.creation import Batch, SandboxOptions
from sandman._async.files import Files, FileStream, Remote, User
from sandman._async.follow import Follow
from sandman._async.process import Process
from sandman._async.reservation import Reservation, ReservationOptions
from sandman._async.sandbox import Sandbox
from sandman._async.session import Session, SessionOptions
from sandman._async.stream import ExecStream
from sandman._async.terminal import Terminal
from sandman._async.trees import Progress
from sandman._async.workloads import WorkloadOptions
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
