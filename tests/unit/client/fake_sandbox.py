"""Inside a sandbox of the fake gateway: files in a directory, commands as processes of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import selectors
import shutil
import signal
import stat
import subprocess
import tarfile
import threading
import time
from typing import TYPE_CHECKING

from sandman import errors, names, wire
from tests.unit.client.fake_connection import HangupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tests.unit.client.fake_connection import Connection, Request


class Inside:
    """Calls on one sandbox. A part of `FakeGateway`."""

    def _local(self, sandbox: str, request: Request) -> Path:
        self._find(sandbox)
        return self._root / sandbox / request.query["path"].lstrip("/")

    def _read(self, connection: Connection, request: Request, sandbox: str) -> None:
        path = self._local(sandbox, request)
        with file_errors(request.query["path"]):
            data = path.read_bytes()
            mode = path.stat().st_mode & 0o7777
        connection.answer(
            200, data, {"sandman-mode": f"{mode:04o}", "content-type": names.MEDIA_BYTES}
        )

    def _head(self, connection: Connection, request: Request, sandbox: str) -> None:
        self._read(connection, request, sandbox)

    def _write(self, connection: Connection, request: Request, sandbox: str) -> None:
        path = self._local(sandbox, request)
        digest = hashlib.sha256(request.body).hexdigest()
        if request.query.get("sha256", digest) != digest:
            raise errors.BadRequestError("sha256 differs", field="sha256")
        with file_errors(request.query["path"]):
            mode = int(request.query.get("mode", "0644"), 8)
            path.parent.mkdir(parents=True, exist_ok=True)
            existed = path.exists()
            path.write_bytes(request.body)
            if not existed or "mode" in request.query:
                path.chmod(mode)
        told = {"path": request.query["path"], "size": len(request.body), "sha256": digest}
        connection.json(200, {**told, "mode": f"{path.stat().st_mode & 0o7777:04o}"})

    def _delete(self, connection: Connection, request: Request, sandbox: str) -> None:
        path = self._local(sandbox, request)
        with file_errors(request.query["path"]):
            if request.query.get("recursive") == "1" and path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        connection.answer(204)

    def _stat(self, connection: Connection, request: Request, sandbox: str) -> None:
        path = self._local(sandbox, request)
        with file_errors(request.query["path"]):
            connection.json(200, entry(path, follow=request.query.get("follow") == "1"))

    def _list_files(self, connection: Connection, request: Request, sandbox: str) -> None:
        path = self._local(sandbox, request)
        pattern = "**/*" if request.query["depth"] != "1" else "*"
        with file_errors(request.query["path"]):
            found = [entry(one) for one in sorted(path.glob(pattern))] if path.stat() else []
        connection.json(200, {"entries": found})

    def _move(self, connection: Connection, request: Request, sandbox: str) -> None:
        asked = request.json()
        source, target = (self._root / sandbox / asked[name] for name in ("from", "to"))
        if target.exists() and not asked["replace"]:
            raise errors.ConflictError("exists", field="to")
        with file_errors(asked["from"]):
            connection.json(200, entry(source.rename(target)))

    def _mkdir(self, connection: Connection, request: Request, sandbox: str) -> None:
        asked = request.json()
        path = self._root / sandbox / asked["path"]
        with file_errors(asked["path"]):
            path.mkdir(int(asked["mode"], 8), parents=asked["parents"], exist_ok=asked["parents"])
        connection.json(200, entry(path))

    def _pack(self, connection: Connection, request: Request, sandbox: str) -> None:
        path, stream = self._local(sandbox, request), io.BytesIO()
        with file_errors(request.query["path"]), tarfile.open(fileobj=stream, mode="w") as archive:
            archive.add(path, ".")
        connection.answer(200, stream.getvalue(), {"content-type": names.MEDIA_TAR})

    def _unpack(self, connection: Connection, request: Request, sandbox: str) -> None:
        path = self._local(sandbox, request)
        with tarfile.open(fileobj=io.BytesIO(request.body)) as archive:
            infos = [info for info in archive.getmembers() if info.name != "."]
            archive.extractall(path)
        told = {"path": request.query["path"], "members": len(infos), "skipped": [["f", "fifo"]]}
        size = sum(info.size for info in infos)
        connection.json(200, {**told, "bytes": size, "skipped_count": 1})

    # --- commands -------------------------------------------------------------------------------

    def _exec(self, connection: Connection, request: Request, sandbox: str) -> None:
        self._find(sandbox)
        spec = parse_spec(request)
        connection.head(200, {"content-type": names.MEDIA_FRAMES})
        connection.frame(wire.STARTED, {"exec_id": spec.exec_id or "e1", "boot_id": "b1"})
        result = self._run(connection, spec, self._root / sandbox)
        connection.frame(wire.EXIT, result.to_json(streams=False))
        connection.finish()

    def _kill(self, connection: Connection, request: Request, sandbox: str, exec_id: str) -> None:
        self._find(sandbox)
        connection.answer(204)

    def _run(self, connection: Connection, spec: wire.ExecSpec, root: Path) -> wire.ExecResult:
        argv = list(spec.argv) if spec.argv else ["/bin/sh", "-c", spec.shell or ""]
        started = time.monotonic()
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if spec.merge_stderr else subprocess.PIPE,
                cwd=root / (spec.cwd or ""), start_new_session=True,
                env={**(os.environ if spec.env_mode == "merge" else {}), **dict(spec.env)},
            )  # fmt: skip
        except FileNotFoundError:
            return wire.ExecResult(127, start_error="not_found")
        self.processes.append(process)
        self.started.set()
        threading.Thread(target=feed, args=(process, spec.stdin or b""), daemon=True).start()
        deadline = None if spec.timeout_s is None else started + spec.timeout_s
        counts, timed_out = self._pump(connection, process, deadline)
        code = process.wait()
        return wire.ExecResult(
            exit_code=code if code >= 0 else 128 - code,
            signal=-code if code < 0 else None,
            timed_out=timed_out,
            stdout_bytes=counts[wire.STDOUT],
            stderr_bytes=counts[wire.STDERR],
            wall_s=time.monotonic() - started,
            exec_id=spec.exec_id or "e1",
            boot_id="b1",
        )

    def _pump(self, connection: Connection, process: subprocess.Popen, deadline: float | None):
        counts, timed_out = {wire.STDOUT: 0, wire.STDERR: 0}, False
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ, wire.STDOUT)
            if process.stderr is not None:
                selector.register(process.stderr, selectors.EVENT_READ, wire.STDERR)
            selector.register(connection.sock, selectors.EVENT_READ, None)
            while len(selector.get_map()) > 1:
                wait = self.keepalive_s
                if deadline is not None:
                    wait = max(0.0, min(wait, deadline - time.monotonic()))
                try:
                    ready = selector.select(wait)
                    if not ready and deadline is not None and time.monotonic() >= deadline:
                        os.killpg(process.pid, signal.SIGTERM)
                        timed_out, deadline = True, None
                    elif not ready:
                        connection.frame(wire.KEEPALIVE)
                    for key, _ in ready:
                        self._forward(connection, selector, key, counts)
                except HangupError:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    close_pipes(process)
                    raise
        return counts, timed_out

    def _forward(self, connection: Connection, selector, key, counts: dict[int, int]) -> None:
        if key.data is None:
            raise HangupError
        data = os.read(key.fd, 65536)
        counts[key.data] += len(data)
        if data:
            connection.frame(key.data, data)
        else:
            selector.unregister(key.fileobj)
            key.fileobj.close()


def close_pipes(process: subprocess.Popen) -> None:
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def feed(process: subprocess.Popen, data: bytes) -> None:
    with contextlib.suppress(OSError):
        process.stdin.write(data)
    with contextlib.suppress(OSError):
        process.stdin.close()


def parse_spec(request: Request) -> wire.ExecSpec:
    if request.headers.get("accept") != names.MEDIA_FRAMES:
        raise errors.BadRequestError("this fake speaks frames only")
    if request.headers["content-type"] == names.MEDIA_JSON:
        return wire.ExecSpec.from_json(wire.load_object(request.body))
    decoder = wire.FrameDecoder()
    first, *rest = decoder.feed(request.body)
    assert first.type == wire.REQUEST
    assert rest[-1] == wire.Frame(wire.STDIN_CLOSE)
    assert all(frame.type == wire.STDIN for frame in rest[:-1])
    assert decoder.is_clean
    stdin = b"".join(frame.payload for frame in rest)
    return wire.ExecSpec.from_json(wire.load_object(first.payload))._replace(stdin=stdin)


def entry(path: Path, *, follow: bool = False) -> dict:
    status = path.stat() if follow else path.lstat()
    kinds = {stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    found = {
        "path": str(path), "type": kinds.get(stat.S_IFMT(status.st_mode), "file"),
        "size": status.st_size, "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "uid": status.st_uid, "gid": status.st_gid, "mtime": status.st_mtime, "new_member": 1,
    }  # fmt: skip
    return {**found, "target": str(path.readlink())} if found["type"] == "symlink" else found


@contextlib.contextmanager
def file_errors(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise errors.PathNotFoundError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise errors.IsADirectoryPathError(f"{path}: is a directory") from None
    except NotADirectoryError:
        raise errors.NotADirectoryPathError(f"{path}: not a directory") from None
    except FileExistsError:
        raise errors.ConflictError(f"{path}: exists") from None


INSIDE: Iterable[tuple[str, str, Callable]] = (
    ("POST", "/v1/sandboxes/([^/]+)/exec", Inside._exec),
    ("DELETE", "/v1/sandboxes/([^/]+)/processes/([^/]+)", Inside._kill),
    ("GET", "/v1/sandboxes/([^/]+)/files", Inside._read),
    ("HEAD", "/v1/sandboxes/([^/]+)/files", Inside._head),
    ("PUT", "/v1/sandboxes/([^/]+)/files", Inside._write),
    ("DELETE", "/v1/sandboxes/([^/]+)/files", Inside._delete),
    ("GET", "/v1/sandboxes/([^/]+)/files/stat", Inside._stat),
    ("GET", "/v1/sandboxes/([^/]+)/files/list", Inside._list_files),
    ("POST", "/v1/sandboxes/([^/]+)/files/move", Inside._move),
    ("POST", "/v1/sandboxes/([^/]+)/files/mkdir", Inside._mkdir),
    ("GET", "/v1/sandboxes/([^/]+)/archive", Inside._pack),
    ("PUT", "/v1/sandboxes/([^/]+)/archive", Inside._unpack),
)
