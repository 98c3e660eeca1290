"""A program that uses every public name of the async client, for type checkers to accept: `mypy --strict` and pyright.

`tests/unit/client/test_typing.py` compares it with what there is. It is read and never run.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import assert_type

import httpx

import sandman
from sandman import (
    BadRequestError,
    Batch,
    CallerError,
    CapacityError,
    Certificate,
    CertificateReason,
    Client,
    CommandError,
    ConfigurationError,
    ConflictError,
    Data,
    DeletedError,
    DiedError,
    EntryInfo,
    Event,
    EvictedError,
    ExecOptions,
    ExecResult,
    ExecStream,
    ExpiredError,
    FileInfo,
    Files,
    FileStream,
    Follow,
    ForbiddenError,
    Gap,
    IdleError,
    ImageDeniedError,
    ImageNotFoundError,
    ImagePullError,
    InfrastructureError,
    InternalError,
    IsADirectoryPathError,
    Limits,
    MethodNotAllowedError,
    NetworkDeniedError,
    NetworkInfo,
    NetworkNotAppliedError,
    NetworkUnsupportedError,
    NodeLostError,
    NoSpaceError,
    NotADirectoryPathError,
    NotFoundError,
    OomError,
    OutcomeUnknownError,
    OverviewInfo,
    PathDeniedError,
    PathNotFoundError,
    PoolInfo,
    PortClosedError,
    PreemptedError,
    PrepareFailedError,
    Process,
    ProcessInfo,
    Progress,
    QuotaError,
    ReleasedError,
    Remote,
    Reservation,
    ReservationInfo,
    ReservationOptions,
    Resources,
    Retry,
    Sandbox,
    SandboxFaultError,
    SandboxInfo,
    SandboxOptions,
    SandmanError,
    Session,
    SessionInfo,
    SessionOptions,
    SessionResult,
    Stderr,
    Stdout,
    Step,
    SyncClient,
    Terminal,
    TerminalSpec,
    TerminalUnsupportedError,
    ThrottledError,
    TooLargeError,
    TreeInfo,
    UnauthenticatedError,
    UnreachableError,
    UnschedulableError,
    User,
    UserUnsupportedError,
    VersionSkewError,
    WorkloadOptions,
    __version__,
)


async def first(limits: Limits, on_retry: list[Retry]) -> str:
    """A sandbox for a block; a command, a shell line, and what came of them."""
    context = ssl.create_default_context()
    client = Client(
        "https://gateway:8443",
        "token",
        ca=context,
        server_name="gateway",
        limits=limits,
        on_retry=on_retry.append,
    )
    async with client, client.sandbox(**wanted()) as box:
        assert_type(box, Sandbox)
        result = await box.exec(["python", "-c", "print(1)"], **how())
        assert_type(result, ExecResult)
        again = await box.run("make test", check=True, timeout_s=60)
        return f"{result.ok} {again.exit_code} {result.stdout_text} {again.stderr_text} {box.id} {box.info.node}"


def wanted() -> SandboxOptions:
    """What sandbox."""
    step: Step = {"exec": {"argv": ["pip", "install", "x"]}}
    resources: Resources = {"cpu": "500m", "memory": "2Gi"}
    return {
        "image": "python:3.12",
        "resources": resources,
        "prepare": [step],
        "wait_s": 30,
        "labels": {"a": "b"},
    }


def how() -> ExecOptions:
    """How a command runs."""
    data: Data = b"stdin"
    user: User = 1000
    return {"env": {"A": "1"}, "cwd": "/work", "user": user, "timeout_s": 60, "stdin": data}


def limits() -> Limits:
    """How long to wait for what."""
    return Limits(connect_s=5, silence_s=60, retry_s=30, idle_s=10, max_connections=100)


def told(retry: Retry) -> str:
    """What a retry says."""
    return f"{retry.call} {retry.error} {retry.attempt} {retry.pause_s}"


def told_of(one: Certificate) -> str:
    """What a certificate says; read anew from a file it says the same."""
    kept = Certificate.from_json(one.to_json())
    again = Certificate.from_text("{}")
    known = (kept.sandbox, kept.issued_at, kept.is_controlled, kept.commands, again.to_json())
    assert_type(one.reasons, tuple[CertificateReason, ...])
    return f"{one.verdict} {one.reasons} {known}"


async def life(client: Client) -> None:
    """Sandboxes that outlive a block."""
    box = await client.create(image="python:3.12", heartbeat=False)
    same = client.attach(box.id)
    found = await client.get(box.id)
    assert_type(await same.refresh(), SandboxInfo)
    assert_type(await found.renew(), str | None)
    assert_type(await box.set_network("open", wait_s=10), NetworkInfo)
    assert_type(told_of(await box.certificate(["e1"])), str)
    assert_type(await client.certificate_keys(), dict[str, bytes])
    assert_type(await client.list("run-1", ended=True), list[Sandbox])
    await box.release()
    await client.release(found.id)
    assert_type(await client.release_run("run-1"), int)


async def many(client: Client) -> list[str]:
    """Several at once."""
    async with client.sandboxes(8, gang=True, image="python:3.12") as batch:
        assert_type(batch, Batch)
        ids = [box.id async for box in batch]
        await batch.aclose()
    return [*ids, *map(str, batch.errors), *batch.progress]


async def platform(client: Client) -> tuple[list[PoolInfo], OverviewInfo]:
    """Where sandboxes come from, and how this tenant stands."""
    return await client.pools(), await client.overview()


async def ahead(client: Client, options: ReservationOptions) -> ReservationInfo:
    """Sandboxes that are prepared before they are asked for."""
    kept = await client.reserve(**options)
    assert_type(kept, Reservation)
    await kept.wait(300)
    info = await kept.refresh()
    for other in await client.reservations():
        if other.id != kept.id:
            await other.cancel()
    return info


async def workloads(client: Client, options: WorkloadOptions) -> Sandbox:
    """Users' own pods."""
    for found in await client.workloads("shop"):
        print(found["pod"])
    return await client.attach_workload("shop", "web-0", **options)


