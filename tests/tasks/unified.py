"""Patches between two trees of files: made, read and applied.

The text is what `git diff` prints and `git apply` takes. A tree is a dictionary of relative path to
bytes. Standard library only and no import of its neighbours, because this very file is also copied
into sandboxes, whose images need not have `git` or `patch`:

    python3 unified.py apply CHANGE.patch TREE
    python3 unified.py diff BEFORE.tar TREE OUT.patch [PATH_TO_LEAVE_OUT ...]
"""

from __future__ import annotations

import difflib
import io
import re
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

Tree = dict[str, bytes]

_CONTEXT = 3
_NO_NEWLINE = "\\ No newline at end of file\n"
_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class PatchError(Exception):
    """The text is no patch, or it does not fit the tree."""


class Hunk(NamedTuple):
    """Lines to find from line `start` on (1 is the first), and lines to put in their place."""

    start: int
    old: list[str]
    new: list[str]


class FileChange(NamedTuple):
    """What a patch does to one file; `kind` is changed, added or deleted."""

    path: str
    kind: str
    hunks: list[Hunk]


def lines_of(data: bytes) -> list[str]:
    """Lines with their ends, split at line feeds alone; any bytes survive the way there and back."""
    return list(io.StringIO(data.decode("utf-8", "surrogateescape"), newline="\n"))


def bytes_of(lines: list[str]) -> bytes:
    """The inverse of `lines_of`."""
    return "".join(lines).encode("utf-8", "surrogateescape")


# --- making ---------------------------------------------------------------------------------------


def diff(before: Tree, after: Tree) -> str:
    """The patch that turns one tree into the other; empty when they are equal."""
    paths = sorted(before.keys() | after.keys())
    return "".join(file_diff(path, before.get(path), after.get(path)) for path in paths)


def file_diff(path: str, before: bytes | None, after: bytes | None) -> str:
    """The part of a patch that concerns one file; None: there is no such file."""
    if before == after:
        return ""
    header = [f"diff --git a/{path} b/{path}\n"]
    if before is None:
        header.append("new file mode 100644\n")
    if after is None:
        header.append("deleted file mode 100644\n")
    body = difflib.unified_diff(
        lines_of(before or b""),
        lines_of(after or b""),
        "/dev/null" if before is None else f"a/{path}",
        "/dev/null" if after is None else f"b/{path}",
        n=_CONTEXT,
    )
    return "".join(header) + "".join(_terminated(line) for line in body)


def _terminated(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}"


# --- reading --------------------------------------------------------------------------------------


def parse(patch: str) -> list[FileChange]:
    """The changes that a patch tells of.

    Raises:
        PatchError: it is not in the form that `diff` writes.
    """
    changes: list[FileChange] = []
    lines = list(io.StringIO(patch, newline="\n"))
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("diff --git "):
            changes.append(FileChange(_path(line), "changed", []))
            at += 1
        elif not changes:
            raise PatchError(f"a patch starts with 'diff --git', not with {line!r}")
        elif line.startswith("@@ "):
            hunk, at = _hunk(lines, at)
            changes[-1].hunks.append(hunk)
        else:
            changes[-1] = _with_header(changes[-1], line)
            at += 1
    return changes


