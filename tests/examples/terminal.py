"""Runs a command at a terminal, and types an answer where it asks: `terminal.py PROMPT ANSWER COMMAND…`.

Ends as the command does; with 1 where nobody has asked.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import sys

PIECE = 65536
"""Bytes read at once."""


def main(prompt: str, answer: str, *command: str) -> int:
    """The program; `prompt` is a pattern."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    seen, is_asked = "", False
    while data := _read(terminal):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        seen += data.decode(errors="replace")
        if not is_asked and re.search(prompt, seen):
            is_asked = True
            os.write(terminal, f"{answer}\n".encode())
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) or int(not is_asked)


def _read(terminal: int) -> bytes:
    """Nothing at its end, which Linux tells as an error."""
    with contextlib.suppress(OSError):
        return os.read(terminal, PIECE)
    return b""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
