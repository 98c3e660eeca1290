# Written by scripts/unasync.py from sandman/_async/sandbox.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""One sandbox: commands, files, release."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack
from urllib.parse import quote

from sandman import names
from sandman._core import faults
from sandman._core.config import EXEC_SILENCE_S, RELEASE_LIMIT_S
from sandman._core.faults import CommandError
from sandman._core.output import HeadTail
from sandman._core.retry import Repeat
from sandman._core.values import SandboxInfo, Stdout
from sandman._sync.bodies import Body, Data, FramedBody, Source
from sandman._sync.files import Files
from sandman._sync.stream import ExecStream
from sandman._sync.transport import Call, Transport
from sandman.wire import DEFAULT_OUTPUT_LIMIT, ExecResult, ExecSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

INLINE_STDIN_BYTES = 256 * 1024
"""A stdin up to this travels in the request's JSON; a longer or unknown one is streamed."""


class ExecOptions(TypedDict, total=False):
    """How a command runs; every option may be left out.

    `cwd`: working directory, relative to the sandbox's. `env`: variables, merged over the sandbox's,
    or all there is with `env_mode="replace"`. `user`: name or uid. `stdin`: bytes, text, a binary
    file or an iterable of bytes; without it the command reads end of file at once. `timeout_s`: the
    whole tree is sent TERM then, KILL 5 s later, and the result says `timed_out`; without it no
    limit. `merge_stderr`: one stream in true order, all in stdout. `output_limit`: bytes that `exec`
    keeps of each stream, head and tail (10 MiB). `login`: with a shell, a login shell. `exec_id`: a
    name of your own for this command.
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


class Sandbox:
    """A sandbox that was allocated. Made by `Client.sandbox`, `create`, `get` and `attach`."""

    def __init__(self, transport: Transport, info: SandboxInfo) -> None:
        self._transport = transport
        self._path = f"/v1/sandboxes/{quote(info.id, safe='')}"
        self.id = info.id
        self.info = info
        """What the gateway said of it when it was last asked."""
        self.files = Files(transport, info.id, self._path)

    def __repr__(self) -> str:
        return f"<Sandbox {self.id} {self.info.state or 'state unknown'} image={self.info.image}>"

    def exec(
        self, argv: Sequence[str], *, check: bool = False, **options: Unpack[ExecOptions]
    ) -> ExecResult:
        """Run a program to its end, arguments verbatim, no shell between.

        A non-zero exit, a signal, a timeout or a missing program is a *result*. Being cancelled
        kills the command. It is never run twice: see OutcomeUnknownError.

        Args:
            argv: program and arguments.
            check: raise CommandError unless the result is `ok`.
            **options: see ExecOptions.

        Raises:
            CommandError: with `check` alone.
            OutcomeUnknownError: the connection broke; the command may have run.
            SandmanError: the sandbox or the way to it failed.
        """
        return self._exec(_argv(argv), check=check, options=options)

    def run(
        self, command: str, *, check: bool = False, **options: Unpack[ExecOptions]
    ) -> ExecResult:
        """Run a string by the image's shell (bash, else sh). Otherwise like `exec`."""
        return self._exec(ExecSpec(shell=command), check=check, options=options)

    @contextmanager
    def stream(
        self,
        argv: Sequence[str] | None = None,
        *,
        shell: str | None = None,
        **options: Unpack[ExecOptions],
    ) -> Iterator[ExecStream]:
        """Run a program (`argv`) or a string (`shell`) and read its output as it comes.

        Leaving the block before the end kills the command. `output_limit` does not matter here.

        Raises:
            SandmanError: as `exec`, on entering or while iterating.
        """
        if (argv is None) == (shell is None):
            raise TypeError("give either argv or shell")
        spec = ExecSpec(shell=shell) if argv is None else _argv(argv)
        with self._open(spec, options) as stream:
            yield stream

    def release(self) -> None:
        """Let the sandbox go, with all that is in it. May be repeated: gone is gone.

        Raises:
            SandmanError: the gateway could not be asked; the lease ends the sandbox in time.
        """
        call = Call("DELETE", self._path, sandbox=self.id, patience_s=RELEASE_LIMIT_S)
        self._transport.json(call)

    def refresh(self) -> SandboxInfo:
        """Ask the gateway for the present state; kept in `info`.

        Raises:
            NotFoundError: no such sandbox, or not yours.
        """
        answer = self._transport.json(Call("GET", self._path, sandbox=self.id))
        self.info = parse_info(answer)
        return self.info

    def _exec(self, spec: ExecSpec, *, check: bool, options: ExecOptions) -> ExecResult:
        limit = options.get("output_limit", DEFAULT_OUTPUT_LIMIT)
        stdout, stderr = HeadTail(limit), HeadTail(limit)
        with self._open(spec, options) as stream:
            for event in stream:
                (stdout if isinstance(event, Stdout) else stderr).add(event.data)
        result = stream.result._replace(
            stdout=stdout.value(),
            stderr=stderr.value(),
            stdout_truncated=stream.result.stdout_truncated or stdout.truncated,
            stderr_truncated=stream.result.stderr_truncated or stderr.truncated,
        )
        if check and not result.ok:
            raise CommandError.of(spec.shell or " ".join(spec.argv or ()), result, self.id)
        return result

    @contextmanager
    def _open(self, spec: ExecSpec, options: ExecOptions) -> Iterator[ExecStream]:
        with self._transport.open(self._call(spec, options)) as answer:
            if answer.response.headers.get("content-type") != names.MEDIA_FRAMES:
                raise faults.unknown_outcome(faults.not_ours(answer.response).detail, self.id)
            yield ExecStream(answer, self.id)

    def _call(self, spec: ExecSpec, options: ExecOptions) -> Call:
        values = dict(options)
        stdin: Data | None = values.pop("stdin", None)  # type: ignore[assignment]
        env: Mapping[str, str] = values.pop("env", {})  # type: ignore[assignment]
        spec = ExecSpec(spec.argv, spec.shell, env=tuple(env.items()), **values)  # type: ignore[arg-type]
        source = None if stdin is None else Source(stdin)
        streamed = source is not None and (source.size is None or source.size > INLINE_STDIN_BYTES)
        if source is not None and not streamed:
            spec = spec._replace(stdin=source.whole)
        body = json.dumps(spec.to_json())
        return Call(
            "POST",
            f"{self._path}/exec",
            headers={
                "accept": names.MEDIA_FRAMES,
                "content-type": names.MEDIA_FRAMES if streamed else names.MEDIA_JSON,
            },
            body=FramedBody(body.encode(), source) if source and streamed else Body(Source(body)),
            repeat=Repeat.UNSENT,
            sandbox=self.id,
            silence_s=EXEC_SILENCE_S,
        )


def _argv(argv: Sequence[str]) -> ExecSpec:
    if isinstance(argv, (str, bytes)):
        raise TypeError("argv is a list of strings; for a shell's command line use run()")
    return ExecSpec(argv=tuple(os.fsdecode(item) for item in argv))


def parse_info(answer: object) -> SandboxInfo:
    """A sandbox out of an answer.

    Raises:
        InternalError: it is none.
    """
    if not isinstance(answer, dict) or "id" not in answer:
        raise faults.not_understood("a sandbox", answer)
    return SandboxInfo.from_json(answer)
