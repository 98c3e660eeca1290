"""`/v1/processes`: output from any offset, and readers that leave."""

from __future__ import annotations

import json
import random
import signal
import time
from typing import TYPE_CHECKING

from sandman import handles, wire
from tests.unit.daemon.commands import (
    FRAMES,
    MIB,
    Partial,
    ask,
    begin,
    call,
    chunks,
    ended,
    gaps,
    output,
)
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
