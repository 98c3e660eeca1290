"""`/v1/processes`: points 17, 20, 26, 39, 52 and 53: start, follow, come back, feed, signal, end."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from sandman import handles, names, wire
from tests.unit.daemon.harness import (
    Daemon,
    decode,
    exec_request,
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
    while (end := data.find(b"\r\n")) >= 0 and (size := int(data[:end], 16)):
        yield data[end + 2 : end + 2 + size]
        data = data[end + 4 + size :]


# --- starting ------------------------------------------------------------------------------------


def test_26_start_wait_and_read(daemon: Daemon) -> None:
    info = begin(daemon, shell="echo out; echo err >&2; sleep 0.2; exit 3", exec_id="p26")
    assert (info.exec_id, info.state, info.detached, info.result) == ("p26", "running", True, None)
    assert time.strptime(info.started_at, "%Y-%m-%dT%H:%M:%SZ")
    result = ended(daemon, "p26")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert (result.stdout_bytes, result.exec_id) == (4, "p26")
    assert ask(daemon, "p26").state == "ended"
    frames = output(daemon, "p26")
    assert frames[0].type == wire.STARTED
    assert frames[-1].type == wire.EXIT
    assert (joined(frames, wire.STDOUT), joined(frames, wire.STDERR)) == (b"out\n", b"err\n")
    assert "stdout" not in json.loads(frames[-1].payload)
    assert joined(output(daemon, "p26", 2, 4), wire.STDOUT) == b"t\n"


def test_26_a_name_is_made_where_none_is_given(daemon: Daemon) -> None:
    info = begin(daemon, argv=["echo", "hi"])
    assert ended(daemon, info.exec_id).stdout == b"hi\n"


def test_26_all_are_listed(daemon: Daemon) -> None:
    begin(daemon, argv=["true"], exec_id="listed-1")
    begin(daemon, argv=["sleep", "30"], exec_id="listed-2")
    ended(daemon, "listed-1")
    found = {one["exec_id"]: one for one in call(daemon, "GET", "").json()["processes"]}
    assert (found["listed-1"]["state"], found["listed-2"]["state"]) == ("ended", "running")
    assert found["listed-1"]["result"]["exit_code"] == 0
    assert "stdout" not in found["listed-1"]["result"]
    call(daemon, "DELETE", "/listed-2")


def test_26_a_wait_that_is_over_before_the_command(daemon: Daemon) -> None:
    begin(daemon, argv=["sleep", "30"], exec_id="long")
    started = time.monotonic()
    assert ask(daemon, "long", 0.2).state == "running"
    assert 0.15 < time.monotonic() - started < 2
    call(daemon, "DELETE", "/long")
    assert ended(daemon, "long").signal == signal.SIGTERM


@pytest.mark.parametrize("wait_s", ["x", "-1", "nan", "1e9"])
def test_a_wait_that_is_none(daemon: Daemon, wait_s: str) -> None:
    begin(daemon, argv=["true"], exec_id="w")
    assert problem(call(daemon, "GET", f"/w?wait_s={wait_s}"))["field"] == "wait_s"


def test_what_is_not_there(daemon: Daemon) -> None:
    for method, path in (("GET", "/no"), ("GET", "/no/output"), ("POST", "/no/stdin")):
        assert problem(call(daemon, method, path))["reason"] == "not_found"
    assert problem(call(daemon, "POST", "/no/signal", json={}))["reason"] == "not_found"
    assert problem(call(daemon, "GET", "/no/such/thing"))["reason"] == "not_found"
    assert problem(call(daemon, "GET", "/{}/output"))["reason"] == "not_found"
    assert problem(call(daemon, "PUT", "/no/output"))["reason"] == "method_not_allowed"
    assert call(daemon, "DELETE", "/no").status_code == 204


def test_what_cannot_be_started(daemon: Daemon) -> None:
    assert (
        problem(call(daemon, "POST", "", json={"argv": ["true"], "cwd": "/no"}))["field"] == "cwd"
    )
    assert problem(call(daemon, "POST", "", json={"argv": ["x"], "no": 1}))["field"] == "no"
    info = begin(daemon, argv=["no-such"], exec_id="absent")
    assert info.result is not None
    assert (info.result.exit_code, info.result.start_error) == (127, "not_found")
    assert b"no-such" in info.result.stderr
    frames = output(daemon, "absent")
    assert [frame.type for frame in frames] == [wire.STDERR, wire.EXIT]
    assert daemon.refuse(argv=["true"], detached=True)["field"] == "detached"
    assert daemon.refuse(argv=["true"], attached_grace_s=1000)["field"] == "attached_grace_s"


# --- never twice ---------------------------------------------------------------------------------


def test_52_the_same_name_never_runs_twice(daemon: Daemon, tmp_path) -> None:
    body = {"shell": f"echo x >> {tmp_path}/runs; sleep 0.2", "exec_id": "once", "stdin": "a"}
    seen: list[int] = []

    def start() -> None:
        answer = daemon.client.post("/v1/processes", json={"detached": True, **body})
        seen.append(answer.status_code)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [200] * 8
    ended(daemon, "once")
    start()
    assert (tmp_path / "runs").read_text() == "x\n"


@pytest.mark.parametrize(
    "change", [{"stdin": "b"}, {"stdin": None}, {"shell": "false"}, {"env": {"A": "1"}}]
)
def test_52_the_same_name_with_another_command_is_a_conflict(daemon: Daemon, change) -> None:
    body = {"detached": True, "shell": "true", "exec_id": "mine", "stdin": "a"}
    begin(daemon, **body)
    found = problem(call(daemon, "POST", "", json={**body, **change}))
    assert (found["reason"], found["field"]) == ("conflict", "exec_id")


def test_52_exec_with_a_known_name_attaches(daemon: Daemon, tmp_path) -> None:
    body = {
        "shell": f"echo x >> {tmp_path}/runs; echo a; sleep 0.5; echo b",
        "exec_id": "p52-again",
    }
    answers: list[wire.ExecResult] = []
    frames: list[wire.Frame] = []
    threads = [
        threading.Thread(target=lambda: answers.append(daemon.exec(**body))),
        threading.Thread(target=lambda: answers.append(daemon.exec(**body))),
        threading.Thread(target=lambda: frames.extend(daemon.frames(**body))),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer.stdout for answer in answers] == [b"a\nb\n"] * 2
    assert joined(frames, wire.STDOUT) == b"a\nb\n"
    assert daemon.exec(**body) == answers[0]
    assert (tmp_path / "runs").read_text() == "x\n"


def test_52_a_framed_request_with_a_known_name_attaches(daemon: Daemon) -> None:
    request = wire.encode_frame(wire.REQUEST, b'{"argv":["cat"],"exec_id":"framed"}')
    request += wire.encode_frame(wire.STDIN, b"in") + wire.encode_frame(wire.STDIN_CLOSE)
    first, second = daemon.upload(request), daemon.upload(request)
    assert first.json()["stdout"] == "in"
    assert second.json() == first.json()


def test_53_a_command_that_did_not_start_tells_all_who_wait(start: Callable[..., Daemon]) -> None:
    fresh = start()
    body = {"argv": ["true"], "cwd": "/no", "exec_id": "never"}
    for _ in range(2):
        assert fresh.refuse(**body)["reason"] == "path_not_found"
    assert problem(call(fresh, "GET", "/never"))["reason"] == "not_found"


# --- output --------------------------------------------------------------------------------------


def test_26_53_reattaching_at_any_byte_loses_and_repeats_nothing(daemon: Daemon) -> None:
    dice = random.Random(53)
    for turn in range(12):
        name = f"cut-{turn}"
        script = "for i in $(seq 1 4000); do echo out $i; [ $((i % 7)) = 0 ] && echo err $i >&2; done; exit 5"
        begin(daemon, shell=script, exec_id=name, detached=bool(turn % 2))
        reader = Partial()
        while reader.result is None:
            reader.read(daemon, name, dice.choice([1, 250, 1000, 5000, 20000, 10**7]))
        numbers = range(1, 4001)
        assert reader.got[wire.STDOUT] == "".join(f"out {n}\n" for n in numbers).encode()
        errors = "".join(f"err {n}\n" for n in numbers if n % 7 == 0)
        assert reader.got[wire.STDERR] == errors.encode()
        assert (reader.result.exit_code, reader.gaps) == (5, [])


def test_53_exec_that_lost_its_reader_is_read_on(daemon: Daemon) -> None:
    dice = random.Random(54)
    for turn in range(6):
        name = f"lost-{turn}"
        body = {"shell": "seq 1 60000; sleep 0.1; seq 1 1000 >&2", "exec_id": name}
        reader = Partial()
        with daemon.connect() as sock:
            sock.sendall(exec_request({**body, "attached_grace_s": 10}, FRAMES))
            reader.take(sock, dice.randrange(200, 300_000))
        while reader.result is None:
            reader.read(daemon, name, dice.choice([500, 30_000, 10**7]))
        assert reader.got[wire.STDOUT] == "".join(f"{n}\n" for n in range(1, 60001)).encode()
        assert reader.got[wire.STDERR] == "".join(f"{n}\n" for n in range(1, 1001)).encode()
        assert (reader.result.exit_code, reader.gaps) == (0, [])


def test_17_a_detached_command_is_not_held_up_by_its_reader(daemon: Daemon) -> None:
    begin(daemon, shell="head -c 30M /dev/zero; echo done", exec_id="free", output_limit=MIB)
    with daemon.connect() as sock:
        sock.sendall(head("GET", "/v1/processes/free/output"))
        result = ended(daemon, "free")  # though nobody has read a byte
    assert (result.stdout_bytes, result.stdout_truncated) == (30 * MIB + 5, True)
    assert (len(result.stdout), result.stdout[-5:]) == (MIB, b"done\n")


def test_20_what_is_no_longer_kept_is_told(daemon: Daemon) -> None:
    begin(daemon, shell="head -c 9M /dev/zero; echo end", exec_id="gap", output_limit=2 * MIB)
    ended(daemon, "gap")
    frames = output(daemon, "gap")
    assert gaps(frames) == [handles.Gap("stdout", MIB, 8 * MIB + 4)]
    assert len(joined(frames, wire.STDOUT)) == 2 * MIB
    assert json.loads(frames[-1].payload)["stdout_truncated"]
    frames = output(daemon, "gap", 5 * MIB)
    assert gaps(frames) == [handles.Gap("stdout", 5 * MIB, 8 * MIB + 4)]
    frames = output(daemon, "gap", 9 * MIB)
    assert (gaps(frames), joined(frames, wire.STDOUT)) == ([], b"end\n")
    assert not json.loads(frames[-1].payload)["stdout_truncated"]


def test_26_an_attached_reader_gets_all_and_slows_the_command(start: Callable[..., Daemon]) -> None:
    fresh = start()
    begin(fresh, shell="head -c 40M /dev/zero", exec_id="slow", detached=False, output_limit=0)
    with fresh.connect() as sock:
        sock.sendall(head("GET", "/v1/processes/slow/output", "Connection: close"))
        time.sleep(0.5)
        assert ask(fresh, "slow").stdout_bytes < 30 * MIB
        data = b"".join(chunks(read_all(sock).partition(b"\r\n\r\n")[2]))
    frames = decode(data)
    assert (len(joined(frames, wire.STDOUT)), gaps(frames)) == (40 * MIB, [])
    assert peak_kib(fresh) < 60 * 1024


def test_53_output_waits_for_the_reader_that_will_come(daemon: Daemon) -> None:
    begin(daemon, shell="seq 1 500000", exec_id="patient", detached=False, output_limit=0)
    time.sleep(0.3)
    assert ask(daemon, "patient").stdout_bytes < MIB
    frames = output(daemon, "patient")
    assert joined(frames, wire.STDOUT) == "".join(f"{n}\n" for n in range(1, 500001)).encode()


def test_53_a_reader_that_hangs_does_not_stop_the_one_that_came_back(daemon: Daemon) -> None:
    begin(daemon, shell="head -c 60M /dev/zero", exec_id="hung", detached=False)
    with daemon.connect() as sock:
        sock.sendall(head("GET", "/v1/processes/hung/output"))
        time.sleep(0.3)
        assert ask(daemon, "hung").state == "running"
        frames = output(daemon, "hung")
    assert json.loads(frames[-1].payload)["stdout_bytes"] == 60 * MIB


def test_26_offsets_that_cannot_be(daemon: Daemon) -> None:
    begin(daemon, argv=["echo", "abc"], exec_id="offsets")
    ended(daemon, "offsets")
    found = problem(call(daemon, "GET", "/offsets/output?stdout=5"))
    assert (found["field"], found["facts"]) == ("stdout", {"total": 4})
    for bad in ("x", "-1", "", "9" * 19):
        assert problem(call(daemon, "GET", f"/offsets/output?stderr={bad}"))["field"] == "stderr"


def test_26_merged_streams_are_followed(daemon: Daemon) -> None:
    begin(daemon, shell="echo a; echo b >&2", exec_id="merged", merge_stderr=True)
    assert joined(output(daemon, "merged"), wire.STDOUT) == b"a\nb\n"
    assert ask(daemon, "merged").stderr_bytes == 0


# --- who leaves ----------------------------------------------------------------------------------


def test_17_leaving_a_detached_command_does_nothing_to_it(daemon: Daemon, mark: str) -> None:
    begin(daemon, shell=f"sleep 1; echo whole; : {mark}", exec_id="left")
    for path in ("/left/output", "/left?wait_s=20"):
        with daemon.connect() as sock:
            sock.sendall(head("GET", f"/v1/processes{path}"))
            time.sleep(0.1)
    assert processes_with(mark)
    assert ended(daemon, "left").stdout == b"whole\n"


def test_18_an_attached_command_ends_when_nobody_reads_it(daemon: Daemon, mark: str) -> None:
    body = {"shell": f"sleep 60; : {mark}", "detached": False, "attached_grace_s": 0.5}
    begin(daemon, exec_id="lonely", **body)
    with daemon.connect() as sock:
        sock.sendall(head("GET", "/v1/processes/lonely/output"))
        time.sleep(1)
        assert processes_with(mark)
    assert wait_until(lambda: not processes_with(mark), 3)
    assert ended(daemon, "lonely").signal == signal.SIGTERM


def test_18_exec_without_a_grace_ends_with_its_caller(daemon: Daemon, mark: str) -> None:
    with daemon.connect() as sock:
        sock.sendall(exec_request({"shell": f"sleep 60; : {mark}", "exec_id": "bound"}, FRAMES))
        assert wait_until(lambda: processes_with(mark))
    assert wait_until(lambda: not processes_with(mark), 2)
    assert ended(daemon, "bound").exit_code == 143


def test_18_exec_with_a_grace_ends_after_it(daemon: Daemon, mark: str) -> None:
    body = {"shell": f"sleep 60; : {mark}", "attached_grace_s": 0.7}
    with daemon.connect() as sock:
        sock.sendall(exec_request(body))
        assert wait_until(lambda: processes_with(mark))
    time.sleep(0.3)
    assert processes_with(mark)
    assert wait_until(lambda: not processes_with(mark), 3)


# --- stdin, signals, the end ---------------------------------------------------------------------


def feed(daemon: Daemon, name: str, data: bytes, query: str = "") -> httpx.Response:
    return call(daemon, "POST", f"/{name}/stdin{query}", content=data)


def test_26_stdin_comes_in_pieces_each_byte_once(daemon: Daemon) -> None:
    begin(daemon, argv=["cat"], exec_id="fed", stdin="one ", stdin_open=True)
    assert feed(daemon, "fed", b"two ").json()["stdin_bytes"] == 8
    assert feed(daemon, "fed", b"three", "?offset=8").json()["stdin_bytes"] == 13
    assert feed(daemon, "fed", b"three", "?offset=8").json()["stdin_bytes"] == 13
    assert feed(daemon, "fed", b"ree!", "?offset=10").json()["stdin_bytes"] == 14
    ahead = problem(feed(daemon, "fed", b"x", "?offset=99"))
    assert (ahead["reason"], ahead["facts"]) == ("conflict", {"stdin_bytes": 14})
    assert ask(daemon, "fed").state == "running"
    assert feed(daemon, "fed", b"", "?close=1").status_code == 200
    assert ended(daemon, "fed").stdout == b"one two three!"
    assert feed(daemon, "fed", b"ee!", "?offset=11&close=1").status_code == 200
    assert problem(feed(daemon, "fed", b"late"))["field"] == "stdin"


def test_26_much_stdin_through_a_slow_command(daemon: Daemon) -> None:
    data = os.urandom(MIB)
    begin(daemon, shell="sleep 0.3; sha256sum", exec_id="much", stdin_open=True)
    assert feed(daemon, "much", data, "?close=1").json()["stdin_bytes"] == MIB
    assert ended(daemon, "much").stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert problem(feed(daemon, "much", bytes(MIB + 1)))["reason"] == "too_large"


def test_26_stdin_that_is_not_read_is_taken_in_part(start: Callable[..., Daemon], tmp_path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(
        "import sys\nfrom daemon import handles\nhandles._STDIN_WAIT_S = 0.2\n"
        "from daemon.__main__ import main\nsys.exit(main())\n"
    )
    fresh = start(program=(sys.executable, str(script)))
    begin(fresh, argv=["sleep", "30"], exec_id="deaf", stdin_open=True)
    taken = feed(fresh, "deaf", bytes(MIB), "?close=1").json()["stdin_bytes"]
    assert 0 < taken < MIB
    assert ask(fresh, "deaf").state == "running"


def test_26_without_an_open_stdin_there_is_nothing_to_feed(daemon: Daemon) -> None:
    begin(daemon, argv=["cat"], exec_id="closed")
    assert ended(daemon, "closed").exit_code == 0
    assert problem(feed(daemon, "closed", b"x"))["field"] == "stdin_open"
    begin(daemon, argv=["cat"], exec_id="given", stdin="given")
    assert ended(daemon, "given").stdout == b"given"


@pytest.mark.parametrize("given", ["USR1", "sigusr1", int(signal.SIGUSR1)])
def test_26_signals_by_name_and_number(daemon: Daemon, given: object) -> None:
    name = f"sig-{given}"
    begin(
        daemon,
        shell="trap 'echo got; exit 9' USR1; echo up; while :; do sleep 0.01; done",
        exec_id=name,
    )
    assert wait_until(lambda: ask(daemon, name).stdout_bytes)
    assert call(daemon, "POST", f"/{name}/signal", json={"signal": given}).status_code == 204
    result = ended(daemon, name)
    assert (result.exit_code, result.stdout) == (9, b"up\ngot\n")
    late = problem(call(daemon, "POST", f"/{name}/signal", json={"signal": given}))
    assert late["reason"] == "conflict"


def test_26_signals_to_the_leader_or_to_all(daemon: Daemon, mark: str) -> None:
    script = f"setsid sh -c 'sleep 60; : {mark}' & trap '' TERM; echo up; wait; wait"
    begin(daemon, shell=script, exec_id="tree")
    assert wait_until(lambda: processes_with(mark))
    assert wait_until(lambda: ask(daemon, "tree").stdout_bytes)  # its trap is set
    call(daemon, "POST", "/tree/signal", json={"signal": "TERM"})
    time.sleep(0.1)
    assert ask(daemon, "tree").state == "running"
    call(daemon, "POST", "/tree/signal", json={"signal": "KILL", "tree": True})
    assert ended(daemon, "tree").signal == signal.SIGKILL
    assert wait_until(lambda: not processes_with(mark))


@pytest.mark.parametrize("given", ["NOPE", "", 0, 9999, None, True])
def test_26_signals_that_are_none(daemon: Daemon, given: object) -> None:
    begin(daemon, argv=["sleep", "5"], exec_id="nosig")
    answer = call(daemon, "POST", "/nosig/signal", json={"signal": given})
    assert problem(answer)["field"] == "signal"


def test_26_a_kill_ends_the_whole_tree_and_may_be_repeated(daemon: Daemon, mark: str) -> None:
    script = f"trap 'echo bye; exit 1' TERM; setsid sh -c 'sleep 60; : {mark}' & sleep 60 & wait"
    begin(daemon, shell=script, exec_id="doomed")
    assert wait_until(lambda: processes_with(mark))
    for _ in range(3):
        assert call(daemon, "DELETE", "/doomed").status_code == 204
    result = ended(daemon, "doomed")
    assert (result.exit_code, result.stdout, result.timed_out) == (1, b"bye\n", False)
    assert wait_until(lambda: not processes_with(mark))
    assert call(daemon, "DELETE", "/doomed").status_code == 204


def test_26_a_kill_after_the_end_ends_what_was_left(daemon: Daemon, mark: str) -> None:
    begin(daemon, shell=f"setsid sh -c 'sleep 60; : {mark}' >/dev/null 2>&1 & :", exec_id="server")
    assert ended(daemon, "server").exit_code == 0
    assert wait_until(lambda: processes_with(mark))
    call(daemon, "DELETE", "/server")
    assert wait_until(lambda: not processes_with(mark), 3)


def test_15_a_detached_command_has_its_timeout(daemon: Daemon) -> None:
    begin(daemon, shell="echo early; sleep 60", exec_id="timed", timeout_s=0.3)
    result = ended(daemon, "timed")
    assert (result.timed_out, result.stdout) == (True, b"early\n")


# --- bounds and faults ---------------------------------------------------------------------------


def test_20_the_kept_output_of_ended_commands_is_bounded(start: Callable[..., Daemon]) -> None:
    fresh = start()
    for number in range(8):
        begin(
            fresh,
            shell=f"head -c 9M /dev/zero | tr '\\0' a; echo {number}",
            exec_id=f"big-{number}",
        )
        ended(fresh, f"big-{number}")
    first = ask(fresh, "big-0").result
    assert first is not None
    assert (first.stdout, first.stdout_bytes, first.stdout_truncated) == (b"", 9 * MIB + 2, True)
    assert gaps(output(fresh, "big-0")) == [handles.Gap("stdout", 0, 9 * MIB + 2)]
    assert ended(fresh, "big-7").stdout_truncated is False
    assert peak_kib(fresh) < 160 * 1024


FAULTY = """
import sys
from daemon import attach
attach.Attachment._is_over = lambda self, now: 1 // 0
from daemon.__main__ import main
sys.exit(main())
"""


def test_a_fault_of_ours_is_told_to_whoever_asks(start: Callable[..., Daemon], tmp_path) -> None:
    script = tmp_path / "faulty.py"
    script.write_text(FAULTY)
    fresh = start(program=(sys.executable, str(script)))
    answer = call(fresh, "POST", "", json={"argv": ["sleep", "60"], "exec_id": "f"})
    assert answer.status_code in {200, 500}
    assert wait_until(lambda: call(fresh, "GET", "/f").status_code == 500)
    assert wait_until(lambda: call(fresh, "GET", "").json()["processes"][0]["state"] == "ended")
    assert problem(call(fresh, "GET", "/f/output"))["reason"] == "internal"
    assert wait_until(lambda: any("ZeroDivisionError" in line for line in fresh.lines))


NO_THREAD = """
import sys, threading
from daemon import runner
class Thread:
    def __init__(self, **kwargs): raise RuntimeError("can't start new thread")
