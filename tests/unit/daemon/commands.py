"""Calls of `/v1/processes`, for tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from sandman import handles, names, wire
from tests.unit.daemon.harness import (
    Daemon,
    decode,
    head,
)

if TYPE_CHECKING:
    import httpx

MIB = 1024 * 1024
FRAMES = f"Accept: {names.MEDIA_FRAMES}"


def call(daemon: Daemon, method: str, path: str, **options: object) -> httpx.Response:
    return daemon.client.request(method, f"/v1/processes{path}", **options)  # type: ignore[arg-type]


def begin(daemon: Daemon, **body: object) -> handles.ProcessInfo:
    response = call(daemon, "POST", "", json={"detached": True, **body})
    assert response.status_code == 200, response.text
    return handles.ProcessInfo.from_json(response.json())


def ask(daemon: Daemon, exec_id: str, wait_s: float | None = None) -> handles.ProcessInfo:
    query = "" if wait_s is None else f"?wait_s={wait_s}"
    response = call(daemon, "GET", f"/{exec_id}{query}")
    assert response.status_code == 200, response.text
    return handles.ProcessInfo.from_json(response.json())


def ended(daemon: Daemon, exec_id: str) -> wire.ExecResult:
    result = ask(daemon, exec_id, 20).result
    assert result is not None
    return result


def output(daemon: Daemon, exec_id: str, stdout: int = 0, stderr: int = 0) -> list[wire.Frame]:
    response = call(daemon, "GET", f"/{exec_id}/output?stdout={stdout}&stderr={stderr}")
    assert response.status_code == 200, response.text
    return decode(response.content)


def gaps(frames: list[wire.Frame]) -> list[handles.Gap]:
    return [
        handles.Gap.from_json(json.loads(frame.payload))
        for frame in frames
        if frame.type == wire.GAP
    ]


class Partial:
    """What a reader has got when its connection breaks: offsets and bytes of each stream."""

    def __init__(self) -> None:
        self.got = {wire.STDOUT: b"", wire.STDERR: b""}
        self.gaps: list[handles.Gap] = []
        self.result: wire.ExecResult | None = None

    def read(self, daemon: Daemon, exec_id: str, most: int) -> None:
        """Follow from here, and hang up after so many bytes of the answer."""
        offsets = f"stdout={len(self.got[wire.STDOUT])}&stderr={len(self.got[wire.STDERR])}"
        with daemon.connect() as sock:
            sock.sendall(head("GET", f"/v1/processes/{exec_id}/output?{offsets}"))
            self.take(sock, most)

    def take(self, sock, most: int) -> None:
        data = b""
        while len(data) < most and b"0\r\n\r\n" not in data[-5:]:
            piece = sock.recv(min(65536, most - len(data)))
            if not piece:
                break
            data += piece
        frames = wire.FrameDecoder()
        for frame in frames.feed(b"".join(chunks(data.partition(b"\r\n\r\n")[2]))):
            if frame.type in self.got:
                self.got[frame.type] += frame.payload
            elif frame.type == wire.GAP:
                self.gaps.append(handles.Gap.from_json(json.loads(frame.payload)))
            elif frame.type == wire.EXIT:
                self.result = wire.ExecResult.from_json(json.loads(frame.payload))


def chunks(data: bytes):
    """What is there of a chunked body, however it was cut."""
    start = 0
    while (end := data.find(b"\r\n", start)) >= 0 and (size := int(data[start:end], 16)):
        yield data[end + 2 : end + 2 + size]
        start = end + 4 + size
