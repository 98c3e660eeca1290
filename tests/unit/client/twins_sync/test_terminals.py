# Written by scripts/unasync.py from tests/unit/client/twins_async/test_terminals.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""Terminals, with the real daemon at the end of a bad line."""

from __future__ import annotations

import random

import pytest

from sandman import errors
from sandman._core import blocking as anyio
from sandman.sync import Client, Limits, TerminalSpec
from tests.unit.client.way import SANDBOX, Way
from tests.unit.daemon.harness import TOKEN, processes_with, wait_until

NUMBERS = "".join(f"{n}\r\n" for n in range(1, 20_001)).encode()
RAW = "stty raw -echo; echo ready; "


def test_type_and_read_like_a_person(way: Way) -> None:
    size = TerminalSpec(rows=30, cols=100, term="vt100")
    with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        with box.terminal(["sh"], size=size, env={"PS1": "$ "}) as term:
            shown = term.read(10)
            while not shown.endswith(b"$ "):
                shown += term.read(10)
            assert term.offset == len(shown)
            with pytest.raises(RuntimeError, match="has not ended"):
                _ = term.result
            term.write("stty size; echo $TERM; exit 7\r")
            for data in term:
                shown += data
        assert b"\r\n30 100\r\nvt100\r\n" in shown
        assert (term.result.exit_code, term.result.stdout) == (7, b"")
        assert term.read() == b""
        with pytest.raises(errors.ConflictError, match="has ended"):
            term.write("x")
        with pytest.raises(errors.ConflictError):
            term.resize(1, 1)
        assert "offset=" in repr(term)
        assert (term.process.refresh()).terminal


def test_the_images_shell_and_another_size(way: Way) -> None:
    with Client(way.url, TOKEN) as client:
        term = client.attach(SANDBOX).open_terminal()
        with term:
            term.write("tty -s && echo $((6 * 7))\r")
            shown = b""
            while b"42\r\n" not in shown:
                shown += term.read(10)
            term.resize(11, 22)
            term.write(b"stty size; exit\r")
            while data := term.read(10):
                shown += data
            assert b"11 22\r\n" in shown


def test_nothing_to_read_in_time(way: Way) -> None:
    with (
        Client(way.url, TOKEN) as client,
        client.attach(SANDBOX).terminal(shell="sleep 0.5; echo late") as term,
    ):
        with pytest.raises(TimeoutError, match=r"0\.1 s"):
            term.read(0.1)
        assert term.read(10) == b"late\r\n"


def test_leaving_the_block_ends_what_runs(way: Way) -> None:
    with Client(way.url, TOKEN) as client:
        with client.attach(SANDBOX).terminal(shell="trap '' TERM; sleep 61; :") as term:
            term.write("x")
        result = term.process.wait()
        assert result.signal == 1


def test_output_comes_whole_over_a_line_that_breaks_anywhere(way: Way) -> None:
    dice = random.Random(6)
    told: list[str] = []
    with Client(way.url, TOKEN, on_retry=lambda r: told.append(r.call)) as client:
        way.cuts.extend([None, *(dice.choice([0, 40, 250, 400, 5000, 30_000]) for _ in range(5))])
        term = client.attach(SANDBOX).open_terminal(shell="seq 1 20000")
        got = b""
        for data in term:
            got += data
        assert got == NUMBERS
        assert (term.result.exit_code, term.gaps) == (0, [])
    assert told
    assert all("terminal" in call for call in told)


def test_what_is_typed_is_taken_once_over_a_line_that_breaks(way: Way) -> None:
    """Each connection breaks after some bytes of what comes back: what was taken is told among them."""
    dice = random.Random(9)
    with Client(way.url, TOKEN) as client:
        size = 600_000
        typed = dice.randbytes(size)
        box = client.attach(SANDBOX)
        term = box.open_terminal(shell=RAW + f"head -c {size} | sha256sum; sleep 0.1")
        way.cuts.extend(dice.choice([300, 400, 500, 700, 1000]) for _ in range(6))
        assert term.read(10) == b"ready\n"
        for start in range(0, size, 100_000):
            term.write(typed[start : start + 100_000])
        shown = b""
        while data := term.read(10):
            shown += data
        import hashlib  # noqa: PLC0415

        assert shown.decode().split()[0] == hashlib.sha256(typed).hexdigest()
        assert not way.cuts