runner.threading = type(sys)("threading")
runner.threading.Thread = Thread
from daemon.__main__ import main
sys.exit(main())
"""


def test_no_thread_for_a_command_is_an_error_and_leaves_nothing(
    start: Callable[..., Daemon], tmp_path, mark: str
) -> None:
    script = tmp_path / "full.py"
    script.write_text(NO_THREAD)
    fresh = start(program=(sys.executable, str(script)))
    answer = call(fresh, "POST", "", json={"shell": f"sleep 60; : {mark}", "exec_id": "f"})
    found = problem(answer)
    # It ran for a moment, and that there was no room is of the sandbox's making.
    assert (found["reason"], found["cause"]) == ("outcome_unknown", "sandbox")
    assert wait_until(lambda: not processes_with(mark))


def test_17_a_silent_command_keeps_its_reader_alive(start: Callable[..., Daemon], tmp_path) -> None:
    script = tmp_path / "fast.py"
    script.write_text(
        "import sys\nfrom sandman import wire\nwire.KEEPALIVE_S = 0.1\n"
        "from daemon.__main__ import main\nsys.exit(main())\n"
    )
    fresh = start(program=(sys.executable, str(script)))
    begin(fresh, argv=["sleep", "0.5"], exec_id="silent")
    assert [f.type for f in output(fresh, "silent")].count(wire.KEEPALIVE) >= 3


def test_descriptors_are_given_back(start: Callable[..., Daemon]) -> None:
    fresh = start()

    def count() -> int:
        return len(os.listdir(f"/proc/{fresh.pid}/fd"))  # noqa: PTH208

    fresh.exec(argv=["true"])
    before = count()
    for number in range(20):
        begin(fresh, argv=["echo", "x"], exec_id=f"d{number}", stdin_open=True)
        with closing(fresh.connect()) as sock:
            sock.sendall(head("GET", f"/v1/processes/d{number}/output"))
            sock.recv(10)
        ended(fresh, f"d{number}")
    assert wait_until(lambda: count() <= before + 2)
