"""Running a command for `run` and `exec`: its options, its bytes, its exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandman.cli.guard import EXIT_TIMED_OUT
from sandman.sync import ExecOptions, Stdout

if TYPE_CHECKING:
    from sandman.cli.session import Session
    from sandman.sync import ExecResult, Sandbox

Decorated = TypeVar("Decorated", bound=Callable[..., object])

# Everything after the first word belongs to the command, dashes or not.
VERB_SETTINGS = {"ignore_unknown_options": False, "allow_interspersed_args": False}


def _variables(
    context: click.Context, option: click.Parameter, values: Iterable[str]
) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise click.BadParameter(f"{name!r} is not of the form K=V", context, option)
    return {name: value for name, _, value in pairs}


_PLACE: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "-e", "--env", multiple=True, metavar="K=V", callback=_variables,
        help="Variable; may be repeated.",
    ),
    click.option("-w", "--workdir", metavar="DIR", help="Working directory."),
    click.option("-u", "--user", metavar="USER", help="Name or uid to run as."),
    click.option(
        "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
        help="End the command after that time, exit code 124.",
    ),
)  # fmt: skip
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    *_PLACE,
    click.option(
        "-i", "--stdin", is_flag=True,
        help="Send standard input. The command's output comes when it has been read to its end.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON instead."),
    click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED),
)  # fmt: skip


def command_options(function: Decorated) -> Decorated:
    """Give a verb the options that `run` and `exec` share."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def place_options(function: Decorated) -> Decorated:
    """Give a verb the options that say where and as whom: also of what runs in a terminal."""
    for option in reversed(_PLACE):
        function = option(function)
    return function


def uid_or_name(user: str | None) -> str | int | None:
    """A user option: digits are a uid."""
    return int(user) if user is not None and user.isascii() and user.isdigit() else user


def exec_options(given: dict[str, Any]) -> ExecOptions:
    """The client's options out of the command line's; those of a sandbox are not among them."""
    options = ExecOptions(timeout_s=given["timeout"])
    if given["stdin"]:
        options["stdin"] = sys.stdin.buffer
    return options


def carry_out(
    session: Session,
    box: Sandbox,
    command: tuple[str, ...],
    options: ExecOptions,
    *,
    as_json: bool,
    hint: str = "",
) -> int:
    """Run the command, pass its output through byte by byte; the exit code for this process. `hint` is for
    whoever asks for a program that the sandbox lacks."""
    if as_json:
        result = box.exec(command, **options)
        click.echo(json.dumps({"sandbox": box.id, **result.to_json()}))
    else:
        result = _pass_through(box, command, options)
    code = exit_code(session, command[0], result)
    if hint and result.start_error == "not_found":
        session.say(hint)
    return code


def _pass_through(box: Sandbox, command: tuple[str, ...], options: ExecOptions) -> ExecResult:
    stdout, stderr = sys.stdout.buffer, sys.stderr.buffer
    with box.stream(command, **options) as stream:
        for event in stream:
            target = stdout if isinstance(event, Stdout) else stderr
            target.write(event.data)
            target.flush()
    return stream.result


def exit_code(session: Session, program: str, result: ExecResult) -> int:
    """The exit code for a result; says on stderr what the code does not."""
    if result.timed_out:
        session.say(f"timed out after {result.wall_s:.1f} s")
        return EXIT_TIMED_OUT
    if result.start_error is not None:
        click.echo(f"sandman: {program}: {result.start_error.replace('_', ' ')}", err=True)
    if result.oom_killed:
        click.echo("sandman: killed for want of memory", err=True)
    return result.exit_code
