"""What goes on after its call: background processes, handles, zombies. Points 23 to 26 and 28.

The shell's ways are tried where there is one; the rest by an interpreter, which every image has.
"""

from __future__ import annotations

import time

import pytest

from sandman._core.values import Stderr, Stdout
from sandman.errors import ConflictError, NotFoundError
from tests.conformance.cells import PYTHON, Box, over, over_each_image, with_shell

SERVER = """
import os, socket, sys
if os.fork():
    os._exit(42)
os.setsid()
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen()
asked = 0
while True:
    line, _ = server.accept()
    asked += 1
    line.sendall(b"%d" % asked)
    line.close()
    if asked == int(sys.argv[2]):
        os._exit(0)
"""
ASK = """
import socket, sys, time
while True:
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(sys.argv[1])
        break
    except OSError:
        line.close()
        time.sleep(0.01)
print(line.recv(9).decode())
"""


@over(where=with_shell)
@pytest.mark.parametrize(
    ("script", "code"),
    # Debian's static busybox has no nohup.
    [
        ("sleep 600 &", 0),
        ("(sleep 600 &) ; exit 42", 42),
        ("$(command -v nohup) sleep 600 > /dev/null 2>&1 &", 0),
        ("setsid sleep 600 & exit 3", 3),
    ],
)
def test_point_23_a_background_child_does_not_hold_the_answer(
    box: Box, script: str, code: int
) -> None:
    result = box.run(script, timeout_s=300)
    assert (result.exit_code, result.timed_out) == (code, False)
    assert result.wall_s < 200
    _end(box, "sleep 600")


def _end(box: Box, words: str, least: int = 1) -> None:
    """End the processes of this command line; there must be some."""
    deadline = time.monotonic() + 30
    script = (
        "import os, signal, sys\nfound = 0\n"
        "for name in os.listdir('/proc'):\n"
        "    if name.isdigit() and int(name) not in (1, os.getpid()):\n"
        "        try: line = open(f'/proc/{name}/cmdline', 'rb').read()\n"
        "        except OSError: continue\n"
        "        if sys.argv[1].encode() in line.replace(b'\\0', b' '):\n"
        "            os.kill(int(name), signal.SIGKILL); found += 1\n"
        "sys.exit(found)"
    )
    while (found := box.python(script, words).exit_code) < least:
        assert time.monotonic() < deadline, f"{words!r} does not run"
    assert found == least


@over()
def test_point_23_24_25_a_server_of_one_command_serves_later_ones(box: Box, place: str) -> None:
    path = f"{place}/s"
    started = box.python(SERVER, path, "4", timeout_s=30)
    assert (started.exit_code, started.timed_out) == (42, False)
    answers = [box.python(ASK, path, timeout_s=30).stdout_text.strip() for _ in range(4)]
    assert answers == ["1", "2", "3", "4"]


