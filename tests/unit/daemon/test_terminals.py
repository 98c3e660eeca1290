"""Terminals: start, WebSocket, resize, come back, back-pressure, the end."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from sandman import handles, terminal, websocket, wire
from tests.unit.daemon.harness import (
    Daemon,
    decode,
    head,
    joined,
    peak_kib,
    problem,
    processes_with,
    read_all,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import httpx

MIB = 1024 * 1024
HANDSHAKE = (
    "Upgrade: websocket",
    "Connection: keep-alive, Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    f"Sec-WebSocket-Protocol: {terminal.SUBPROTOCOL}",
)
RAW = "stty raw -echo; "
"""Bytes go through as they are."""


def call(daemon: Daemon, method: str, path: str, **options: object) -> httpx.Response:
    return daemon.client.request(method, f"/v1/processes{path}", **options)  # type: ignore[arg-type]


def begin(daemon: Daemon, **body: object) -> str:
    """The id of a command in a terminal."""
    response = call(daemon, "POST", "", json={"terminal": {}, **body})
    assert response.status_code == 200, response.text
    info = handles.ProcessInfo.from_json(response.json())
    assert info.terminal
    return info.exec_id


def ask(daemon: Daemon, exec_id: str, wait_s: float = 20) -> handles.ProcessInfo:
    response = call(daemon, "GET", f"/{exec_id}?wait_s={wait_s}")
    assert response.status_code == 200, response.text
    return handles.ProcessInfo.from_json(response.json())


def run(daemon: Daemon, shell: str, **body: object) -> wire.ExecResult:
    """The result of a script in a terminal that nobody looks at."""
    result = ask(daemon, begin(daemon, shell=shell, detached=True, **body)).result
    assert result is not None
    return result


class Screen:
    """The other end of a terminal's WebSocket."""

    def __init__(
        self, daemon: Daemon, exec_id: str, query: str = "", *headers: str, rcvbuf: int = 0
    ) -> None:
        self.sock = socket.socket()
        self.sock.settimeout(10)
        if rcvbuf:  # before it connects, or the window is open already
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self.sock.connect(("127.0.0.1", daemon.port))
        self.sock.sendall(
            head("GET", f"/v1/processes/{exec_id}/terminal{query}", *(headers or HANDSHAKE))
        )
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.sock.recv(1)
        self.status = int(data.split()[1])
        self.head = data.decode()
        self._decoder = websocket.Decoder(is_server=False)
        self.data = b""
        self.texts: list[tuple[str, dict[str, object]]] = []
        self.closed: int | None = None
        self.pongs: list[bytes] = []

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def send(self, opcode: int, data: bytes) -> None:
        self.sock.sendall(websocket.encode(opcode, data, mask=os.urandom(4)))

    def type(self, data: bytes) -> None:
        self.send(websocket.BINARY, data)

    def tell(self, name: str, **content: object) -> None:
        self.send(websocket.TEXT, terminal.dump(name, content))

    def step(self, most: int = 65536) -> bool:
        """Take what has come; False: there will be no more."""
        data = self.sock.recv(most)
        for message in self._decoder.feed(data):
            if message.opcode == websocket.BINARY:
                self.data += message.data
            elif message.opcode == websocket.TEXT:
                self.texts.append(terminal.parse(message.data))
            elif message.opcode == websocket.PONG:
                self.pongs.append(message.data)
            else:
                self.closed = message.code
        return bool(data)

    def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            assert self.step(), (self.data, self.texts, self.closed)

    def expect(self, pattern: bytes) -> re.Match[bytes]:
        self.until(lambda: re.search(pattern, self.data))
        found = re.search(pattern, self.data)
        assert found is not None
        return found

    def finish(self) -> wire.ExecResult:
        """Read to the end."""
        while self.closed is None:
            assert self.step(), (self.data, self.texts)
        assert (self.closed, self.texts[-1][0]) == (1000, "exit"), self.texts
        assert read_all(self.sock) == b""
        return wire.ExecResult.from_json(self.texts[-1][1])

    def got(self, name: str) -> list[dict[str, object]]:
        return [content for one, content in self.texts if one == name]


# --- the terminal itself -------------------------------------------------------------------------


def test_a_command_has_a_terminal_of_its_own(daemon: Daemon) -> None:
    script = (
        "tty; stty size; echo $TERM; stty -a | tr ';' '\\n' | grep -o iutf8; echo err >&2; exit 5"
    )
    result = run(daemon, script, terminal={"rows": 33, "cols": 99, "term": "vt100"})
    assert result.exit_code == 5
    assert re.fullmatch(rb"/dev/pts/\d+\r\n33 99\r\nvt100\r\niutf8\r\nerr\r\n", result.stdout), (
        result.stdout
    )
    assert (result.stderr, result.stdout_bytes) == (b"", len(result.stdout))


