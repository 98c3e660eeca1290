"""A document's commands as one script of bash, and what it prints beside what the document shows."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.examples import reader as readers
from tests.examples.blocks import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.examples.blocks import Block
    from tests.examples.reader import Reader

CHECKOUT = ("Makefile", "manifests", ".venv", ".venv-load")
"""What commands use of the checkout that they are typed in, beside locks and packages."""
LOCKS = ("pyproject.toml", "requirements*.lock")
"""What environments are made of."""
FUNCTIONS = f"""
set -m  # so that each has its own group of processes, and Ctrl-C does not go to all
servers=() codes=()
serve() {{  # COMMAND SAYS CODE
    local said="said-${{#servers[@]}}"
    bash -euo pipefail -c "$1" >"$said" 2>&1 &
    servers+=("$!") codes+=("$3")
    until grep -q -e "$2" "$said"; do
        kill -0 "${{servers[-1]}}" || {{ cat "$said"; return 1; }}
        sleep 0.05
    done
}}
finish() {{
    local code=$? at ended
    trap - EXIT
    set +e
    for ((at = ${{#servers[@]}} - 1; at >= 0; at--)); do
        kill -INT -- "-${{servers[at]}}"
        wait "${{servers[at]}}"
        ended=$?
        cat "said-$at"
        ((ended == codes[at])) || {{ echo "server $at ended with $ended"; code=1; }}
    done
    exit "$code"
}}
trap finish EXIT
at_a_terminal() {{ "{sys.executable}" "{ROOT}/tests/examples/terminal.py" "$1" "$2" bash -c "$3"; }}
kept_sandbox() {{  # its id; a sandbox with the image that is had by naming none
    sandman --quiet run --keep --run kept -- true
    sandman ls --run kept --json | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["id"])'
}}
"""


def of(file: str, commands: Iterable[str], one: Reader | None = None) -> str:
    """What a reader of this file has typed in the end."""
    one = one or readers.READERS.get(file, readers.Reader())
    typed = (_lines(command, one) for command in commands)
    return "\n".join([FUNCTIONS, one.has, *typed, one.sees])


def _lines(command: str, one: Reader) -> str:
    text = one.put(command)
    for special in (*readers.SERVERS, *readers.ASKING):
        if re.match(special.begins, command):
            return special.lines(text)
    for begins, kept in one.keeps.items():
        if command.startswith(begins):
            return f"{text} | tee {kept}"
    return text


def checkout(place: Path) -> None:
    """Make the directory look like one whose environments have been made, as `make test` has: none is made anew by a test."""
    for name in CHECKOUT:
        (place / name).symlink_to(ROOT / name)
    for path in (found for pattern in LOCKS for found in ROOT.glob(pattern)):
        shutil.copy(path, place)
        os.utime(place / path.name, (0, 0))


def run(script: str, place: Path, own: Mapping[str, str], seconds: float) -> str:
    """Run it in a checkout; what all of its commands have printed, with `~` for the home.

    Raises:
        AssertionError: one has failed.
    """
    home = place / "home"
    home.mkdir()
    checkout(place)
    path = os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.environ["PATH"])])
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "MAKE"))}
    # Who has no cluster is not to find the one that other tests have.
    nowhere = {"SANDMAN_CLUSTER_DIR": str(place / "no-cluster")}
    environ = {**kept, **nowhere, "HOME": str(home), **own, "PATH": path, "PYTHONPATH": str(ROOT)}
    said = place / "printed"
    with said.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script], env=environ, cwd=place,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(seconds)
        finally:
            _end(process.pid)
    text = said.read_text(errors="replace").replace("\r\n", "\n").replace(str(home), "~")
    servers = [one.read_text(errors="replace")[-2000:] for one in sorted(place.glob("said-*"))]
    ended = f"exit code {code}" if code is not None else f"not over after {seconds:g} s"
    assert code == 0, "\n".join([ended, text[-6000:], *servers])
    return text


def _end(session: int) -> None:
    """What is left of it when it took too long."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(place.name)) == session:
                os.kill(int(place.name), signal.SIGKILL)


# --- what a document shows ----------------------------------------------------------------------


def shown(blocks: Iterable[Block], own: Mapping[str, str]) -> list[str]:
    """Lines that commands print, by their documents, with what is the reader's own."""
    lines: list[str] = []
    for block in blocks:
        if block.language == "console":
            text = readers.READERS.get(block.file, readers.Reader()).put(block.text)
            text = re.sub(r"\$(OWN_\w+)", lambda found: own[found[1]], text)
            lines += [one for one in text.splitlines() if not one.startswith("$ ")]
    return [one for one in lines if one.strip() not in {"", "…"}]


_VARIES = re.compile(r"([0-9a-f]*[0-9][0-9a-f.]*|\bmet   )")
"""Numbers, names that are drawn, and what a load test says of how fast a machine is."""


def missing(printed: str, lines: Iterable[str]) -> list[str]:
    """Those that were not printed, in this order, or look otherwise."""
    rest, lost = iter(printed.splitlines()), []
    for line in lines:
        shape = re.compile("".join(_shapes(line)))
        if not any(shape.fullmatch(one) for one in rest):
            lost.append(line)
    return lost


def _shapes(line: str) -> Iterable[str]:
    for at, part in enumerate(_VARIES.split(line)):
        fixed = at % 2 == 0
        yield re.escape(part) if fixed else "(met   |missed)" if "met" in part else "[0-9a-f.]+"
