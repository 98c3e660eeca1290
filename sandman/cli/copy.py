"""`sandman cp`: a file or a directory in or out."""

from __future__ import annotations

import dataclasses
import json
import posixpath
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from sandman.cli import complete
from sandman.cli.command import uid_or_name
from sandman.errors import IsADirectoryPathError
from sandman.sync import TreeInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman.cli.session import Session
    from sandman.sync import Files

STANDARD = "-"
"""Standard input as a source, standard output as a target."""


class Copy(NamedTuple):
    """One copy: `here` is a local path or STANDARD, `there` a path in the sandbox."""

    session: Session
    files: Files
    here: str
    there: str
    user: str | int | None


@click.command()
@click.argument("source", shell_complete=complete.paths)
@click.argument("target", shell_complete=complete.paths)
@click.option("-u", "--user", metavar="USER", help="Name or uid as whom files in it are touched.")
@click.option("--json", "as_json", is_flag=True, help="What was copied, as a JSON object.")
@click.pass_obj
def cp(session: Session, source: str, target: str, user: str | None, *, as_json: bool) -> None:
    """Copy a file, or a directory with all that is in it, between here and a sandbox.

    One of SOURCE and TARGET is SANDBOX:PATH; the other is a path here, or - for standard input or
    output, which take one file. A target that is a directory here, or ends in / there, takes the copy
    under its own name.
    """
    there_from, there_to = _remote(source), _remote(target)
    if (there_from is None) == (there_to is None):
        raise click.UsageError(
            "exactly one of SOURCE and TARGET must be SANDBOX:PATH (a file here with a colon in its "
            "name is ./NAME)"
        )
    sandbox, there = there_from or there_to or ("", "")
    if not there:
        raise click.UsageError(f"{sandbox}: needs a path after the colon")
    here = target if there_to is None else source
    if there_to is not None and here == STANDARD and there.endswith("/"):
        raise click.UsageError(
            "standard input has no name of its own: name the file in the sandbox"
        )
    if as_json and target == STANDARD:
        raise click.UsageError("--json goes not with standard output as the target")
    with session.client() as client:
        files = client.attach(sandbox).files
        copy = Copy(session, files, here, there, uid_or_name(user))
        stream = "standard output" if there_to is None else "standard input"
        with _naming(stream if here == STANDARD else here):
            made = (_download if there_to is None else _upload)(copy)
    if as_json:
        click.echo(json.dumps({"source": source, "target": target, **dataclasses.asdict(made)}))


@contextmanager
def _naming(given: str) -> Iterator[None]:
    """What this machine refuses is told with the path that was given, and what in it was refused."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        found = error.filename if isinstance(error.filename, str) else ""
        is_below = Path(given) in (Path(found), *Path(found).parents)
        name = found if found and is_below else f"{given}: {found}" if found else given
        raise OSError(error.errno, error.strerror or str(error), name) from error


def _upload(copy: Copy) -> TreeInfo:
    if copy.here == STANDARD:
        return _one(copy.files.write(copy.there, sys.stdin.buffer, user=copy.user).size)
    here, there = Path(copy.here), copy.there
    if there.endswith("/"):
        there += here.resolve().name
    if here.is_dir():
        return _told(copy.session, copy.files.upload_dir(here, there, user=copy.user))
    return _one(copy.files.upload(here, there, user=copy.user).size)


def _download(copy: Copy) -> TreeInfo:
    if copy.here == STANDARD:
        return _one(_print(copy))
    here = Path(copy.here)
    if here.is_dir():
        here /= posixpath.basename(copy.there.rstrip("/"))
    try:
        copy.files.download(copy.there, here, user=copy.user)
    except IsADirectoryPathError:
        return _told(copy.session, copy.files.download_dir(copy.there, here, user=copy.user))
    return _one(here.stat().st_size)


def _print(copy: Copy) -> int:
    """Write the file to standard output; its size."""
    try:
        with copy.files.stream(copy.there, user=copy.user) as chunks:
            size = sum(sys.stdout.buffer.write(chunk) for chunk in chunks)
    except IsADirectoryPathError:
        copy.session.advice = "- takes one file: give a directory here for a tree"
        raise
    sys.stdout.buffer.flush()
    return size


def _one(size: int) -> TreeInfo:
    return TreeInfo(1, size)


def _told(session: Session, info: TreeInfo) -> TreeInfo:
    for name, why in info.skipped:
        session.say(f"skipped {name!r}: {why}")
    if info.skipped_count > len(info.skipped):
        session.say(f"skipped {info.skipped_count} in all")
    session.say(f"copied {info.members} files and directories, {info.bytes} bytes")
    return info


def _remote(text: str) -> tuple[str, str] | None:
    """Sandbox and path, when the text is SANDBOX:PATH; ./a:b is a file here."""
    sandbox, colon, path = text.partition(":")
    return (sandbox, path) if colon and sandbox and "/" not in sandbox else None
