"""Write `sandman/_sync` from `sandman/_async`, and the sync client's tests from the async one's.

    python scripts/unasync.py           writes
    python scripts/unasync.py --check   fails when something written is not what would be written

The replacements are few and plain: whoever writes the async side keeps to what they can turn over.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAIRS = (
    ("sandman/_async", "sandman/_sync"),
    ("tests/unit/client/twins_async", "tests/unit/client/twins_sync"),
    ("tests/clients/jobs_async", "tests/clients/jobs_sync"),
)
NOTE = """\
# Written by scripts/unasync.py from {source}: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""

REPLACEMENTS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^import anyio$", "from sandman._core import blocking as anyio"),
        (r"^@on_backends\n", ""),
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\b(from|import) sandman\.client\b", r"\1 sandman.sync"),
        (r"\bsandman\._async\b", "sandman._sync"),
        (r"\bsandman\.evaluation\.runner\b", "sandman.evaluation.blocking"),
        (r"\btwins_async\b", "twins_sync"),
        (r"\bjobs_async\b", "jobs_sync"),
        (
            r"\bAsync(Client|Iterator|Iterable|HTTPTransport|BaseTransport|NetworkStream)\b",
            r"\1",
        ),
        (r"\bAsyncByteStream\b", "SyncByteStream"),
        (r"\bStopAsyncIteration\b", "StopIteration"),
        (r"\basynccontextmanager\b", "contextmanager"),
        (r"\b__a(iter|next|enter|exit)__\b", r"__\1__"),
        (r"\ba(iter|next)\(", r"\1("),
        (r"\baiter_raw\b", "iter_raw"),
        (r"\bhandle_async_request\b", "handle_request"),
        (r"\baclose\b", "close"),
    )
)


def turn_over(text: str, source: str, target: str) -> str:
    """The sync text for this async text, in the repository's format."""
    lines = text.splitlines(keepends=True)
    for pattern, replacement in REPLACEMENTS:
        lines = [
            pattern.sub(replacement, line.rstrip("\n")) + "\n" if not pattern.pattern.endswith("\\n")
            else pattern.sub(replacement, line)
            for line in lines
        ]  # fmt: skip
    return _format(NOTE.format(source=source) + "".join(lines), target)


def _format(text: str, target: str) -> str:
    """Shorter lines join, and imports sort otherwise, once `await` and `Async` are gone."""
    for command in (
        ("check", "--select", "I,F401", "--fix", "--quiet"),
        ("format", "--quiet"),
    ):
        text = subprocess.run(  # noqa: S603 - ruff, with words of this file
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", target, "-"],
            input=text, capture_output=True, text=True, check=True, cwd=ROOT,
        ).stdout  # fmt: skip
    return text


def outputs() -> dict[Path, str]:
    """Every file to be written, with its text."""
    return {
        ROOT / target / path.name: turn_over(
            path.read_text(), f"{source}/{path.name}", f"{target}/{path.name}"
        )
        for source, target in PAIRS
        for path in sorted((ROOT / source).glob("*.py"))
    }


def main() -> int:
    """Write, or check; the exit code."""
    wanted = outputs()
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    stale += [
        path
        for _, target in PAIRS
        for path in (ROOT / target).glob("*.py")
        if path not in wanted
    ]  # fmt: skip
    if "--check" in sys.argv[1:]:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is stale: run python scripts/unasync.py")
        return 1 if stale else 0
    for path in stale:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
        else:
            path.unlink()
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