def _path(line: str) -> str:
    """The path in `diff --git a/PATH b/PATH`, whose two halves are alike here: nothing is renamed."""
    names = line[len("diff --git ") : -1]
    path = names[2 : 2 + (len(names) - 5) // 2]
    if names != f"a/{path} b/{path}" or not is_inside(path):
        raise PatchError(f"a path that cannot be patched: {line!r}")
    return path


def _with_header(change: FileChange, line: str) -> FileChange:
    if line.startswith("new file mode "):
        return change._replace(kind="added")
    if line.startswith("deleted file mode "):
        return change._replace(kind="deleted")
    if line.startswith(("--- ", "+++ ", "index ")):
        return change
    raise PatchError(f"a line that belongs to no hunk: {line!r}")


def _hunk(lines: list[str], at: int) -> tuple[Hunk, int]:
    """One hunk and the number of the line after it."""
    header = _HEADER.match(lines[at])
    if header is None:
        raise PatchError(f"not the header of a hunk: {lines[at]!r}")
    wanted_old, wanted_new = (int(header[n] or 1) for n in (2, 4))
    old: list[str] = []
    new: list[str] = []
    at += 1
    while len(old) < wanted_old or len(new) < wanted_new:
        line = lines[at] if at < len(lines) else ""
        at += 1
        text = line[1:]
        if at < len(lines) and lines[at] == _NO_NEWLINE:
            text = text[:-1]
            at += 1
        if line[:1] not in (" ", "-", "+") or not line:
            raise PatchError(f"a hunk that breaks off: {line!r}")
        if line[0] in " -":
            old.append(text)
        if line[0] in " +":
            new.append(text)
    return Hunk(int(header[1]), old, new), at


def is_inside(path: str) -> bool:
    """Whether the path stays below the directory that it is relative to."""
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts


# --- applying -------------------------------------------------------------------------------------


def apply(tree: Tree, patch: str) -> Tree:
    """The tree after the patch; it must fit line by line, nothing is searched for.

    Raises:
        PatchError: the patch does not fit; no part of it is applied then.
    """
    done = dict(tree)
    for change in parse(patch):
        if (change.path in done) != (change.kind != "added"):
            raise PatchError(f"{change.path} cannot be {change.kind} in this tree")
        data = bytes_of(
            _apply_hunks(change.path, lines_of(done.get(change.path, b"")), change.hunks)
        )
        done[change.path] = data
        if change.kind == "deleted":
            if data:
                raise PatchError(f"{change.path} would be deleted and holds more than is known")
            del done[change.path]
    return done


def _apply_hunks(path: str, lines: list[str], hunks: list[Hunk]) -> list[str]:
    done: list[str] = []
    at = 0
    for hunk in hunks:
        # Without old lines a hunk stands behind the line that it names, else at it.
        start = hunk.start - 1 if hunk.old else hunk.start
        if start < at or lines[start : start + len(hunk.old)] != hunk.old:
            raise PatchError(f"{path}: the hunk at line {hunk.start} does not fit")
        done += lines[at:start] + hunk.new
        at = start + len(hunk.old)
    return done + lines[at:]


# --- inside a sandbox -----------------------------------------------------------------------------


def read_tar(file: BinaryIO) -> Tree:
    """The regular files of a tar."""
    with tarfile.open(fileobj=file) as tar:
        opened = ((member.name, tar.extractfile(member)) for member in tar if member.isfile())
        return {name: content.read() for name, content in opened if content}


def read_tree(top: Path) -> Tree:
    """The regular files below a directory, without byte code."""
    files = (path for path in top.rglob("*") if path.is_file() and not path.is_symlink())
    return {
        path.relative_to(top).as_posix(): path.read_bytes()
        for path in files
        if "__pycache__" not in path.parts
    }


def update_tree(top: Path, before: Tree, after: Tree) -> None:
    """Write what differs between the two trees."""
    for path in before.keys() - after.keys():
        (top / path).unlink()
    for path, data in after.items():
        if before.get(path) != data:
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_bytes(data)


def without(tree: Tree, left_out: list[str]) -> Tree:
    """The tree without the files and directories named."""
    return {
        path: data
        for path, data in tree.items()
        if not any(path == name or path.startswith(f"{name}/") for name in left_out)
    }


def main(arguments: list[str]) -> None:
    """The two commands of the module's docstring."""
    match arguments:
        case ["apply", patch, top]:
            tree = read_tree(Path(top))
            text = Path(patch).read_bytes().decode("utf-8", "surrogateescape")
            update_tree(Path(top), tree, apply(tree, text))
        case ["diff", tar, top, out, *left_out]:
            before, after = read_tar(io.BytesIO(Path(tar).read_bytes())), read_tree(Path(top))
            text = diff(without(before, left_out), without(after, left_out))
            Path(out).write_bytes(text.encode("utf-8", "surrogateescape"))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