def test_come_back_by_another_handle(way: Way) -> None:
    with Client(way.url, TOKEN) as client:
        box = client.attach(SANDBOX)
        first = box.open_terminal(shell=RAW + "cat", detached=True)
        assert first.read(10) == b"ready\n"
        first.write("abc")
        assert first.read(10) == b"abc"
        second = box.attach_terminal(first.process.exec_id, first.offset)
        second.write("def")
        assert second.read(10) == b"def"
        with pytest.raises(errors.ConflictError, match="taken"):
            first.read(10)
        second.close()
        third = box.attach_terminal(first.process.exec_id)
        assert third.read(10) == b"ready\nabcdef"
        third.process.kill()
        assert third.read(10) == b""
        assert third.result.signal == 1


def test_much_is_typed_while_much_is_shown(way: Way) -> None:
    size = 1_500_000
    with Client(way.url, TOKEN) as client:
        term = client.attach(SANDBOX).open_terminal(shell=RAW + f"head -c {size}")
        assert term.read(10) == b"ready\n"
        term.write(b"x" * size)
        shown = bytearray()
        for data in term:
            shown += data
        assert shown.count(b"x") == len(shown) == size


def test_what_cannot_be(way: Way) -> None:
    with Client(way.url, TOKEN, limits=Limits(retry_s=0.5)) as client:
        box = client.attach(SANDBOX)
        with pytest.raises(TypeError, match="no stdin"):
            box.open_terminal(["cat"], stdin=b"x")
        with pytest.raises(TypeError, match="either"):
            box.open_terminal(["cat"], shell="cat")
        with pytest.raises(errors.NotFoundError):
            box.attach_terminal("never-there").read()
        plain = box.start(["true"])
        with pytest.raises(errors.ConflictError, match="no terminal"):
            box.attach_terminal(plain.exec_id).read()
        with pytest.raises(errors.BadRequestError, match="rows"):
            box.open_terminal(size=TerminalSpec(rows=0))
        term = box.open_terminal(["no-such-program"])
        assert term.read() == b"no-such-program: not found in PATH\n"
        assert term.read() == b""
        assert term.result.start_error == "not_found"


def test_a_line_that_stays_broken_is_given_up(way: Way) -> None:
    with Client(way.url, TOKEN, limits=Limits(retry_s=0.5)) as client:
        term = client.attach(SANDBOX).open_terminal(shell="echo; sleep 30", detached=True)
        assert term.read() == b"\r\n"
        way.cuts.extend([0] * 50)
        term.close()
        with pytest.raises(errors.UnreachableError):
            term.read()
        way.cuts.clear()
        term.process.kill()


def test_who_answers_otherwise_is_no_gateway(way: Way) -> None:
    with Client(way.url, TOKEN) as client:
        term = client.attach(SANDBOX).open_terminal(shell="sleep 30", detached=True)
        way.edits.append((b"Sec-WebSocket-Accept: ", b"Sec-WebSocket-Accept: x"))
        with pytest.raises(errors.InternalError, match="not Sandman's"):
            term.read()
        way.edits.clear()
        term.process.kill()
        assert wait_until(lambda: not processes_with(term.process.exec_id))


def test_a_timeout_leaves_nothing_half_done(way: Way) -> None:
    with (
        Client(way.url, TOKEN) as client,
        client.attach(SANDBOX).terminal(shell=RAW + "cat") as term,
    ):
        shown = term.read(10)
        for number in range(20):
            term.write(f"{number};")
            try:
                shown += term.read(0.01)
            except TimeoutError:
                anyio.sleep(0)
        while not shown.endswith(b";19;"):
            shown += term.read(10)
        assert shown == b"ready\n" + "".join(f"{n};" for n in range(20)).encode()
