"""A terminal's WebSocket: its messages, coming back, back-pressure."""

from __future__ import annotations

import random
import socket
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from sandman import terminal, websocket, wire
from tests.unit.daemon.harness import (
    Daemon,
    head,
    peak_kib,
    read_all,
    wait_until,
)
from tests.unit.daemon.terminals import HANDSHAKE, MIB, RAW, Screen, ask, begin, call

if TYPE_CHECKING:
    from collections.abc import Callable


# --- the WebSocket -------------------------------------------------------------------------------


def test_the_handshake(daemon: Daemon) -> None:
    exec_id = begin(daemon, shell="read x; echo $x")
    with Screen(daemon, exec_id) as screen:
        assert screen.status == 101
        assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in screen.head
        assert f"Sec-WebSocket-Protocol: {terminal.SUBPROTOCOL}\r\n" in screen.head
        screen.type(b"hello\n")
        result = screen.finish()
    assert result.exit_code == 0
    assert screen.data == b"hello\r\nhello\r\n"
    (started,) = screen.got("started")
    assert (started["exec_id"], started["stdin_bytes"]) == (exec_id, 0)
    assert screen.got("taken")[-1] == {"stdin_bytes": 6}
    assert result.exec_id == exec_id


@pytest.mark.parametrize("lacking", range(len(HANDSHAKE)))
def test_a_call_that_is_no_handshake(daemon: Daemon, lacking: int) -> None:
    exec_id = begin(daemon, shell="true")
    headers = [h for n, h in enumerate(HANDSHAKE) if n != lacking]
    with Screen(daemon, exec_id, "", *headers) as screen:
        assert screen.status == 400
        assert "problem+json" in screen.head
    ask(daemon, exec_id)


def test_refusals_before_the_upgrade(daemon: Daemon) -> None:
    plain = call(daemon, "POST", "", json={"shell": "true"}).json()["exec_id"]
    exec_id = begin(daemon, shell="true")
    ask(daemon, exec_id)
    for target, query, status in (
        ("no-such", "", 404),
        (plain, "", 409),
        (exec_id, "?stdout=1", 400),
        (exec_id, "?stdout=x", 400),
    ):
        with Screen(daemon, target, query) as screen:
            assert screen.status == status, target
    headers = (*HANDSHAKE, "Content-Length: 1")
    with Screen(daemon, exec_id, "", *headers) as screen:
        assert screen.status == 400


def test_what_is_typed_along_with_the_handshake_is_taken(daemon: Daemon) -> None:
    exec_id = begin(daemon, shell="read x; echo got $x")
    with closing(daemon.connect()) as sock:
        typed = websocket.encode(websocket.BINARY, b"early\n", mask=b"abcd")
        sock.sendall(head("GET", f"/v1/processes/{exec_id}/terminal", *HANDSHAKE) + typed)
        assert b"got early\r\n" in read_all(sock)


def test_all_bytes_go_through_both_ways(daemon: Daemon) -> None:
    every = bytes(range(256)) * 64
    exec_id = begin(daemon, shell=RAW + f"echo ready; head -c {len(every)}; exit 3")
    with Screen(daemon, exec_id) as screen:
        screen.expect(rb"ready\n")
        screen.data = b""
        for start in range(0, len(every), 1000):
            screen.type(every[start : start + 1000])
        assert screen.finish().exit_code == 3
    assert screen.data == every


def test_ctrl_c_and_ctrl_d(daemon: Daemon) -> None:
    exec_id = begin(daemon, shell="trap 'echo INT' INT; echo ready; cat; cat; echo end")
    with Screen(daemon, exec_id) as screen:
        screen.expect(rb"ready\r\n")
        time.sleep(0.1)  # `cat` is started, or it is the shell that reads it
        screen.type(b"\x03")
        screen.expect(rb"INT\r\n")
        screen.type(b"text\n\x04")
        screen.finish()
    assert screen.data.endswith(b"text\r\ntext\r\nend\r\n")


