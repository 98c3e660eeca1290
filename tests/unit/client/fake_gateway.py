"""A gateway with daemon for tests of the client: real sockets, real processes, docs/api.md by heart.

Threads and h11, so that it shares no event loop with what it tests. It is the worst gateway that the
contract allows: it does not notice callers who hang up while it allocates. Faults are planned:
`gateway.plan("POST /v1/sandboxes", drop)` makes the next such call go wrong.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import h11

from sandman import errors, names, wire
from tests.unit.client.fake_connection import Connection, HangupError, Mute, Request
from tests.unit.client.fake_sandbox import INSIDE, Inside
from tests.unit.client.fake_streams import queued

if TYPE_CHECKING:
    import ssl
    import subprocess

TOKEN = "smk_test_secret"

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


class FakeGateway(Inside):
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
        """How often a creation is answered 202 before it is done."""
        self.trouble: errors.SandmanError | None = None
        """What those answers tell of the last try."""
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

    def _network(self, connection: Connection, request: Request, sandbox: str) -> None:
        self._find(sandbox)
        probe = {"what": "10.0.0.1:443", "expected": "open", "outcome": "reachable"}
        told = {"id": sandbox, "network": request.json()["network"], "applied": True}
        connection.json(200, {**told, "probes": [probe], "took_ms": 12.5})

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

    def _overview(self, connection: Connection, request: Request) -> None:
        waits = {"pool": "root", "image": "img:1", "run": None, "waited_s": 3.5}
        connection.json(
            200,
            {
                "tenant": {
                    "name": "acme",
                    "sandboxes": len(self.sandboxes),
                    "waiting": 1,
                    "oldest_s": 3.5,
                    "weight": 2.0,
                    "limits": {"concurrent": 8, "rate": None, "cpu": 4.0, "memory": 2**30},
                },
                "requests": [waits],
                "queue": {"waiting": 3, "claiming": 0, "cold": 0},
            },
        )

    # --- files ----------------------------------------------------------------------------------


ROUTES: Iterable[tuple[str, str, Callable]] = (
    ("POST", "/v1/sandboxes", FakeGateway._create),
    ("GET", "/v1/sandboxes", FakeGateway._list),
    ("GET", "/v1/sandboxes/([^/]+)", FakeGateway._get),
    ("DELETE", "/v1/sandboxes/([^/]+)", FakeGateway._release),
    ("POST", "/v1/sandboxes/([^/]+)/renew", FakeGateway._renew),
    ("PUT", "/v1/sandboxes/([^/]+)/network", FakeGateway._network),
    ("POST", "/v1/runs/([^/]+)/heartbeat", FakeGateway._heartbeat),
    ("DELETE", "/v1/runs/([^/]+)/heartbeat", FakeGateway._heartbeat),
    ("DELETE", "/v1/runs/([^/]+)", FakeGateway._release_run),
    ("DELETE", "/v1/requests", FakeGateway._give_up),
    ("GET", "/v1/pools", FakeGateway._pools),
    ("GET", "/v1/overview", FakeGateway._overview),
    ("POST", "/v1/reservations", FakeGateway._reserve),
    ("GET", "/v1/reservations", FakeGateway._reservations),
    ("GET", "/v1/reservations/([^/]+)", FakeGateway._reservation),
    ("DELETE", "/v1/reservations/([^/]+)", FakeGateway._unreserve),
    *INSIDE,
)
