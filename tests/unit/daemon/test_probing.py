"""What can be reached from inside, as the daemon tells its gateway: real sockets on the loopback."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from daemon import probing
from sandman import probes
from sandman.probes import Probe, Target
from tests.unit.daemon.harness import problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.daemon.harness import Daemon


@contextlib.contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[Target]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        yield Target(host, server.getsockname()[1])


@contextlib.contextmanager
def deaf() -> Iterator[Target]:
    """One whose queue is full: what comes is dropped, as by a network policy."""
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        target = Target(*server.getsockname())
        for _ in range(8):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(target)
        time.sleep(0.05)
        yield target


@contextlib.contextmanager
def unused() -> Iterator[Target]:
    """Bound, so that it is nobody else's, and nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield Target(*sock.getsockname())


def ask(daemon: Daemon, *targets: Target | str, timeout_s: float = 0.4) -> dict[str, str]:
    body = {"targets": [str(one) for one in targets], "timeout_s": timeout_s}
    answer = daemon.client.post("/v1/probe", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, str] = answer.json()["results"]
    return found


def test_each_address_is_told_of(daemon: Daemon) -> None:
    with listening() as there, unused() as nobody, deaf() as silent:
        found = ask(daemon, there, nobody, silent)
    assert found == {
        str(there): "reachable", str(nobody): "refused", str(silent): "timeout",
    }  # fmt: skip


def test_all_are_tried_at_once_and_within_the_time(daemon: Daemon) -> None:
    with deaf() as silent, listening() as there:
        others = [Target("127.0.0.1", there.port) for _ in range(3)]
        begun = time.monotonic()
        found = ask(daemon, silent, *others, timeout_s=0.3)
        took = time.monotonic() - begun
    assert found == {str(silent): "timeout", str(there): "reachable"}
    # One after the other four such would take longer than the daemon may.
    assert took < probes.PROBE_MAX_S


def test_the_other_protocol(daemon: Daemon) -> None:
    try:
        with listening("::1") as there:
            found = ask(daemon, there)
    except OSError:
        pytest.skip("no IPv6 here")
    assert found == {str(there): "reachable"}


def test_nothing_is_sent(daemon: Daemon) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ask(daemon, Target(*server.getsockname()))
        connection, _ = server.accept()
        with connection:
            assert connection.recv(1) == b""


def test_names_are_not_looked_up(daemon: Daemon) -> None:
    for text in ("localhost:80", "[localhost::]:80", "1.2.3:80", "127.0.0.1\u00e9:80"):
        answer = daemon.client.post("/v1/probe", json={"targets": [text], "timeout_s": 1})
        assert answer.status_code == 400
        assert problem(answer)["field"] == "targets"


def test_it_is_for_whoever_has_the_token(daemon: Daemon) -> None:
    body = {"targets": ["127.0.0.1:1"], "timeout_s": 1}
    url = f"http://127.0.0.1:{daemon.port}/v1/probe"
    assert httpx.post(url, json=body).status_code == 401
    wrong = {"Authorization": "Bearer guess"}
    assert httpx.post(url, json=body, headers=wrong).status_code == 401


def test_no_more_than_its_bounds(daemon: Daemon) -> None:
    many = [f"127.0.0.1:{port}" for port in range(1, probes.TARGETS_MAX + 2)]
    answer = daemon.client.post("/v1/probe", json={"targets": many, "timeout_s": 1})
    assert answer.status_code == 400
    answer = daemon.client.post("/v1/probe", json={"targets": many[:1], "timeout_s": 60})
    assert answer.status_code == 400
    answer = daemon.client.post("/v1/probe", content=b"{" + b" " * 9000)
    assert answer.status_code == 413


def test_it_is_no_use_of_the_sandbox(daemon: Daemon) -> None:
    before = daemon.client.get("/v1/info").json()["used_s"]
    time.sleep(0.05)
    ask(daemon, "127.0.0.1:1")
    after = daemon.client.get("/v1/info").json()["used_s"]
    assert (before is None and after is None) or after > before


def test_what_the_network_says() -> None:
    with socket.socket() as sock:
        assert probing._outcome(errno.EHOSTUNREACH, sock) == probes.UNREACHABLE
        assert probing._outcome(errno.EACCES, sock) == probes.UNREACHABLE
        assert probing._outcome(errno.ETIMEDOUT, sock) == probes.TIMEOUT
        # Accepted, and reset before anybody looked.
        assert probing._outcome(0, sock) == probes.REACHABLE


def test_a_socket_that_met_itself_is_no_server() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        assert probing._outcome(0, sock) == probes.REFUSED


def test_where_there_is_no_other_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def make(family: int, kind: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "not here")
        return real(family, kind)

    monkeypatch.setattr(probing.socket, "socket", make)
    with listening_by(real) as there:
        probe = Probe((Target("::1", 1), there), 0.5)
        assert probing.tried(probe) == {
            Target("::1", 1): probes.UNREACHABLE, there: probes.REACHABLE,
        }  # fmt: skip


@contextlib.contextmanager
def listening_by(real: type[socket.socket]) -> Iterator[Target]:
    with real(socket.AF_INET, socket.SOCK_STREAM) as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield Target(*server.getsockname())


def test_no_room_for_sockets_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(probing.socket, "socket", full)
    with pytest.raises(OSError, match="too many"):
        probing.tried(Probe((Target("127.0.0.1", 1),), 0.5))
