"""Turns exceptions into a line on stderr and an exit code: nobody sees a traceback for a full cluster."""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

import click

from sandman.cli.group import Group
from sandman.errors import SandmanError
from sandman.sync import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

EXIT_HERE = 1
"""It could not be done on this machine; also that of click's own exceptions."""
EXIT_USAGE = 2
EXIT_TIMED_OUT = 124
EXIT_SANDMAN = 125
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE

LOOK_EVERY_S = 1.0
"""Seconds that Ctrl-C may take at most."""

ADVICE = {
    "capacity": "wait longer (--wait) or free sandboxes (sandman ls, sandman release)",
    "quota": "free sandboxes (sandman ls, sandman release) or ask for a larger quota",
    "image_not_found": "check the name given by --image",
    "image_denied": "check that your key may use this image",
    "unschedulable": "wait longer (--wait) or ask for less",
    "unauthenticated": "check SANDMAN_TOKEN or SANDMAN_TOKEN_FILE, or log in anew (sandman login)",
    "throttled": "check the tokens of what runs at your address; wait a moment",
    "not_found": "sandman ls shows the sandboxes that there are",
    "user_unsupported": "check the name given by --user",
}


class GuardedGroup(Group):
    """A group whose verbs may raise what the client raises."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb; exits by code for what is not a fault of this program."""
        _open_closed_streams()
        _take_any_text(sys.stdout)
        signal.signal(signal.SIGTERM, _terminated)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else somebody said `nohup`
            # A session that breaks off must not leave a sandbox behind for hours.
            signal.signal(signal.SIGHUP, _terminated)
        try:
            with _looking_for_signals():
                return super().invoke(ctx)
        except ConfigurationError as error:
            _fail(ctx, error, EXIT_USAGE)
        except SandmanError as error:
            _fail(ctx, error, EXIT_SANDMAN)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:
            _drop_output()
            sys.exit(EXIT_BROKEN_PIPE)
        except OSError as error:
            click.echo(f"sandman: {refusal(error)}", err=True)
            try:
                sys.stdout.flush()
            except OSError:
                _drop_output()
            sys.exit(EXIT_HERE)


def _drop_output() -> None:
    """Python would complain when it flushes at exit what nobody takes; it has been told by then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def refusal(error: OSError) -> str:
    """What this machine refused, in one line: the path, where one is known, and why."""
    why = error.strerror or str(error)
    is_path = isinstance(error.filename, str | bytes)
    return f"{os.fsdecode(error.filename)}: {why}" if is_path else why


def _open_closed_streams() -> None:
    """A standard stream that the caller closed is nothing to read from and nowhere to write to."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - for the process's life


def _take_any_text(stream: TextIO) -> None:
    """What a terminal's encoding lacks, or a name that is no text, is written as an escape, as on standard error."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors="backslashreplace")


@contextmanager
def _looking_for_signals() -> Iterator[None]:
    """A signal that comes between Python's last look and a system call that waits would be seen only when the
    call returns: for a quiet command, at the next sign of life. This ends such a call once a second; Python
    begins it again by itself."""
    handler = signal.signal(signal.SIGALRM, lambda _number, _frame: None)
    before = signal.setitimer(signal.ITIMER_REAL, LOOK_EVERY_S, LOOK_EVERY_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)
        signal.signal(signal.SIGALRM, handler)


def _terminated(number: int, frame: FrameType | None) -> NoReturn:
    """Leave as by an exception, so that `finally` releases the sandbox."""
    del frame
    sys.exit(128 + number)


def _fail(ctx: click.Context, error: SandmanError, code: int) -> NoReturn:
    told = (getattr(ctx.obj, name, "") for name in ("origin", "advice"))
    for line in explain(error, *told):
        click.echo(f"sandman: {line}", err=True)
    sys.exit(code)


def explain(error: SandmanError, origin: str = "", advice: str = "") -> Iterator[str]:
    """What happened, to whom, and what to do. `origin`: who named the token; `advice`: instead of the reason's."""
    yield f"error: {error}"
    if error.sandbox:
        yield f"sandbox: {error.sandbox}"
    if error.reason == "unauthenticated" and origin:
        # What another login would write stands behind options and environment.
        anew = ", or log in anew (sandman login)" if origin.startswith("context ") else ""
        yield f"what to do: the token came from {origin}: check it{anew}"
    elif error.facts.get("pool") == "broken":
        yield "what to do: its operator has to mend it, or take another pool (sandman pools, --pool)"
    elif advice := advice or ADVICE.get(error.reason, ""):
        yield f"what to do: {advice}"
    elif error.retryable:
        yield "what to do: this may pass, try again"
