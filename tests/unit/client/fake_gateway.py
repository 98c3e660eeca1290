"""A gateway with daemon for tests of the client: real sockets, real processes, docs/api.md by heart.

Threads and h11, so that it shares no event loop with what it tests. It is the worst gateway that the
contract allows: it does not notice callers who hang up while it allocates. Faults are planned:
`gateway.plan("POST /v1/sandboxes", drop)` makes the next such call go wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import re
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

import h11

from sandman import errors, names, wire

if TYPE_CHECKING:
    import ssl

TOKEN = "smk_test_secret"


@dataclasses.dataclass
class Request:
    """A request as it came in."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        pairs = parse_qs(
            urlsplit(self.target).query, keep_blank_values=True, errors="surrogateescape"
        )
        return {name: values[0] for name, values in pairs.items()}

    def json(self) -> dict:
        return json.loads(self.body)


class HangupError(Exception):
    """The connection is over."""


class Connection:
    """One caller's connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.h11 = h11.Connection(h11.SERVER)

    def receive(self) -> Request | None:
        event = self._event()
        if not isinstance(event, h11.Request):
            return None
        headers = {name.decode(): value.decode() for name, value in event.headers}
        request = Request(event.method.decode(), event.target.decode(), headers)
        body = bytearray()
        while not isinstance(event := self._event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise HangupError
            body += event.data
        request.body = bytes(body)
        return request

    def _event(self):
        while (event := self.h11.next_event()) is h11.NEED_DATA:
            try:
                self.h11.receive_data(self.sock.recv(262144))
            except OSError:
                raise HangupError from None
        return event

    def send(self, event: h11.Event) -> None:
        try:
            self.sock.sendall(self.h11.send(event) or b"")
        except OSError:
            raise HangupError from None

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send(h11.Response(status_code=status, headers=list(headers.items())))

    def answer(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        length = {} if status == 204 else {"content-length": str(len(body))}
        self.head(status, {**length, **(headers or {})})
        self.finish(body)

    def json(self, status: int, document: object, headers: Mapping[str, str] | None = None) -> None:
        kind = {"content-type": "application/json"}
        self.answer(status, json.dumps(document).encode(), {**kind, **(headers or {})})

    def problem(self, error: errors.SandmanError) -> None:
        headers = {"content-type": names.MEDIA_PROBLEM}
        if error.retry_after is not None:
            headers["retry-after"] = str(int(error.retry_after))
        body = json.dumps(error.problem()).encode()
        self.head(error.status, {"content-length": str(len(body)), **headers})
        self.finish(body)

    def finish(self, body: bytes = b"") -> None:
        is_head = self.h11.their_state is not None and self._is_head
        if body and not is_head:
            self.send(h11.Data(data=body))
        self.send(h11.EndOfMessage())

    _is_head = False

    def frame(self, kind: int, payload: bytes | dict = b"") -> None:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        self.send(h11.Data(data=wire.encode_frame(kind, data)))

    def line(self, document: dict) -> None:
        self.send(h11.Data(data=json.dumps(document).encode() + b"\n"))

    def hung_up(self, wait_s: float) -> bool:
        """Whether the caller goes away within that time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ)
            return bool(selector.select(wait_s))


Action = Callable[["FakeGateway", Connection, Request], None]


def drop(gateway: FakeGateway, connection: Connection, request: Request) -> None:
    """Hang up without having done anything."""
    raise HangupError


def drop_after(gateway: FakeGateway, connection: Connection, request: Request) -> None:
    """Do what was asked and hang up instead of answering."""
    gateway.route(Mute(), request)
    raise HangupError


def hang(gateway: FakeGateway, connection: Connection, request: Request) -> None:
    """Never answer."""
    gateway.hanging.set()
    connection.hung_up(30)
    raise HangupError


def cut(gateway: FakeGateway, connection: Connection, request: Request) -> None:
    """Send the beginning of an answer and hang up."""
    connection.head(200, {"content-length": "100"})
    connection.send(h11.Data(data=b"{"))
    raise HangupError


def slowly(seconds: float) -> Action:
    """Do it, and hold the answer back, hung up on or not."""

    def action(gateway: FakeGateway, connection: Connection, request: Request) -> None:
        gateway.hanging.set()
        time.sleep(seconds)
        gateway.route(connection, request)

    return action


def answer(status: int, body: bytes = b"", **headers: str) -> Action:
    """Answer as a proxy between would."""
    plain = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda gateway, connection, request: connection.answer(status, body, plain)