def test_pings_are_answered_and_parts_joined(daemon: Daemon) -> None:
    exec_id = begin(daemon, shell="read x; echo $x")
    with Screen(daemon, exec_id) as screen:
        screen.send(websocket.PING, b"there?")
        screen.until(lambda: screen.pongs)
        assert screen.pongs == [b"there?"]
        parts = bytearray(websocket.encode(websocket.BINARY, b"ab", mask=b"0000"))
        parts[0] &= 0x7F
        rest = bytearray(websocket.encode(0, b"c\n", mask=b"0000"))
        screen.sock.sendall(bytes(parts + rest))
        screen.finish()
    assert screen.data == b"abc\r\nabc\r\n"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (websocket.encode(websocket.BINARY, b"x"), 1002),
        (websocket.encode(websocket.TEXT, b"\xff", mask=b"abcd"), 1007),
        (websocket.encode_head(websocket.BINARY, 2**40, is_masked=True), 1009),
        (websocket.encode(websocket.TEXT, b"no json", mask=b"abcd"), 1008),
        (websocket.encode(websocket.TEXT, b'{"resize": {"rows": 1}}', mask=b"abcd"), 1008),
        (websocket.encode(websocket.TEXT, b'{"dance": {}}', mask=b"abcd"), 1008),
    ],
)
def test_who_breaks_the_rules_is_told_and_put_out(daemon: Daemon, data: bytes, code: int) -> None:
    exec_id = begin(daemon, shell="sleep 30", detached=True)
    with Screen(daemon, exec_id) as screen:
        screen.sock.sendall(data)
        while screen.closed is None:
            assert screen.step()
    assert screen.closed == code
    assert [e["reason"] for e in screen.got("error")] == ["bad_request"] * (code == 1008)
    assert ask(daemon, exec_id, 0).state == "running"
    call(daemon, "DELETE", f"/{exec_id}")
    ask(daemon, exec_id)


def test_a_close_is_answered_and_leaves_it_running(daemon: Daemon) -> None:
    exec_id = begin(daemon, shell="sleep 30", detached=True)
    with Screen(daemon, exec_id) as screen:
        screen.sock.sendall(websocket.encode_close(1001, "bye", mask=b"abcd"))
        while screen.closed is None:
            assert screen.step()
        assert screen.closed == 1001
    assert ask(daemon, exec_id, 0).state == "running"
    call(daemon, "DELETE", f"/{exec_id}")
    ask(daemon, exec_id)


