"""A picture of a program that draws a terminal's screen, as an SVG of plain text: nothing in it is fetched from elsewhere.

    python -m scripts.terminal_svg --seconds 5 --output docs/images/top.svg -- sandman top

The program runs in a terminal of its own; what is drawn last before it is interrupted is the picture.
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
WIDTH, HEIGHT, MARGIN = 8.4, 18, 14
"""Pixels of a character of 14 px, of a line, and around all."""
STYLES = {
    "1": "font-weight:bold", "2": "opacity:.6", "31": "fill:#ff7b72", "32": "fill:#7ee787", "33": "fill:#e3b341",
}  # fmt: skip
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_OTHER = re.compile(r"\x1b\[[?0-9;]*[A-Za-ln-z]")


def drawn(command: list[str], columns: int, rows: int, seconds: float) -> list[str]:
    """The last whole screen that the program drew, by lines."""
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
        if select.select([ours], [], [], left)[0]:
            try:
                seen += os.read(ours, 65536)
            except OSError:
                break
    process.send_signal(signal.SIGINT)
    process.wait()
    screens = seen.decode(errors="replace").split(HOME)
    if len(screens) < 3:
        raise SystemExit(f"nothing was drawn: {seen!r}")
    return _OTHER.sub("", screens[-2]).replace("\r\n", "\n").rstrip().splitlines()


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
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    lines = drawn(given.command, given.columns, given.rows, given.seconds)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(picture(lines, given.columns))


if __name__ == "__main__":
    main()