@over_each_image()
def test_point_24_its_launchers_timeout_does_not_reach_it(box: Box, place: str) -> None:
    script = (
        "import os, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "time.sleep(0.8); open(sys.argv[1], 'w').close()"
    )
    assert box.python(script, f"{place}/late", timeout_s=0.5).exit_code == 0
    assert not box.files.exists(f"{place}/late")
    deadline = time.monotonic() + 30
    while not box.files.exists(f"{place}/late"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@over()
def test_point_24_it_writes_on_into_the_pipes_that_it_was_given(box: Box, place: str) -> None:
    # Four times what a pipe holds: neither a full nor a broken one may stop it.
    script = (
        "import os, sys, time\n"
        "if os.fork(): os._exit(0)\n"
        "for _ in range(64): os.write(1, b'x' * 4096); time.sleep(0.001)\n"
        "open(sys.argv[1], 'w').close()"
    )
    assert box.python(script, f"{place}/whole", timeout_s=60).exit_code == 0
    deadline = time.monotonic() + 30
    while not box.files.exists(f"{place}/whole"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


@over("debian-0", "debian-65534", "readonly-1000")
def test_point_25_a_tmux_server_of_one_command_serves_later_ones(box: Box, place: str) -> None:
    tmux = ["tmux", "-S", f"{place}/tmux", "-f", "/dev/null"]
    env = {"LC_ALL": "C.UTF-8", "TERM": "dumb", "SHELL": "/bin/sh"}

    def call(*args: str) -> str:
        return box.exec([*tmux, *args], env=env, check=True, timeout_s=60).stdout_text

    call("new-session", "-d", "-s", "work", "-x", "160", "-y", "40", "sh")
    call("send-keys", "-t", "work", "echo; echo $((6 * 7)); tmux -V; tmux wait -S typed", "Enter")
    call("wait", "typed")
    screen = call("capture-pane", "-p", "-t", "work")
    assert "\n42\n" in screen
    call("kill-server")


CHAT = """
import os
while line := os.read(0, 100):
    os.write(1, b"<" + line + b">")
os.write(2, b"end of input")
os._exit(5)
"""


@over()
def test_point_26_a_handle_feeds_reads_and_waits(box: Box) -> None:
    process = box.sandbox.start([*PYTHON, CHAT], stdin_open=True)
    assert process.refresh().state == "running"
    assert process.exec_id in {one.exec_id for one in box.sandbox.processes()}
    with process.follow() as output:
        events = iter(output)
        process.write("one")
        assert next(events) == Stdout(b"<one>")
        process.write(b"two")
        assert next(events) == Stdout(b"<two>")
        process.close_stdin()
        assert list(events) == [Stderr(b"end of input")]
    result = process.wait()
    assert (result.exit_code, result.stdout, result.stderr) == (5, b"<one><two>", b"end of input")
    with pytest.raises(ConflictError):
        process.write("late")


@over()
def test_point_26_a_reader_comes_back_where_it_was(box: Box) -> None:
    process = box.sandbox.start([*PYTHON, CHAT], stdin_open=True)
    process.write("first")
    with process.follow() as output:
        assert next(iter(output)) == Stdout(b"<first>")
        offsets = dict(output.offsets)
    process.write("second")
    process.close_stdin()
    with box.sandbox.process(process.exec_id).follow(**offsets) as output:
        data = b"".join(event.data for event in output if isinstance(event, Stdout))
    assert data == b"<second>"
    assert output.result.exit_code == 5


@over()
def test_point_26_signals_and_the_end_of_a_tree(box: Box) -> None:
    script = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'usr1'))\n"
        "os.write(1, b'up')\nos.fork()\nwhile True: time.sleep(600)"
    )
    process = box.sandbox.start([*PYTHON, script])
    with process.follow() as output:
        events = iter(output)
        assert next(events) == Stdout(b"up")
        process.signal("USR1")
        assert next(events) == Stdout(b"usr1")
    process.kill()
    result = process.wait()
    assert (result.signal, result.timed_out) == (15, False)
    with pytest.raises(ConflictError):
        process.signal(9)
    with pytest.raises(NotFoundError):
        box.sandbox.process("never-started").refresh()


ORPHANS = """
import os
for n in range(100):
    if os.fork() == 0:
        for _ in range(2):
            if os.fork() == 0:
                os._exit(0)
        os._exit(0)
while True:
    try: os.wait()
    except ChildProcessError: break
"""


@over()
def test_point_28_two_hundred_orphans_become_no_zombies(box: Box) -> None:
    assert box.python(ORPHANS).exit_code == 0
    count = (
        "import os\nzombies = 0\n"
        "for name in os.listdir('/proc'):\n"
        "    if name.isdigit():\n"
        "        try: zombies += ') Z ' in open(f'/proc/{name}/stat').read()\n"
        "        except OSError: pass\n"
        "print(zombies)"
    )
    deadline = time.monotonic() + 5
    while box.python(count).stdout != b"0\n":
        assert time.monotonic() < deadline