def test_silence_is_kept_alive(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    from daemon import conversation, exchange, http1, process  # noqa: PLC0415

    one, other = socket.socketpair()
    with one, other:
        request = http1.Head("GET", "/", "", {}, 0, keep_alive=True)
        talk = conversation.Conversation(
            exchange.Exchange(one, request), "x" * 24, 0, is_exclusive=False
        )
        talk.join(process.Process("x", "t"), "boot")
        talk.take()
        other.recv(65536)
        monkeypatch.setattr(wire, "KEEPALIVE_S", 0.0)
        talk.take()
        (message,) = websocket.Decoder(is_server=False).feed(other.recv(65536))
        assert terminal.parse(message.data) == ("keepalive", {})


# --- coming back ---------------------------------------------------------------------------------

NUMBERS = "".join(f"{n}\r\n" for n in range(1, 20_001)).encode()


@pytest.mark.parametrize("detached", [True, False])
def test_coming_back_neither_loses_nor_repeats(daemon: Daemon, detached: bool) -> None:
    dice = random.Random(7)
    exec_id = begin(daemon, shell="seq 1 20000", detached=detached)
    got = b""
    while True:
        with Screen(daemon, exec_id, f"?stdout={len(got)}") as screen:
            most = dice.choice([1, 100, 5000, 30_000])
            while screen.closed is None and len(screen.data) < most:
                assert screen.step(4096)
            got += screen.data
            assert screen.got("gap") == []
            if screen.closed is not None:
                break
    assert screen.got("exit")[0]["exit_code"] == 0
    assert got == NUMBERS


def test_the_ring_keeps_the_end_and_tells_the_gap(daemon: Daemon) -> None:
    exec_id = begin(daemon, shell=f"{RAW} seq 1 400000", detached=True, output_limit=1000)
    result = ask(daemon, exec_id).result
    assert result is not None
    with Screen(daemon, exec_id) as screen:
        screen.finish()
    whole = "".join(f"{n}\n" for n in range(1, 400_001)).encode()
    (gap,) = screen.got("gap")
    assert (gap["from"], gap["to"]) == (0, len(whole) - MIB)
    assert screen.data == whole[-MIB:]
    assert screen.got("exit")[0]["stdout_truncated"] is True
    assert (len(result.stdout), result.stdout_bytes) == (1000, len(whole))


def test_input_is_taken_once_by_who_came_last(daemon: Daemon) -> None:
    """A connection that broke may have bytes on their way: they must not come after those sent again."""
    exec_id = begin(daemon, shell=RAW + "echo ready; head -c 6; echo; head -c 1", detached=True)
    with Screen(daemon, exec_id, "?exclusive=1") as old:
        old.expect(rb"ready\n")
        old.type(b"abc")
        old.until(lambda: old.got("taken"))
        with Screen(daemon, exec_id, "?exclusive=1") as new:
            new.until(lambda: new.got("started"))
            assert new.got("started")[0]["stdin_bytes"] == 3
            old.type(b"def")
            while old.closed is None:
                assert old.step()
            assert old.closed == terminal.TAKEN_OVER
            new.type(b"xyz")
            new.expect(rb"abcxyz\n")
            with Screen(daemon, exec_id) as guest:
                guest.type(b"!")
                guest.finish()
            new.finish()
    assert new.data == guest.data == b"ready\nabcxyz\n!"


def test_an_attached_one_ends_when_nobody_comes_back(daemon: Daemon) -> None:
    exec_id = begin(daemon, shell="sleep 30", attached_grace_s=0.2)
    with Screen(daemon, exec_id) as screen:
        screen.until(lambda: screen.got("started"))
        assert ask(daemon, exec_id, 0.4).state == "running"
    info = call(daemon, "GET", f"/{exec_id}").json()
    assert wait_until(lambda: call(daemon, "GET", f"/{exec_id}").json()["state"] == "ended"), info
    assert call(daemon, "GET", f"/{exec_id}").json()["result"]["abandoned"] is True


# --- back-pressure -------------------------------------------------------------------------------


def test_an_attached_reader_slows_it_and_a_detached_one_does_not(
    start: Callable[..., Daemon],
) -> None:
    fresh = start()
    size = 9_000_000
    script = RAW + f"head -c {size} /dev/zero"
    attached = begin(fresh, shell=script, attached_grace_s=60)
    detached = begin(fresh, shell=script, detached=True, output_limit=0)
    with Screen(fresh, attached, rcvbuf=65536) as screen, Screen(fresh, detached, rcvbuf=65536):
        screen.until(lambda: screen.data)
        assert ask(fresh, detached).stdout_bytes == size
        assert ask(fresh, attached, 0).stdout_bytes < 7_000_000  # to wait would set it free
        screen.finish()
    assert len(screen.data) == size
    assert screen.got("gap") == []
    assert peak_kib(fresh) < 60 * 1024


def flood(screen: Screen) -> None:
    """Type as long as it is taken."""
    screen.sock.settimeout(0.3)
    for _ in range(1000):
        screen.type(b"x" * 65536)


def test_one_that_reads_no_input_holds_its_typist_up(start: Callable[..., Daemon]) -> None:
    fresh = start()
    exec_id = begin(fresh, shell=RAW + "echo ready; sleep 30")
    with Screen(fresh, exec_id) as screen:
        screen.expect(b"ready")
        with pytest.raises(TimeoutError):
            flood(screen)
        call(fresh, "DELETE", f"/{exec_id}")
        assert ask(fresh, exec_id).state == "ended"
    assert peak_kib(fresh) < 60 * 1024


def test_a_typist_goes_on_when_there_is_room_again(daemon: Daemon) -> None:
    size = 2 * MIB
    exec_id = begin(daemon, shell=RAW + f"echo ready; sleep 0.5; head -c {size} | wc -c")
    with Screen(daemon, exec_id) as screen:
        screen.expect(b"ready")
        for _ in range(size // 65536):
            screen.type(b"x" * 65536)
        screen.finish()
    assert screen.data.split() == [b"ready", str(size).encode()]
    assert screen.got("taken")[-1] == {"stdin_bytes": size}
