# Written by scripts/unasync.py from sandman/_async/command.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""What a command is: program or shell string, and how it runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal, TypedDict

from sandman._sync.bodies import Data, Source
from sandman.wire import ExecSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ExecOptions(TypedDict, total=False):
    """How a command runs; every option may be left out.

    `cwd`: working directory, relative to the sandbox's. `env`: variables, merged over the sandbox's,
    or all there is with `env_mode="replace"`. `user`: name or uid. `stdin`: bytes, text, a binary
    file or an iterable of bytes; without it the command reads end of file at once. `timeout_s`: the
    whole tree is sent TERM then, KILL 5 s later, and the result says `timed_out`; without it no
    limit. `merge_stderr`: one stream in true order, all in stdout. `output_limit`: bytes that `exec`
    keeps of each stream, head and tail (10 MiB). `login`: with a shell, a login shell. `exec_id`: a
    name of your own for this command, which never runs twice under it: 1 to 64 of [A-Za-z0-9._-].
    """

    cwd: str | None
    env: Mapping[str, str]
    env_mode: Literal["merge", "replace"]
    user: str | int | None
    stdin: Data | None
    timeout_s: float | None
    merge_stderr: bool
    output_limit: int
    login: bool
    exec_id: str | None


def either(argv: Sequence[str] | None, shell: str | None) -> ExecSpec:
    """A program, or a string for the image's shell.

    Raises:
        TypeError: both, or neither.
    """
    if (argv is None) == (shell is None):
        raise TypeError("give either argv or shell")
    return ExecSpec(shell=shell) if argv is None else argv_spec(argv)


def specify(spec: ExecSpec, options: ExecOptions) -> tuple[ExecSpec, Source | None]:
    """The command with these options, its stdin apart.

    Raises:
        TypeError: an option that there is not.
    """
    if unknown := options.keys() - ExecOptions.__annotations__.keys():
        raise TypeError(f"unknown option {min(unknown)!r}: see ExecOptions")
    values = dict(options)
    stdin: Data | None = values.pop("stdin", None)  # type: ignore[assignment]
    env: Mapping[str, str] = values.pop("env", {})  # type: ignore[assignment]
    spec = spec._replace(env=tuple(env.items()), **values)  # type: ignore[arg-type]
    return spec, None if stdin is None else Source(stdin)


def argv_spec(argv: Sequence[str]) -> ExecSpec:
    """A program with its arguments.

    Raises:
        TypeError: it is one string.
    """
    if isinstance(argv, (str, bytes)):
        raise TypeError("argv is a list of strings; for a shell's command line use run()")
    return ExecSpec(argv=tuple(os.fsdecode(item) for item in argv))