async def streams(box: Sandbox) -> ExecResult:
    """A command's output as it comes."""
    async with box.stream(["make"], timeout_s=600) as stream:
        assert_type(stream, ExecStream)
        async for event in stream:
            print(said(event))
        await stream.wait()
    return stream.result


def said(event: Event) -> bytes:
    """The bytes of either stream."""
    match event:
        case Stdout(data):
            return data
        case Stderr(data):
            return data


async def processes(box: Sandbox) -> ProcessInfo:
    """Commands that run by themselves."""
    process = await box.start(["server"], detached=True, stdin_open=True)
    assert_type(process, Process)
    await process.write(b"line")
    await process.close_stdin()
    async with process.follow() as follow:
        assert_type(follow, Follow)
        async for event in follow:
            print(said(event))
    await follow.aclose()
    print(follow.result.exit_code, gaps(follow.gaps))
    await process.signal("TERM", tree=True)
    await process.kill(patience_s=1)
    await process.wait()
    print([one.exec_id for one in await box.processes()], box.process("id").exec_id)
    return await process.refresh()


def gaps(found: list[Gap]) -> list[tuple[str, int, int]]:
    """What is no longer kept."""
    return [(gap.stream, gap.start, gap.end) for gap in found]


async def terminals(box: Sandbox) -> ExecResult:
    """A program in a terminal."""
    async with box.terminal(["vim"], size=TerminalSpec(24, 80)) as terminal:
        assert_type(terminal, Terminal)
        await terminal.write("ihello")
        await terminal.resize(40, 120)
        print(await terminal.read(timeout_s=1), terminal.offset, gaps(terminal.gaps))
    opened = await box.open_terminal(detached=True)
    await opened.aclose()
    again = box.attach_terminal("id", offset=terminal.offset)
    await again.aclose()
    return terminal.result


async def sessions(box: Sandbox, options: SessionOptions) -> SessionInfo:
    """A shell that stays."""
    async with await box.session("main", **options) as session:
        assert_type(session, Session)
        result = await session.run("cd /work", timeout_s=5)
        assert_type(result, SessionResult)
        await session.input("y")
        await session.interrupt()
        print(result.ok, result.output_text, result.notices_text)
        info = await session.refresh()
    print([one.name for one in await box.sessions()])
    await box.attach_session("main").close()
    return info