def problem(error: errors.SandmanError) -> Action:
    """Answer with this error."""
    return lambda gateway, connection, request: connection.problem(error)


def frames(*items: tuple[int, bytes | dict] | bytes | float, end: bool = True) -> Action:
    """Answer with these frames, raw bytes, pauses in seconds; `end` False hangs up after them."""

    def action(gateway: FakeGateway, connection: Connection, request: Request) -> None:
        connection.head(200, {"content-type": names.MEDIA_FRAMES})
        for item in items:
            if isinstance(item, float):
                time.sleep(item)
            elif isinstance(item, bytes):
                connection.send(h11.Data(data=item))
            else:
                connection.frame(*item)
        if not end:
            raise HangupError
        connection.finish()

    return action


class Mute(Connection):
    """Takes an answer and sends it nowhere."""

    def __init__(self) -> None:
        pass

    def send(self, event: h11.Event) -> None:
        pass

    def finish(self, body: bytes = b"") -> None:
        pass


class FakeGateway:
    """The server; `with FakeGateway() as gateway`. What happened is in `requests` and `sandboxes`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self._given_up: set[str] = set()
        self.sandboxes: dict[str, dict] = {}
        self.reservations: dict[str, dict] = {}
        self.ready_at_once = False
        self.ended: list[dict] = []
        self.created = 0
        self.connections = 0
        self.by_key: dict[str, str] = {}
        self.queue = 0
        self.trouble: errors.SandmanError | None = None
        """How often a creation is answered 202 before it is done."""
        self.processes: list[subprocess.Popen] = []
        self.hanging = threading.Event()
        self.started = threading.Event()
        self.keepalive_s = wire.KEEPALIVE_S
        self._plans: list[tuple[str, Action]] = []
        self._tls = tls
        self._lock = threading.Lock()
        self._keys: dict[str, threading.Lock] = {}
        self._root = Path(tempfile.mkdtemp(prefix="sandman-fake-"))
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def released(self) -> bool:
        """Whether nothing is left: sandboxes and processes."""
        return not self.sandboxes and all(process.poll() is not None for process in self.processes)

    def settled(self, wait_s: float = 5.0) -> bool:
        """`released`, soon."""
        end = time.monotonic() + wait_s
        while not self.released and time.monotonic() < end:
            time.sleep(0.01)
        return self.released

    def plan(self, call: str, *actions: Action) -> None:
        """The next calls that start with this text go so, one after another."""
        self._plans += [(call, action) for action in actions]

    def calls(self, start: str = "") -> list[str]:
        """The requests so far that start so."""
        return [
            text for r in self.requests if (text := f"{r.method} {r.path}").startswith(start)
        ]  # fmt: skip

    def __enter__(self) -> FakeGateway:
        self._spawn(self._accept)
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up_all()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for thread in self._threads:
            thread.join(5)
        shutil.rmtree(self._root)

    def hang_up_all(self) -> None:
        """Break every connection, idle ones too."""
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _spawn(self, call: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=call, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.connections += 1
                self._spawn(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
            self._open.add(sock)
            connection = Connection(sock)
            while request := connection.receive():
                connection._is_head = request.method == "HEAD"
                self._handle(connection, request)
                if connection.h11.our_state is not h11.DONE:
                    break
                connection.h11.start_next_cycle()
        except (HangupError, OSError, h11.ProtocolError):
            pass
        finally:
            self._open.discard(sock)
            sock.close()

    def _handle(self, connection: Connection, request: Request) -> None:
        with self._lock:
            self.requests.append(request)
            action = self._planned(f"{request.method} {request.target}")
        key = request.headers.get("idempotency-key", str(id(request)))
        try:
            # Calls of one key follow each other, as the API promises.
            with self._keys.setdefault(key, threading.Lock()):
                (action or FakeGateway.route)(self, connection, request)
        except errors.SandmanError as error:
            connection.problem(error)

    def _planned(self, call: str) -> Action | None:
        for index, (start, action) in enumerate(self._plans):
            if call.startswith(start):
                del self._plans[index]
                return action
        return None

    # --- the API --------------------------------------------------------------------------------

    def route(self, connection: Connection, request: Request) -> None:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            raise errors.UnauthenticatedError("unknown token")
        for method, pattern, handler in ROUTES:
            if method == request.method and (match := re.fullmatch(pattern, request.path)):
                handler(self, connection, request, *map(unquote, match.groups()))
                return
        raise errors.NotFoundError(f"no such path: {request.path}")

    def _find(self, sandbox: str) -> dict:
        if sandbox not in self.sandboxes:
            raise errors.NotFoundError("no such sandbox", sandbox=sandbox)
        return self.sandboxes[sandbox]

    def _create(self, connection: Connection, request: Request) -> None:
        spec = request.json()
        wait_s = spec.pop("wait_s", None)
        key = request.headers.get("idempotency-key", "")
        if key in self._given_up:
            # Overtaken by its own end. The gateway keeps what it makes then for half a minute, for nobody.
            raise errors.NotFoundError("given up")
        if "count" in spec:
            self._create_several(connection, spec, key)
            return
        with self._lock:
            box = None if self.queue else self._found_or_made(spec, key)
            if box is None:
                self.queue -= 1
        if box is None:
            time.sleep(min(0.02, wait_s or 0.0))
            connection.json(202, queued(self.queue, self.trouble))
        else:
            connection.json(201, {k: v for k, v in box.items() if k != "_spec"})

    def _found_or_made(self, spec: dict, key: str) -> dict:
        found = self.sandboxes.get(self.by_key.get(key, ""))
        if found is not None and found["_spec"] != spec:
            raise errors.ConflictError("the key was used with another request")
        return found or self._allocate(spec, key)

    def _create_several(self, connection: Connection, spec: dict, key: str) -> None:
        """A line each; `lines` says what comes instead of the whole stream, the next time."""
        kind = {"content-type": names.MEDIA_NDJSON}
        if not isinstance(connection, Mute):
            connection.head(200, kind)
        count = spec["count"]
        for index in range(count):
            with self._lock:
                box = self._found_or_made(spec, f"{key}/{index}")
            shown = {k: v for k, v in box.items() if k != "_spec"}
            connection.line({"index": index, "sandbox": shown})
        counts = {"ready": count, "failed": 0, "waiting": 0}
        connection.line({"summary": {"count": count, **counts}})
        connection.finish()

    def _give_up(self, connection: Connection, request: Request) -> None:
        key = request.headers["idempotency-key"]
        with self._lock:
            self._given_up.add(key)
            for one in [k for k in self.by_key if k == key or k.startswith(f"{key}/")]:
                self.sandboxes.pop(self.by_key.pop(one), None)
        connection.answer(204)

    def _allocate(self, spec: dict, key: str) -> dict:
        self.created += 1
        name = f"sandman-pool-root-{self.created}-1f0e9c3a"
        self.by_key[key] = name
        self.sandboxes[name] = {
            "id": name, "tier": "warm", "pool": spec.get("pool", "root"), "image": spec.get("image", "default"),
            "image_digest": None, "node": "node-1", "resources": spec.get("resources", {}), "boot_id": "b1", "state": "ready",
            "run": spec.get("run"), "labels": spec.get("labels", {}), "created_at": "2026-11-29T12:00:00Z",
            "expires_at": "2026-11-29T16:00:00Z", "token": "sbt_x",
            "timings": {"queued_ms": 0.1, "claim_ms": 8.0, "ready_ms": 9.0}, "new_member": 1,
            "_spec": spec,
        }  # fmt: skip
        (self._root / name).mkdir()
        return self.sandboxes[name]

    def _public(self, box: dict) -> dict:
        return {k: v for k, v in box.items() if k not in {"_spec", "token", "timings"}}

    def _list(self, connection: Connection, request: Request) -> None:
        run = request.query.get("run")
        held = self.ended if request.query.get("state") == "ended" else self.sandboxes.values()
        found = [self._public(b) for b in held if run in (None, b["run"])]
        connection.json(200, {"sandboxes": found})

    def _get(self, connection: Connection, request: Request, sandbox: str) -> None:
        connection.json(200, self._public(self._find(sandbox)))

    def _release(self, connection: Connection, request: Request, sandbox: str) -> None:
        with self._lock:
            box = self.sandboxes.pop(sandbox, None)
            if box is not None:
                why = {"reason": "released", "detail": "it was released", "at": None}
                self.ended.append({**box, "state": "ended", "ended": why})
        connection.answer(204)

    def _release_run(self, connection: Connection, request: Request, run: str) -> None:
        gone = [name for name, box in self.sandboxes.items() if box["run"] == run]
        for name in gone:
            del self.sandboxes[name]
        connection.json(200, {"released": len(gone)})

    def _reserve(self, connection: Connection, request: Request) -> None:
        with self._lock:
            key = request.headers["idempotency-key"]
            state = "ready" if self.ready_at_once else "preparing"
            made = {"id": key[:16], "state": state, "ready": 0, "new_member": 1, **request.json()}
            self.reservations.setdefault(made["id"], made)
        connection.json(201, made)

    def _reservations(self, connection: Connection, request: Request) -> None:
        connection.json(200, {"reservations": list(self.reservations.values())})

    def _reservation(self, connection: Connection, request: Request, name: str) -> None:
        if name not in self.reservations:
            raise errors.NotFoundError("no such reservation")
        connection.json(200, self.reservations[name])

    def _unreserve(self, connection: Connection, request: Request, name: str) -> None:
        self.reservations.pop(name, None)
        connection.answer(204)

    def _heartbeat(self, connection: Connection, request: Request, run: str) -> None:
        held = sum(box["run"] == run for box in self.sandboxes.values())
        connection.json(200, {"run": run, "sandboxes": held})

    def _renew(self, connection: Connection, request: Request, sandbox: str) -> None:
        self._find(sandbox)
        connection.json(200, {"id": sandbox, "expires_at": "2026-11-30T12:00:00Z"})

    def _pools(self, connection: Connection, request: Request) -> None:
        pool = {
            "name": "root",
            "image": "default",
            "free": 3,
            "leased": 1,
            "wanted": 4,
            "resize": True,
        }
        connection.json(200, {"pools": [pool]})

    # --- files ----------------------------------------------------------------------------------

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


def queued(ahead: int, trouble: errors.SandmanError | None = None) -> dict:
    """The body of a 202."""
    told = {"trouble": trouble.problem()} if trouble is not None else {}
    return told | {
        "request": "r1",
        "state": "waiting" if ahead else "starting",
        "place": ahead or None,
        "retry_after": 2.0,
    }


def lines(*items: dict | bytes, end: bool = True) -> Action:
    """Answer with these lines of JSON, or raw bytes; `end` False hangs up after them."""

    def action(gateway: FakeGateway, connection: Connection, request: Request) -> None:
        connection.head(200, {"content-type": names.MEDIA_NDJSON})
        for item in items:
            if isinstance(item, bytes):
                connection.send(h11.Data(data=item))
            else:
                connection.line(item)
        if not end:
            raise HangupError
        connection.finish()

    return action


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


ROUTES: Iterable[tuple[str, str, Callable]] = (
    ("POST", "/v1/sandboxes", FakeGateway._create),
    ("GET", "/v1/sandboxes", FakeGateway._list),
    ("GET", "/v1/sandboxes/([^/]+)", FakeGateway._get),
    ("DELETE", "/v1/sandboxes/([^/]+)", FakeGateway._release),
    ("POST", "/v1/sandboxes/([^/]+)/renew", FakeGateway._renew),
    ("POST", "/v1/runs/([^/]+)/heartbeat", FakeGateway._heartbeat),
    ("DELETE", "/v1/runs/([^/]+)", FakeGateway._release_run),
    ("DELETE", "/v1/requests", FakeGateway._give_up),
    ("GET", "/v1/pools", FakeGateway._pools),
    ("POST", "/v1/reservations", FakeGateway._reserve),
    ("GET", "/v1/reservations", FakeGateway._reservations),
    ("GET", "/v1/reservations/([^/]+)", FakeGateway._reservation),
    ("DELETE", "/v1/reservations/([^/]+)", FakeGateway._unreserve),
    ("POST", "/v1/sandboxes/([^/]+)/exec", FakeGateway._exec),
    ("DELETE", "/v1/sandboxes/([^/]+)/processes/([^/]+)", FakeGateway._kill),
    ("GET", "/v1/sandboxes/([^/]+)/files", FakeGateway._read),
    ("HEAD", "/v1/sandboxes/([^/]+)/files", FakeGateway._head),
    ("PUT", "/v1/sandboxes/([^/]+)/files", FakeGateway._write),
    ("DELETE", "/v1/sandboxes/([^/]+)/files", FakeGateway._delete),
    ("GET", "/v1/sandboxes/([^/]+)/files/stat", FakeGateway._stat),
    ("GET", "/v1/sandboxes/([^/]+)/files/list", FakeGateway._list_files),
    ("POST", "/v1/sandboxes/([^/]+)/files/move", FakeGateway._move),
    ("POST", "/v1/sandboxes/([^/]+)/files/mkdir", FakeGateway._mkdir),
    ("GET", "/v1/sandboxes/([^/]+)/archive", FakeGateway._pack),
    ("PUT", "/v1/sandboxes/([^/]+)/archive", FakeGateway._unpack),
)