def test_defaults_and_an_environment_of_the_callers_own(daemon: Daemon) -> None:
    script = "stty size; echo $TERM"
    assert run(daemon, script).stdout == b"24 80\r\nxterm-256color\r\n"
    result = run(daemon, script, env={"TERM": "dumb"}, env_mode="replace")
    assert result.stdout == b"24 80\r\ndumb\r\n"


def test_it_is_the_controlling_one(daemon: Daemon) -> None:
    result = run(daemon, "echo by-its-name > /dev/tty; ps -o tpgid= -p $$ | tr -d ' '; echo $$")
    lines = result.stdout.split()
    assert lines[0] == b"by-its-name"
    assert lines[1] == lines[2]


@pytest.mark.skipif(os.geteuid() != 0, reason="switches users")
def test_it_is_the_other_users(daemon: Daemon) -> None:
    script = "id -u; stty size; echo ok > /dev/tty; echo too > $(tty)"
    result = run(daemon, script, user=65534)
    assert result.stdout == b"65534\r\n24 80\r\nok\r\ntoo\r\n"


def test_a_missing_program_is_a_result(daemon: Daemon) -> None:
    exec_id = begin(daemon, argv=["no-such-program"])
    result = ask(daemon, exec_id).result
    assert result is not None
    assert (result.exit_code, result.start_error) == (127, "not_found")
    assert result.stdout == b"no-such-program: not found in PATH\n"
    assert (result.stdout_bytes, result.stderr_bytes) == (len(result.stdout), 0)
    with Screen(daemon, exec_id) as screen:
        assert screen.finish().exit_code == 127
        assert screen.data == result.stdout
        assert screen.got("started") == []


def test_what_cannot_be_with_a_terminal(daemon: Daemon) -> None:
    found = problem(call(daemon, "POST", "", json={"shell": "x", "terminal": {}, "stdin": "x"}))
    assert (found["reason"], found["field"]) == ("bad_request", "stdin")
    assert daemon.refuse(shell="x", terminal={})["field"] == "terminal"


def test_without_terminals_it_is_told(start: Callable[..., Daemon]) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to hide /dev/pts")
    hide = ("unshare", "--mount", "--fork", "sh", "-c")
    for hidden in ("/dev/pts", "/dev/ptmx"):
        what = "-t tmpfs none" if hidden == "/dev/pts" else "--bind /dev/null"
        fresh = start(*hide, f'mount {what} {hidden} && exec "$@"', "sh")
        found = problem(call(fresh, "POST", "", json={"shell": "true", "terminal": {}}))
        assert (found["reason"], found["field"]) == ("terminal_unsupported", "terminal"), hidden
        assert "/dev/ptmx" in str(found["detail"])


def test_no_descriptors_are_left(start: Callable[..., Daemon]) -> None:
    fresh = start()

    def count() -> int:
        return len(os.listdir(f"/proc/{fresh.pid}/fd"))  # noqa: PTH208

    run(fresh, "true")
    before = count()
    for _ in range(5):
        run(fresh, "echo x")
        begin(fresh, argv=["no-such-program"])
    assert wait_until(lambda: count() <= before), os.popen(f"ls -l /proc/{fresh.pid}/fd").read()


def test_the_list_tells_which_have_one(daemon: Daemon) -> None:
    plain = call(daemon, "POST", "", json={"shell": "true"}).json()["exec_id"]
    exec_id = begin(daemon, shell="true")
    listed = {
        one["exec_id"]: one["terminal"] for one in call(daemon, "GET", "").json()["processes"]
    }
    assert (listed[plain], listed[exec_id]) == (False, True)


def test_the_same_id_attaches_and_never_runs_twice(daemon: Daemon, tmp_path: Path) -> None:
    name = tmp_path.name[:64]
    body = {"shell": f"echo run >> {tmp_path}/runs", "exec_id": name, "terminal": {"rows": 7}}
    assert {call(daemon, "POST", "", json=body).json()["exec_id"] for _ in range(3)} == {name}
    ask(daemon, name)
    assert call(daemon, "POST", "", json=body).json()["state"] == "ended"
    assert (tmp_path / "runs").read_text() == "run\n"
    other = call(daemon, "POST", "", json={**body, "terminal": {"rows": 8}})
    assert problem(other)["reason"] == "conflict"


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


# --- resize --------------------------------------------------------------------------------------


def test_resize_by_message_and_by_call(daemon: Daemon) -> None:
    script = "trap 'echo told' WINCH; echo ready; while :; do sleep 0.05; stty size; done"
    exec_id = begin(daemon, shell=script)
    with Screen(daemon, exec_id) as screen:
        screen.expect(rb"ready")
        screen.tell("resize", rows=10, cols=20)
        screen.expect(rb"told\r\n")
        screen.expect(rb"10 20\r\n")
        response = call(daemon, "POST", f"/{exec_id}/resize", json={"rows": 30, "cols": 40})
        assert response.status_code == 204
        screen.expect(rb"30 40\r\n")
        call(daemon, "DELETE", f"/{exec_id}")
        screen.finish()
    ended = call(daemon, "POST", f"/{exec_id}/resize", json={"rows": 30, "cols": 40})
    assert problem(ended)["reason"] == "conflict"