async def files(box: Sandbox, progress: Progress) -> None:
    """Files and trees."""
    files = box.files
    assert_type(files, Files)
    there: Remote = "/work/a"
    assert_type(await files.write(there, "text", mode=0o600), FileInfo)
    assert_type(await files.read(there), bytes)
    assert_type(await files.read_text(there), str)
    async with files.stream(there) as stream:
        assert_type(stream, FileStream)
        print(await stream.read(), [chunk async for chunk in stream])
    assert_type(await files.upload("here", there), FileInfo)
    await files.download(there, Path("here"))
    assert_type(await files.upload_dir("tree", "/work/tree", progress=progress), TreeInfo)
    await files.download_dir("/work/tree", "tree", progress=progress)
    assert_type(await files.stat(there), EntryInfo)
    print([entry.path for entry in await files.list("/work", depth=2)])
    await files.move(there, "/work/b", replace=True)
    await files.mkdir("/work/c", parents=True)
    await files.delete("/work/c", recursive=True)
    print(await files.exists(there))


async def servers(box: Sandbox) -> int:
    """A server inside."""
    async with box.http(8000) as server:
        assert_type(server, httpx.AsyncClient)
        answer = await server.get("/health")
    print(box.port_url(8000, websocket=True), box.port_headers())
    return answer.status_code


def shapes(
    result: ExecResult,
    process: ProcessInfo,
    session: SessionInfo,
    turn: SessionResult,
    size: TerminalSpec,
) -> object:
    """What travels, as JSON and back."""
    print(ExecResult.from_json(result.to_json()), ProcessInfo.from_json(process.to_json()))
    print(SessionInfo.from_json(session.to_json()), SessionResult.from_json(turn.to_json()))
    print(TerminalSpec.from_json(size.to_json()), Gap.from_json({}).to_json())
    kinds = (SandboxInfo, PoolInfo, OverviewInfo, ReservationInfo, FileInfo, EntryInfo, TreeInfo)
    return [kind.from_json({}) for kind in kinds]


async def close(client: Client) -> None:
    """Without a block."""
    await client.aclose()


def explained(error: Exception) -> str:
    """What went wrong, by class."""
    if isinstance(error, CommandError):
        return f"exit code {error.result.exit_code}"
    if isinstance(error, (CallerError, SandboxFaultError, InfrastructureError)):
        return f"{error.cause}, known: {type(error) in REASONS}"
    if isinstance(error, SandmanError):
        return f"{error.reason} {error.detail} {error.retryable} {error.problem()}"
    return str(error)


REASONS: tuple[type[SandmanError], ...] = (
    BadRequestError,
    CapacityError,
    ConfigurationError,
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
    InternalError,
    IsADirectoryPathError,
    MethodNotAllowedError,
    NetworkDeniedError,
    NetworkNotAppliedError,
    NetworkUnsupportedError,
    NoSpaceError,
    NodeLostError,
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
    TerminalUnsupportedError,
    ThrottledError,
    TooLargeError,
    UnauthenticatedError,
    UnreachableError,
    UnschedulableError,
    UserUnsupportedError,
    VersionSkewError,
)


async def evaluations(client: Client) -> sandman.EvaluationReport:
    """Calibrate."""
    report = await client.evaluate("rows", "gold", "out", **sandman.EvaluationOptions(times=10))
    print(
        report.flips,
        report.counts,
        report.certified,
        report.is_whole,
        report.text(),
        report.to_json(),
    )
    return report


def seen(at: sandman.EvaluationProgress, task: sandman.TaskReport, row: sandman.TaskRow) -> object:
    """On the way."""
    one: sandman.EvaluationRecord | sandman.TaskListError | None = at.record
    if isinstance(one, sandman.EvaluationRecord) and not one.is_verdict:
        print(
            sandman.EvaluationRecord.from_json(one.to_json()),
            assert_type(one.key, sandman.EvaluationKey),
        )
    return row.script, row.document(), row.digest(), task.to_json()


def version() -> str:
    """Of this client."""
    return __version__


def other() -> SyncClient:
    """The sync client, which has a sample of its own."""
    return SyncClient(context="prod")
