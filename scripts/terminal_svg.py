"""A picture of a program that draws a terminal's screen, as an SVG of plain text: nothing in it is fetched from elsewhere.

    python -m scripts.terminal_svg --seconds 5 --output docs/images/top.svg -- sandman top
    python -m scripts.terminal_svg --type id --type exit --output docs/images/shell.svg -- sandman shell BOX

The program runs in a terminal of its own; what is drawn last before it is interrupted is the picture. Where lines are
typed, it is all that was shown until the program ended.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from html import escape
from pathlib import Path

HOME = "\x1b[H"
QUIET_S = 1.5
"""Without output before the next line is typed: a person reads."""
WIDTH, HEIGHT, MARGIN = 8.4, 18, 14
"""Pixels of a character of 14 px, of a line, and around all."""
STYLES = {
    "1": "font-weight:bold", "2": "opacity:.6", "31": "fill:#ff7b72", "32": "fill:#7ee787", "33": "fill:#e3b341",
}  # fmt: skip
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_OTHER = re.compile(r"\x1b\[[?0-9;]*[A-Za-ln-z]")


def drawn(command: list[str], columns: int, rows: int, seconds: float) -> list[str]:
    """The last whole screen that the program drew, by lines."""
    screens = shown(command, columns, rows, seconds, []).split(HOME)
    if len(screens) < 3:
        raise SystemExit(f"nothing was drawn: {screens!r}")
    return _lines(screens[-2])


def shown(command: list[str], columns: int, rows: int, seconds: float, typed: list[str]) -> str:
    """All that it wrote, within so many seconds. A line is typed once nothing was shown for a while."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(  # noqa: S603 - what whoever runs this named
        ["/usr/bin/env", "--default-signal=INT", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen, end = b"", time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if not select.select([ours], [], [], min(left, QUIET_S) if typed else left)[0]:
            if typed and seen:
                os.write(ours, f"{typed.pop(0)}\r".encode())
        else:
            try:
                seen += os.read(ours, 65536)
            except OSError:
                break
    process.send_signal(signal.SIGINT)
    process.wait()
    return seen.decode(errors="replace")


def _lines(text: str) -> list[str]:
    # What goes to a line's beginning, to write over it, a picture of lines cannot show.
    return _OTHER.sub("", text).replace("\r", "").rstrip().splitlines()


def picture(lines: list[str], columns: int) -> str:
    """The SVG."""
    width, height = columns * WIDTH + 2 * MARGIN, len(lines) * HEIGHT + 2 * MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}" font-family="monospace" font-size="14" fill="#e6edf3">'
    )
    parts = [head, '<rect width="100%" height="100%" rx="8" fill="#0d1117"/>']
    for number, line in enumerate(lines):
        parts += _line(line, MARGIN + (number + 0.8) * HEIGHT)
    return "\n".join([*parts, "</svg>", ""])


def _line(line: str, y: float) -> list[str]:
    found, style, at, column = [], "", 0, 0
    for match in [*_SGR.finditer(line), None]:
        text = line[at : match.start() if match else len(line)]
        if text.strip():
            x = MARGIN + column * WIDTH
            length = f'textLength="{len(text) * WIDTH:.1f}" xml:space="preserve"'
            found.append(
                f'<text x="{x:.1f}" y="{y:.1f}" {length} style="{style}">{escape(text)}</text>'
            )
        column += len(text)
        if match:
            at = match.end()
            codes = match[1].split(";")
            style = (
                "" if codes in ([""], ["0"]) else f"{style};{STYLES.get(codes[0], '')}".strip(";")
            )
    return found


def main() -> None:
    """Run, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--columns", type=int, default=150)
    parser.add_argument("--rows", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--type", action="append", default=[], help="a line, with Enter; may be repeated"
    )
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    size = (given.columns, given.rows, given.seconds)
    if given.type:
        lines = _lines(shown(given.command, *size, given.type))
    else:
        lines = drawn(given.command, *size)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(picture(lines, given.columns))


if __name__ == "__main__":
    main()
