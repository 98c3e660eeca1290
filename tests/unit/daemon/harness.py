"""A real daemon as a process, and what tests ask of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from sandman import names, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

TOKEN = "t0ken-of-the-tests"
ROOT = Path(__file__).resolve().parents[3]


class Daemon:
    """One running daemon."""

    def __init__(self, process: subprocess.Popen[str], *, nested: bool = False) -> None:
        self.process = process
        self.lines: list[str] = []
        assert process.stderr is not None
        line = process.stderr.readline()
        if "listens on port" not in line:
            with process:
                raise AssertionError(line + process.stderr.read())
        self.port = int(line.split()[-1])
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.pid = children_of(process.pid)[0] if nested else process.pid
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=25,
            verify=False,  # spares the loading of certificates, for each client anew
        )

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            self.lines.extend(stderr)

    def exec(self, **body: object) -> wire.ExecResult:
        """The result of a command, as JSON."""
        response = self.post(body)
        assert response.status_code == 200, response.text
        return wire.ExecResult.from_json(response.json())

    def post(
        self, body: Mapping[str, object], headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """The answer to an exec call. Not by httpx's own JSON: it cannot carry surrogates."""
        return self.client.post("/v1/exec", content=json.dumps(body), headers=headers)

    def sh(self, script: str, **body: object) -> wire.ExecResult:
        """The result of a script."""
        return self.exec(shell=script, **body)

    def refuse(self, **body: object) -> dict[str, object]:
        """The problem that the exec call ends in."""
        return problem(self.post(body))

    def frames(self, **body: object) -> list[wire.Frame]:
        """All frames of a command's answer."""
        headers = {"Accept": names.MEDIA_FRAMES}
        response = self.post(body, headers)
        assert response.status_code == 200, response.text
        return decode(response.content)

    def upload(self, frames: bytes | Iterator[bytes], **headers: str) -> httpx.Response:
        """The answer to a framed request."""
        headers = {"Content-Type": names.MEDIA_FRAMES, **headers}
        return self.client.post("/v1/exec", content=frames, headers=headers)

    def put(self, path: object, content: bytes | Iterator[bytes], **options: str) -> httpx.Response:
        """The answer to an upload."""
        return self.client.put("/v1/files", params={"path": str(path), **options}, content=content)

    def get(self, path: object, **headers: str) -> httpx.Response:
        """The answer to a download."""
        return self.client.get("/v1/files", params={"path": str(path)}, headers=headers)

    def connect(self) -> socket.socket:
        """A connection to write bytes by hand."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def raw(self, data: bytes) -> bytes:
        """All that the daemon says to these bytes until it closes."""
        with self.connect() as sock:
            sock.sendall(data)
            return read_all(sock)

    def stop(self) -> int:
        """End it as the kubelet would; its exit code."""
        self.client.close()
        if self.process.poll() is None:
            # Who started it may not have noticed yet that it has ended.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        try:
            code = self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._reader.join(5)
        return code


def start(
    *prefix: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    program: tuple[str, ...] | None = None,
    **popen: object,
) -> Daemon:
    """Start a daemon, below `prefix` (as in `unshare …`) when one is given."""
    program = program or (sys.executable, "-m", "daemon", "serve")
    process = subprocess.Popen(
        [*prefix, *program],
        env=environment(env),
        cwd=cwd or ROOT,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        **popen,  # type: ignore[call-overload]
    )
    return Daemon(process, nested="unshare" in prefix)


def serve_by(python: object) -> tuple[str, ...]:
    """The daemon of this checkout on another Python."""
    return (str(python), "-S", "-B", "-m", "daemon", "serve")


def small(tmp_path: object, **limits: object) -> tuple[str, ...]:
    """A program that runs the daemon with other limits."""
    lines = "".join(f"config.{name} = {value}\n" for name, value in limits.items())
    script = Path(str(tmp_path)) / "small.py"
    script.write_text(
        f"import sys\nfrom daemon import config\n{lines}"
        "from daemon.__main__ import main\nsys.exit(main())\n"
    )
    return (sys.executable, str(script))


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the pod would set."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        names.ENV_TOKEN_SHA256: hashlib.sha256(TOKEN.encode()).hexdigest(),
        names.ENV_PORT: "0",
        **(more or {}),
    }


def with_prctl(directory: Path) -> dict[str, str]:
    """Variables that give a daemon the runtime's own module, played by ctypes."""
    (directory / "_sandman.py").write_text(
        "import ctypes\n_libc = ctypes.CDLL(None, use_errno=True)\n"
        "def prctl(option, value):\n    return _libc.prctl(option, value, 0, 0, 0)\n"
    )
    return {"PYTHONPATH": f"{directory}:{ROOT}"}


def head(method: str, target: str, *headers: str) -> bytes:
    """A request's head with the token."""
    lines = [f"{method} {target} HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def exec_request(body: Mapping[str, object], *headers: str) -> bytes:
    """A whole exec request."""
    data = json.dumps(body).encode()
    return head("POST", "/v1/exec", f"Content-Length: {len(data)}", *headers) + data


def problem(response: httpx.Response) -> dict[str, object]:
    """The problem in an answer."""
    assert response.headers["content-type"] == names.MEDIA_PROBLEM, response.text
    document = response.json()
    assert document["status"] == response.status_code
    return dict(document)


def decode(data: bytes) -> list[wire.Frame]:
    """The frames in these bytes, which must end with one."""
    decoder = wire.FrameDecoder()
    frames = list(decoder.feed(data))
    assert decoder.is_clean
    return frames


def joined(frames: list[wire.Frame], kind: int) -> bytes:
    """The payloads of one type."""
    return b"".join(frame.payload for frame in frames if frame.type == kind)


def read_all(sock: socket.socket) -> bytes:
    """Everything until the other side closes."""
    data = bytearray()
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return bytes(data)


def chunks(data: bytes) -> Iterator[bytes]:
    """What is there of a chunked body, however it was cut."""
    at = 0  # without a copy of the rest for each: there may be 40 MB
    while (end := data.find(b"\r\n", at)) >= 0 and (size := int(data[at:end], 16)):
        yield data[end + 2 : end + 2 + size]
        at = end + 4 + size


def names_in(directory: object) -> list[str]:
    """The names in a directory, sorted."""
    return sorted(path.name for path in Path(str(directory)).iterdir())


def peak_kib(daemon: Daemon) -> int:
    """The most memory that the daemon has had."""
    lines = Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def children_of(pid: int) -> list[int]:
    """Direct children, as the outer pid namespace numbers them."""
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def processes_with(text: str) -> list[int]:
    """Live processes whose command line holds the text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if text.encode() in line and state not in "ZX":
                found.append(int(entry.name))
    return found


def wait_until(condition: Callable[[], object], seconds: float = 5.0) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False
