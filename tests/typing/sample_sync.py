"""A program that uses every public name of the sync client, for type checkers to accept: `mypy --strict` and pyright.

`tests/unit/client/test_typing.py` compares it with what there is. It is read and never run.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import assert_type

import httpx

from sandman import sync
from sandman.sync import (
    Batch,
    Certificate,
    CertificateReason,
    Client,
    CommandError,
    ConfigurationError,
    Data,
    EntryInfo,
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
    Terminal,
    TerminalSpec,
    TreeInfo,
    User,
    WorkloadOptions,
)


def first(limits: Limits, on_retry: list[Retry]) -> str:
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
    with client, client.sandbox(**wanted()) as box:
        assert_type(box, Sandbox)
        result = box.exec(["python", "-c", "print(1)"], **how())
        assert_type(result, ExecResult)
        again = box.run("make test", check=True, timeout_s=60)
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


def life(client: Client) -> None:
    """Sandboxes that outlive a block."""
    box = client.create(image="python:3.12", heartbeat=False)
    same = client.attach(box.id)
    found = client.get(box.id)
    assert_type(same.refresh(), SandboxInfo)
    assert_type(found.renew(), str | None)
    assert_type(box.set_network("open", wait_s=10), NetworkInfo)
    assert_type(told_of(box.certificate(["e1"])), str)
    assert_type(client.certificate_keys(), dict[str, bytes])
    assert_type(client.list("run-1", ended=True), list[Sandbox])
    box.release()
    client.release(found.id)
    assert_type(client.release_run("run-1"), int)


def many(client: Client) -> list[str]:
    """Several at once."""
    with client.sandboxes(8, gang=True, image="python:3.12") as batch:
        assert_type(batch, Batch)
        ids = [box.id for box in batch]
        batch.close()
    return [*ids, *map(str, batch.errors), *batch.progress]


def platform(client: Client) -> tuple[list[PoolInfo], OverviewInfo]:
    """Where sandboxes come from, and how this tenant stands."""
    return client.pools(), client.overview()


def ahead(client: Client, options: ReservationOptions) -> ReservationInfo:
    """Sandboxes that are prepared before they are asked for."""
    kept = client.reserve(**options)
    assert_type(kept, Reservation)
    kept.wait(300)
    info = kept.refresh()
    for other in client.reservations():
        if other.id != kept.id:
            other.cancel()
    return info


def workloads(client: Client, options: WorkloadOptions) -> Sandbox:
    """Users' own pods."""
    for found in client.workloads("shop"):
        print(found["pod"])
    return client.attach_workload("shop", "web-0", **options)


def streams(box: Sandbox) -> ExecResult:
    """A command's output as it comes."""
    with box.stream(["make"], timeout_s=600) as stream:
        assert_type(stream, ExecStream)
        for event in stream:
            print(said(event))
        stream.wait()
    return stream.result


def said(event: Event) -> bytes:
    """The bytes of either stream."""
    match event:
        case Stdout(data):
            return data
        case Stderr(data):
            return data


def processes(box: Sandbox) -> ProcessInfo:
    """Commands that run by themselves."""
    process = box.start(["server"], detached=True, stdin_open=True)
    assert_type(process, Process)
    process.write(b"line")
    process.close_stdin()
    with process.follow() as follow:
        assert_type(follow, Follow)
        for event in follow:
            print(said(event))
    follow.close()
    print(follow.result.exit_code, gaps(follow.gaps))
    process.signal("TERM", tree=True)
    process.kill(patience_s=1)
    process.wait()
    print([one.exec_id for one in box.processes()], box.process("id").exec_id)
    return process.refresh()


def gaps(found: list[Gap]) -> list[tuple[str, int, int]]:
    """What is no longer kept."""
    return [(gap.stream, gap.start, gap.end) for gap in found]


def terminals(box: Sandbox) -> ExecResult:
    """A program in a terminal."""
    with box.terminal(["vim"], size=TerminalSpec(24, 80)) as terminal:
        assert_type(terminal, Terminal)
        terminal.write("ihello")
        terminal.resize(40, 120)
        print(terminal.read(timeout_s=1), terminal.offset, gaps(terminal.gaps))
    opened = box.open_terminal(detached=True)
    opened.close()
    again = box.attach_terminal("id", offset=terminal.offset)
    again.close()
    return terminal.result


def sessions(box: Sandbox, options: SessionOptions) -> SessionInfo:
    """A shell that stays."""
    with box.session("main", **options) as session:
        assert_type(session, Session)
        result = session.run("cd /work", timeout_s=5)
        assert_type(result, SessionResult)
        session.input("y")
        session.interrupt()
        print(result.ok, result.output_text, result.notices_text)
        info = session.refresh()
    print([one.name for one in box.sessions()])
    box.attach_session("main").close()
    return info


def files(box: Sandbox, progress: Progress) -> None:
    """Files and trees."""
    files = box.files
    assert_type(files, Files)
    there: Remote = "/work/a"
    assert_type(files.write(there, "text", mode=0o600), FileInfo)
    assert_type(files.read(there), bytes)
    assert_type(files.read_text(there), str)
    with files.stream(there) as stream:
        assert_type(stream, FileStream)
        print(stream.read(), list(stream))
    assert_type(files.upload("here", there), FileInfo)
    files.download(there, Path("here"))
    assert_type(files.upload_dir("tree", "/work/tree", progress=progress), TreeInfo)
    files.download_dir("/work/tree", "tree", progress=progress)
    assert_type(files.stat(there), EntryInfo)
    print([entry.path for entry in files.list("/work", depth=2)])
    files.move(there, "/work/b", replace=True)
    files.mkdir("/work/c", parents=True)
    files.delete("/work/c", recursive=True)
    print(files.exists(there))


def servers(box: Sandbox) -> int:
    """A server inside."""
    with box.http(8000) as server:
        assert_type(server, httpx.Client)
        answer = server.get("/health")
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


def evaluations(client: Client) -> sync.EvaluationReport:
    """Calibrate."""
    options = sync.EvaluationOptions(times=10)
    report = client.evaluate("rows.jsonl", "gold", "out", **options)
    print(
        report.flips,
        report.counts,
        report.certified,
        report.is_whole,
        report.text(),
        report.to_json(),
    )
    return report


def seen(at: sync.EvaluationProgress, task: sync.TaskReport, row: sync.TaskRow) -> object:
    """On the way."""
    one: sync.EvaluationRecord | sync.TaskListError | None = at.record
    if isinstance(one, sync.EvaluationRecord) and not one.is_verdict:
        print(
            sync.EvaluationRecord.from_json(one.to_json()), assert_type(one.key, sync.EvaluationKey)
        )
    return row.script, row.document(), row.digest(), task.to_json()


def close(client: Client) -> None:
    """Without a block."""
    client.close()


def explained(error: Exception) -> str:
    """What the client raises besides `sandman.errors`."""
    if isinstance(error, CommandError):
        return f"exit code {error.result.exit_code}"
    return f"{isinstance(error, ConfigurationError)}"
