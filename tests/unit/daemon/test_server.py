"""The server's loop, when what it stands on fails."""

from __future__ import annotations

import errno
import socket
import threading
from types import SimpleNamespace

import pytest

from daemon import listener, server
from daemon.exchange import CallerGoneError, Exchange
from daemon.http1 import Head


class Place:
    """A connection that is idle or busy."""

    def __init__(self, letter: str) -> None:
        self.letter = letter
        self.is_idle = letter.islower()

    def close_idle(self) -> None:
        self.is_idle = False


class TestServer:
    def test_ipv4_alone_where_there_is_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = socket.socket

        def make(family: int = socket.AF_INET, *rest: int) -> socket.socket:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "no")
            return real(family, *rest)

        monkeypatch.setattr(listener.socket, "socket", make)
        with listener.listen(0) as sock:
            assert sock.family == socket.AF_INET

    def test_out_of_descriptors_it_waits(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        naps: list[float] = []

        class Sock:
            def accept(self) -> object:
                if naps:
                    raise SystemExit
                raise OSError(errno.EMFILE, "too many")

        monkeypatch.setattr(server.time, "sleep", naps.append)
        with pytest.raises(SystemExit):
            server.Server(Sock(), print)._run()  # type: ignore[arg-type]
        assert naps
        assert "too many" in capfd.readouterr().err

    def test_out_of_memory_it_goes_on_accepting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        naps: list[float] = []
        ours, theirs = socket.socketpair()
        answers: list[BaseException | None] = [SystemExit(), None, MemoryError()]

        class Sock:
            def accept(self) -> object:
                answer = answers.pop()
                if answer is not None:
                    raise answer
                return ours, None

        def refuse(_sock: socket.socket) -> bool:
            raise MemoryError

        monkeypatch.setattr(server.time, "sleep", naps.append)
        monkeypatch.setattr(server, "comes_from_within", refuse)
        with pytest.raises(SystemExit):
            server.Server(Sock(), print)._run()  # type: ignore[arg-type]
        assert naps
        assert theirs.recv(1) == b""
        theirs.close()

    def test_without_a_thread_the_caller_is_turned_away(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def refuse(_self: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        ours, theirs = socket.socketpair()
        one = server.Server(ours, print)
        one._admit(ours)
        assert theirs.recv(100).startswith(b"HTTP/1.1 503")
        assert not one._connections
        assert "no thread" in capfd.readouterr().err
        ours, gone = socket.socketpair()
        gone.close()
        one._admit(ours)
        theirs.close()

    def test_who_gives_way_to_whom(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("daemon.config.MAX_CONNECTIONS", 4)
        monkeypatch.setattr("daemon.config.MAX_WITHIN", 2)

        def left(connections: str, newcomer: str) -> str:
            """Each a letter: within or outside, capital when busy; who is there afterwards."""
            one = server.Server(socket.socket(), print)
            with one._sock:
                for letter in connections:
                    one._connections[Place(letter)] = letter in "wW"  # type: ignore[index]
                has_room = one._make_room(is_within=newcomer == "w")
                letters = "".join(c.letter for c in one._connections)  # type: ignore[attr-defined]
                return letters + (newcomer if has_room else "")

        assert left("WW", "w") == "WW"  # a flood from within stops here
        assert left("WwO", "w") == "WOw"
        assert left("WWo", "w") == "WWo"  # and nobody from outside gives way to it
        assert left("WWO", "o") == "WWOo"  # who comes from outside finds room
        assert left("wWoO", "o") == "WoOo"
        assert left("WOoO", "o") == "WOOo"
        assert left("OOoO", "w") == "OOoO"
        assert left("WWOO", "o") == "WWOO"

    @pytest.mark.parametrize(
        ("peer", "own", "within"),
        [
            ("127.0.0.1", "127.0.0.1", True),
            ("::ffff:127.0.0.2", "::ffff:10.0.0.5", True),
            ("::1", "::1", True),
            ("::ffff:10.0.0.5", "::ffff:10.0.0.5", True),
            ("::ffff:10.0.0.6", "::ffff:10.0.0.5", False),
            ("fd00::2", "fd00::1", False),
            (None, "::1", True),
        ],
    )
    def test_who_comes_from_within(self, peer: str | None, own: str, within: bool) -> None:
        def name() -> tuple[str, int]:
            if peer is None:
                raise OSError
            return peer, 1

        sock = SimpleNamespace(getpeername=name, getsockname=lambda: (own, 2))
        assert server.comes_from_within(sock) is within  # type: ignore[arg-type]

    def test_a_socket_that_takes_no_options(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            server._tune(ours)

    def test_a_connection_that_ended_by_itself_is_closed_idle(self) -> None:
        ours, theirs = socket.socketpair()
        theirs.close()
        ours.close()
        server.Connection(ours, print).close_idle()


def test_a_reader_that_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.config.STALL_TIMEOUT_S", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        exchange = Exchange(ours, Head("GET", "/", "", {}, 0, keep_alive=True))
        ours.setblocking(False)
        with pytest.raises(CallerGoneError):
            exchange.send(bytes(10_000_000))
        with pytest.raises(CallerGoneError):
            exchange.wait_writable()
