"""The lines that a session's shell is given, and what it says back. Pure.

The shell is interactive: an error, a syntax error or Ctrl-C bring it back to its prompt, where a
script's shell would end. Its stdin is a socket to the daemon and not the terminal, so nothing that a
command reads can be meant for the shell. Each command runs within `eval`, which cannot leave a quote
or a here-document open, and with the terminal as stdout and stderr; what the shell itself says,
prompts and words on jobs, goes elsewhere. On the socket it reports with a token of that command:

- `begin` once it has read the command: only then is the next line sent, since shells read ahead, and
  forget what they have read when they are interrupted;
- `end` and the exit code, when the command came to its end;
- `back` and the exit code, from the next line: the shell is at its prompt again.

A command may close all descriptors, also those in which the shell keeps its own meanwhile. Then it can read no
further line: it says `lost` where it still can, on the terminal, and goes.
"""

# ruff: noqa: PTH119
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import os
from typing import NamedTuple

BEGIN, END, BACK, LOST = "begin", "end", "back", "lost"
SHELL_VARIABLES = (("TERM", "dumb"), ("PS1", ""), ("PS2", ""))
NO_PAGER = (("PAGER", "cat"), ("GIT_PAGER", "cat"), ("MANPAGER", "cat"))
"""A pager waits for a person's keys; a caller may set others."""
_LINE_BYTES = 64 * 1024
"""Of a line that does not end. A command can write to the shell's socket, too; ours are of some 30 bytes."""
_STATUS_DIGITS = 3
"""An exit code has no more."""

_UNSEEN = ">/dev/null 2>&1"
"""Of all that is ours and not the command's: a trap or a trace would tell of it."""
CUT_OFF = 129
"""The exit code of a shell that was cut off: as of a hang-up, by which a shell loses its terminal."""
_GO = f"\\command exit {CUT_OFF};"
"""Said twice: bash stays the first time if jobs are suspended."""

_PREPARE = (
    "PS1= PS2=; "
    'if [ -n "$BASH_VERSION" ]; then set +H +o history; '
    "unset HISTFILE PROMPT_COMMAND PS0 MAILCHECK TMOUT; fi"
)
_RC = (
    "PS1='$ '; "  # some files do nothing where it is empty
    "[ -r /etc/bash.bashrc ] && . /etc/bash.bashrc; "
    "[ -r ~/.bashrc ] && . ~/.bashrc; "
)


class Report(NamedTuple):
    """What the shell says: about which command, and its exit code."""

    token: str
    word: str
    status: int = 0


def is_bash(path: bytes) -> bool:
    """Whether the program of that path is bash, by its own name."""
    return os.path.basename(os.path.realpath(path)) == b"bash"


def launch(path: bytes, terminal: str) -> tuple[bytes, ...]:
    """The arguments that start the shell as it shall be.

    The first shell opens the terminal, and with it becomes its controlling process, then is
    replaced: to start a program like that would take a fork, which costs more the larger we are.
    busybox takes the end of a background job for the end of its stdin, so all but bash, which knows no
    other way, read their lines from a pipe as a script. It is their stdout until they have opened it.
    """
    bare = (b"--norc",) if is_bash(path) else ()
    options = (b"--norc", b"--noediting", b"-i") if is_bash(path) else (b"-i", b"/proc/self/fd/1")
    applet = (b"sh",) if os.path.basename(path) == b"busybox" else ()
    script = f': <{terminal}; exec "$0" "$@"'.encode()
    return (path, *applet, *bare, b"-c", script, path, *applet, *options)


FIRST_LINE = b"exec >&2\n"
"""For shells that read from a pipe."""


def startup(*, rc: bool) -> bytes:
    """The command that makes the shell ready."""
    bash = f'if [ -n "$BASH_VERSION" ]; then {_RC} fi; ' if rc else ""
    return f"{bash}{{ {_PREPARE}; }} 2>/dev/null".encode()


def command(token: str, text: bytes, status: int, terminal: str, *, typed: bool) -> bytes:
    """The line with a command.

    Args:
        token: names it.
        text: the command.
        status: what it finds in `$?`.
        terminal: path of the terminal.
        typed: its stdin is the terminal; otherwise empty.
    """
    quoted = b"'" + text.replace(b"'", b"'\\''") + b"'"
    before = f"(exit {status}) || " if status else ""
    stdin = terminal if typed else "/dev/null"
    run = b"{ %b\\command eval %b <%b >%b 2>&1; } %b" % (
        before.encode(),
        quoted,
        stdin.encode(),
        terminal.encode(),
        _UNSEEN.encode(),
    )
    lost = f"{{ \\command echo {token} {LOST} >{terminal}; {_GO} {_GO} }}"
    end = f"{{ \\command echo {token} {END} $? >&0 || {lost}; PS1= PS2=; }} {_UNSEEN}"
    begin = f"{{ \\command echo {token} {BEGIN} >&0; }} {_UNSEEN}"
    return b"%b; %b; %b\n" % (begin.encode(), run, end.encode())


def lost(token: str) -> bytes:
    """What the shell writes behind a command's output when it can say nothing on its socket any more."""
    return f"{token} {LOST}\n".encode()


def back(token: str) -> bytes:
    """The line after it."""
    # After an open quote within `eval` bash takes the next word for none of its own, were it `{`.
    return f"\n{{ \\command echo {token} {BACK} $? >&0; }} {_UNSEEN}\n".encode()


def reports(buffer: bytearray) -> list[Report]:
    """Take the whole lines out of the buffer; what is none of ours is passed over."""
    found = []
    while (end := buffer.find(b"\n")) >= 0:
        words = bytes(buffer[:end]).decode("latin-1").split()
        del buffer[: end + 1]
        match words:
            case [token, word] if word == BEGIN:
                found.append(Report(token, word))
            case [token, word, status] if word in {END, BACK} and _is_status(status):
                found.append(Report(token, word, int(status)))
    if len(buffer) > _LINE_BYTES:
        buffer.clear()
    return found


def _is_status(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= _STATUS_DIGITS
