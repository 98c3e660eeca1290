"""`POST /v1/exec`: limits, frames, streamed input: points 7 and 20 to 22."""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from sandman import names, wire
from tests.unit.daemon.harness import (
    Daemon,
    chunks,
    decode,
    exec_request,
    head,
    joined,
    peak_kib,
    problem,
    read_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1024 * 1024


def framed(*stdin: bytes, close: bool = True, **body: object) -> Iterator[bytes]:
    """A framed request in pieces."""
    yield wire.encode_frame(wire.REQUEST, json.dumps(body).encode())
    for data in stdin:
        yield wire.encode_frame(wire.STDIN, data)
    if close:
        yield wire.encode_frame(wire.STDIN_CLOSE)


def result_of(frames: list[wire.Frame]) -> wire.ExecResult:
    """The result in the last frame."""
    assert frames[-1].type == wire.EXIT
    return wire.ExecResult.from_json(json.loads(frames[-1].payload))


def test_20_output_over_the_limit_keeps_head_and_tail(daemon: Daemon) -> None:
    result = daemon.sh("seq 1 200000; echo e >&2", output_limit=1000)
    whole = "".join(f"{n}\n" for n in range(1, 200001)).encode()
    assert result.stdout == whole[:500] + whole[-500:]
    assert result.stdout_truncated
    assert result.stdout_bytes == len(whole)
    assert (result.stderr, result.stderr_truncated) == (b"e\n", False)


def test_20_memory_stays_bounded(start: Callable[..., Daemon]) -> None:
    fresh = start()
    result = fresh.sh("head -c 300M /dev/zero", output_limit=MIB)
    assert result.stdout_bytes == 300 * MIB
    assert len(result.stdout) == MIB
    assert peak_kib(fresh) < 60 * 1024


def test_20_nothing_is_kept_with_a_limit_of_zero(daemon: Daemon) -> None:
    result = daemon.sh("echo x", output_limit=0)
    assert (result.stdout, result.stdout_bytes, result.stdout_truncated) == (b"", 2, True)


def test_21_exactly_at_the_limit_is_not_truncated(daemon: Daemon) -> None:
    result = daemon.sh("head -c 1001 /dev/zero", output_limit=1001)
    assert (len(result.stdout), result.stdout_truncated) == (1001, False)
    result = daemon.sh("head -c 1002 /dev/zero", output_limit=1001)
    assert (len(result.stdout), result.stdout_truncated) == (1001, True)


def test_21_half_a_mebibyte_is_whole(daemon: Daemon) -> None:
    result = daemon.sh("head -c 512000 /dev/zero")
    assert (len(result.stdout), result.stdout_truncated) == (512000, False)


def test_21_an_endless_writer_ends_with_its_reader(daemon: Daemon) -> None:
    assert daemon.sh("yes | head -c 50M | wc -c").stdout.strip() == b"52428800"


@pytest.mark.parametrize("accept", [names.MEDIA_JSON, names.MEDIA_FRAMES])
def test_22_large_output_is_complete_every_time(daemon: Daemon, accept: str) -> None:
    for _ in range(25):
        if accept == names.MEDIA_JSON:
            out = daemon.sh("seq 1 100000").stdout
        else:
            out = joined(daemon.frames(shell="seq 1 100000"), wire.STDOUT)
        assert out.endswith(b"\n100000\n")
        assert out.count(b"\n") == 100000


def test_22_last_words_are_never_lost(daemon: Daemon) -> None:
    # 60 KiB fit the pipe: the leader is gone before a byte of them is read.
    for _ in range(50):
        result = daemon.sh("head -c 60000 /dev/zero; sleep 1 & exit 4")
        assert (result.exit_code, len(result.stdout)) == (4, 60000)


def test_frames_tell_the_story_in_order(daemon: Daemon) -> None:
    frames = daemon.frames(shell="echo out; sleep 0.05; echo err >&2; exit 5", exec_id="story")
    assert [frame.type for frame in frames] == [
        wire.STARTED, wire.STDOUT, wire.STDERR, wire.EXIT,
    ]  # fmt: skip
    assert json.loads(frames[0].payload)["exec_id"] == "story"
    result = result_of(frames)
    assert (result.exit_code, result.stdout_bytes, result.stderr_bytes) == (5, 4, 4)
    assert "stdout" not in json.loads(frames[-1].payload)


def test_frames_of_a_command_that_did_not_start(daemon: Daemon) -> None:
    frames = daemon.frames(argv=["no-such"])
    result = result_of(frames)
    assert (result.exit_code, result.start_error) == (127, "not_found")
    assert b"no-such" in joined(frames, wire.STDERR)


def test_frames_give_every_byte_whatever_the_limit(daemon: Daemon) -> None:
    frames = daemon.frames(shell="seq 1 500000; seq 1 100000 >&2", output_limit=10)
    whole = "".join(f"{n}\n" for n in range(1, 500001)).encode()
    assert joined(frames, wire.STDOUT) == whole
    assert joined(frames, wire.STDERR) == whole[: whole.index(b"\n100001\n") + 1]
    result = result_of(frames)
    assert (result.stdout_truncated, result.stderr_truncated) == (False, False)
    assert result.stdout_bytes == len(whole)


def test_a_slow_reader_slows_the_command_and_loses_nothing(daemon: Daemon) -> None:
    with daemon.connect() as sock:
        body = {"shell": "head -c 6M /dev/urandom | tee >(sha256sum >&2); wait"}
        sock.sendall(exec_request(body, f"Accept: {names.MEDIA_FRAMES}", "Connection: close"))
        time.sleep(0.5)
        data = read_all(sock)
    assert data.endswith(b"\r\n0\r\n\r\n")
    body_bytes = b"".join(chunks(data.partition(b"\r\n\r\n")[2]))
    frames = decode(body_bytes)
    out = joined(frames, wire.STDOUT)
    assert len(out) == 6 * MIB
    assert joined(frames, wire.STDERR).split()[0].decode() == hashlib.sha256(out).hexdigest()


def test_07_framed_stdin_is_streamed(start: Callable[..., Daemon]) -> None:
    fresh = start()
    block = os.urandom(MIB)
    response = fresh.upload(framed(*[block] * 60, argv=["sha256sum"]))
    result = wire.ExecResult.from_json(response.json())
    assert result.stdout.split()[0].decode() == hashlib.sha256(block * 60).hexdigest()
    assert peak_kib(fresh) < 60 * 1024


def test_07_framed_stdin_and_framed_output(daemon: Daemon) -> None:
    data = os.urandom(3 * MIB)
    pieces = [data[i : i + 100_000] for i in range(0, len(data), 100_000)]
    response = daemon.upload(
        framed(*pieces, argv=["cat"], output_limit=4 * MIB), Accept=names.MEDIA_FRAMES
    )
    frames = decode(response.content)
    assert frames[0].type == wire.STARTED
    assert joined(frames, wire.STDOUT) == data
    assert not result_of(frames).stdout_truncated


def test_framed_output_of_an_upload_keeps_to_the_limit_until_it_has_arrived(
    daemon: Daemon,
) -> None:
    data = bytes(8 * MIB)
    request = framed(*[data[: 2 * MIB]] * 4, argv=["cat"], output_limit=MIB)
    response = daemon.upload(request, Accept=names.MEDIA_FRAMES)
    result = result_of(decode(response.content))
    assert result.stdout_bytes == 8 * MIB
    assert result.stdout_truncated


def test_a_framed_upload_without_close_ends_with_its_body(daemon: Daemon) -> None:
    response = daemon.upload(framed(b"abc", close=False, argv=["cat"]))
    assert wire.ExecResult.from_json(response.json()).stdout == b"abc"
    response = daemon.upload(framed(argv=["cat"], close=False))
    assert wire.ExecResult.from_json(response.json()).stdout == b""


def test_stdin_in_the_request_comes_before_that_in_frames(daemon: Daemon) -> None:
    response = daemon.upload(framed(b" two", argv=["cat"], stdin="one"))
    assert wire.ExecResult.from_json(response.json()).stdout == b"one two"


def test_a_framed_upload_that_nobody_reads(daemon: Daemon) -> None:
    for argv in (["true"], ["no-such-program"]):
        response = daemon.upload(framed(*[bytes(MIB)] * 5, argv=argv))
        assert response.json()["exit_code"] in {0, 127}
    assert daemon.sh("echo next").stdout == b"next\n"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        wire.encode_frame(wire.STDIN, b"x"),
        wire.encode_frame(wire.REQUEST, b"{}"),
        wire.encode_frame(wire.REQUEST, b'{"argv":["cat"]}') + b"\x11\0\0",
        wire.encode_frame(wire.REQUEST, b'{"argv":["cat"]}') * 2,
        b"".join(framed(argv=["cat"])) + wire.encode_frame(wire.STDIN, b"late"),
        b"\xff" * 10,
    ],
)
def test_frames_out_of_place_are_refused(daemon: Daemon, body: bytes) -> None:
    assert problem(daemon.upload(body))["reason"] == "bad_request"


def test_an_upload_that_breaks_the_rules_ends_its_command(daemon: Daemon) -> None:
    running = daemon.client.get("/v1/info").json()["running"]

    def body() -> Iterator[bytes]:
        yield from framed(argv=["sleep", "60"], close=False)
        time.sleep(0.1)
        yield b"\xff" * 10

    assert problem(daemon.upload(body()))["reason"] == "bad_request"
    assert daemon.client.get("/v1/info").json()["running"] == running


def test_expect_continue_is_answered_before_the_body(daemon: Daemon) -> None:
    data = json.dumps({"argv": ["echo", "hi"]}).encode()
    with daemon.connect() as sock:
        sock.sendall(
            head("POST", "/v1/exec", f"Content-Length: {len(data)}", "Expect: 100-continue")
        )
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(data)
        assert b'"stdout": "hi\\n"' in sock.recv(65536)