def test_what_cannot_be_resized(daemon: Daemon) -> None:
    plain = call(daemon, "POST", "", json={"shell": "true"}).json()["exec_id"]
    found = problem(call(daemon, "POST", f"/{plain}/resize", json={"rows": 1, "cols": 1}))
    assert (found["reason"], found["field"]) == ("conflict", "terminal")
    for body, field in (({"rows": 0, "cols": 1}, "rows"), ({"rows": 1}, "cols")):
        assert problem(call(daemon, "POST", f"/{plain}/resize", json=body))["field"] == field


# --- without a WebSocket -------------------------------------------------------------------------


def test_plain_calls_serve_as_well(daemon: Daemon) -> None:
    exec_id = begin(daemon, shell="read x; echo got $x", detached=True)
    typed = call(daemon, "POST", f"/{exec_id}/stdin?offset=0", content=b"ab").json()
    assert typed["stdin_bytes"] == 2
    call(daemon, "POST", f"/{exec_id}/stdin?offset=0", content=b"abc\n")
    found = problem(call(daemon, "POST", f"/{exec_id}/stdin?close=1"))
    assert (found["reason"], found["field"]) == ("conflict", "close")
    frames = decode(call(daemon, "GET", f"/{exec_id}/output").content)
    assert joined(frames, wire.STDOUT) == b"abc\r\ngot abc\r\n"
    assert frames[-1].type == wire.EXIT


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


# --- the end -------------------------------------------------------------------------------------


def test_the_last_words_are_there(daemon: Daemon) -> None:
    """Also those that the kernel holds while a child keeps the terminal open and nobody reads."""
    for script in ("seq 1 9000", "trap '' HUP; sleep 5 & seq 1 9000"):
        exec_id = begin(daemon, shell=script)
        with Screen(daemon, exec_id, rcvbuf=4096) as screen:
            screen.until(lambda: screen.data)
            time.sleep(0.2)
            assert screen.finish().exit_code == 0
        assert screen.data.endswith(b"\r\n8999\r\n9000\r\n"), script
        call(daemon, "DELETE", f"/{exec_id}")


def test_a_terminal_that_nobody_has_open_may_be_opened_again(daemon: Daemon) -> None:
    script = "echo one; exec 3>&1; exec <&- >&- 2>&- 3>&-; sleep 0.4; echo two > /dev/tty; exit 4"
    result = run(daemon, script)
    assert (result.exit_code, result.stdout) == (4, b"one\r\ntwo\r\n")


def test_delete_hangs_up_also_what_heeds_no_term(daemon: Daemon, mark: str) -> None:
    script = f"trap '' TERM; trap 'echo HUP; exit 9' HUP; echo ready; while :; do sleep 0.05; done # {mark}"
    exec_id = begin(daemon, shell=script)
    with Screen(daemon, exec_id) as screen:
        screen.expect(rb"ready")
        began = time.monotonic()
        call(daemon, "DELETE", f"/{exec_id}")
        assert screen.finish().exit_code == 9
    assert time.monotonic() - began < 4, "it was killed, not hung up"
    assert b"HUP" in screen.data
    assert processes_with(mark) == []


def test_delete_ends_the_whole_tree(daemon: Daemon, mark: str) -> None:
    script = f"(trap '' HUP TERM; exec sleep 33 {mark}) & setsid sleep 34 {mark} & nohup sleep 35 {mark} & wait"
    script = script.replace(f" {mark}", f"; : {mark}").replace("exec ", "")
    exec_id = begin(daemon, shell=script, detached=True)
    assert wait_until(lambda: len(processes_with(mark)) >= 1)
    call(daemon, "DELETE", f"/{exec_id}")
    result = ask(daemon, exec_id).result
    assert result is not None
    assert result.signal == 1
    assert wait_until(lambda: not processes_with(mark))
    rows = call(daemon, "GET", f"/{exec_id}").json()
    assert rows["state"] == "ended"


def test_its_time_limit_is_kept(daemon: Daemon) -> None:
    result = run(daemon, "echo begun; sleep 30", timeout_s=0.3)
    assert (result.timed_out, result.stdout) == (True, b"begun\r\n")


def test_a_result_of_json_is_whole(daemon: Daemon) -> None:
    exec_id = begin(daemon, shell="printf '\\377'", detached=True)
    with Screen(daemon, exec_id) as screen:
        screen.finish()
    (result,) = screen.got("exit")
    assert "stdout" not in result
    assert json.dumps(result)
    assert screen.data == b"\xff"
