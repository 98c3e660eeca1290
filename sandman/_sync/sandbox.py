# Written by scripts/unasync.py from sandman/_async/sandbox.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""One sandbox: commands, files, release."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

import httpx

from sandman import names
from sandman._core import blocking as anyio
from sandman._core import faults
from sandman._core.config import EXEC_SILENCE_S, RELEASE_LIMIT_S
from sandman._core.faults import CommandError
from sandman._core.output import HeadTail
from sandman._core.retry import Repeat
from sandman._core.values import NetworkInfo, SandboxInfo, Stdout, parse_info
from sandman._sync.bodies import Body, FramedBody, Source
from sandman._sync.certificate import certify
from sandman._sync.command import ExecOptions, argv_spec, either, specify
from sandman._sync.files import Files
from sandman._sync.follow import Follow
from sandman._sync.network import NETWORK_WAIT_S, change_network
from sandman._sync.ports import PortTransport, port_path
from sandman._sync.process import KILL_LIMIT_S, Process, kill_quietly, parse_process
from sandman._sync.session import Session, SessionOptions, list_sessions, open_session
from sandman._sync.stream import ExecStream
from sandman._sync.terminal import TERMINAL_GRACE_S, Terminal
from sandman._sync.transport import Call, Transport
from sandman.errors import SandmanError
from sandman.handles import ATTACHED_GRACE_S, STREAMS
from sandman.sessions import DEFAULT_NAME
from sandman.terminal import TerminalSpec
from sandman.wire import DEFAULT_OUTPUT_LIMIT, ExecResult, ExecSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sandman.certificates import Certificate

INLINE_STDIN_BYTES = 256 * 1024
"""A stdin up to this travels in the request's JSON; a longer or unknown one is streamed."""
OWN_SHELL = 'exec "$0"'
"""For the image's shell: itself. In a terminal it is then one that a person can use."""


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
        kills the command. It is never run twice: when the connection breaks, this comes back to the
        same command, which the sandbox keeps alive for ATTACHED_GRACE_S meanwhile.

        Args:
            argv: program and arguments.
            check: raise CommandError unless the result is `ok`.
            **options: see ExecOptions.

        Raises:
            CommandError: with `check` alone.
            OutcomeUnknownError: the connection broke for too long; the command may have run.
            SandmanError: the sandbox or the way to it failed.
        """
        return self._exec(argv_spec(argv), check=check, options=options)

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
        call = self._call(*specify(either(argv, shell), options))
        with self._transport.open(call) as answer:
            yield ExecStream.of(answer, self.id)

    def start(
        self,
        argv: Sequence[str] | None = None,
        *,
        shell: str | None = None,
        detached: bool = True,
        stdin_open: bool = False,
        attached_grace_s: float | None = None,
        **options: Unpack[ExecOptions],
    ) -> Process:
        """Start a program (`argv`) or a string (`shell`) and come back to it later.

        Args:
            argv: program and arguments.
            shell: for the image's shell.
            detached: it runs on whoever reads it, or nobody. Otherwise a reader slows it down and
                loses nothing, and it is ended when nobody has read for `attached_grace_s`.
            stdin_open: `Process.write` may follow; else the command reads `stdin`, then end of file.
            attached_grace_s: seconds, 300 at most; None: ATTACHED_GRACE_S.
            **options: see ExecOptions. A `stdin` must be bytes or text here.

        Raises:
            SandmanError: it did not start. A missing program is a result.
        """
        spec = either(argv, shell)._replace(detached=detached, stdin_open=stdin_open)
        spec = spec._replace(attached_grace_s=attached_grace_s)
        spec, source = specify(spec, options)
        if source is not None:
            if source.whole is None:
                raise TypeError("start() takes bytes or text as stdin: write() the rest")
            spec = spec._replace(stdin=source.whole)
        spec = spec._replace(exec_id=spec.exec_id or uuid.uuid4().hex)
        call = Call.with_json("POST", f"{self._path}/processes", spec.to_json())
        call.sandbox = self.id
        info = parse_process(self._transport.json(call))
        return Process(self._transport, self.id, self._path, info.exec_id, info)

    def open_terminal(
        self,
        argv: Sequence[str] | None = None,
        *,
        shell: str | None = None,
        size: TerminalSpec | None = None,
        detached: bool = False,
        **options: Unpack[ExecOptions],
    ) -> Terminal:
        """Start a program (`argv`), a string (`shell`) or, without either, the image's shell in a terminal.

        Args:
            argv: program and arguments.
            shell: for the image's shell.
            size: rows, columns and TERM; None: 24, 80 and `xterm-256color`.
            detached: it runs on whoever looks at it, or nobody. Otherwise a reader slows it down and
                loses nothing, and it is ended when nobody has looked for TERMINAL_GRACE_S.
            **options: see ExecOptions. There is no `stdin`: write.

        Raises:
            SandmanError: it did not start. A missing program is a result.
        """
        spec = ExecSpec(shell=OWN_SHELL) if argv is shell is None else either(argv, shell)
        spec, source = specify(spec, options)
        if source is not None:
            raise TypeError("a terminal takes no stdin: write() what is typed")
        call = Call.with_json(
            "POST",
            f"{self._path}/processes",
            spec._replace(
                exec_id=spec.exec_id or uuid.uuid4().hex,
                terminal=size or TerminalSpec(),
                detached=detached,
                attached_grace_s=None if detached else TERMINAL_GRACE_S,
            ).to_json(),
        )
        call.sandbox = self.id
        info = parse_process(self._transport.json(call))
        process = Process(self._transport, self.id, self._path, info.exec_id, info)
        return Terminal(self._transport, self.id, process)

    @contextmanager
    def terminal(
        self,
        argv: Sequence[str] | None = None,
        *,
        shell: str | None = None,
        size: TerminalSpec | None = None,
        **options: Unpack[ExecOptions],
    ) -> Iterator[Terminal]:
        """The same for a block; what runs in it is ended when the block is left before its end."""
        terminal = self.open_terminal(argv, shell=shell, size=size, **options)
        try:
            yield terminal
        finally:
            with anyio.move_on_after(KILL_LIMIT_S, shield=True):
                terminal.close()
                kill_quietly(terminal.process)

    def attach_terminal(self, exec_id: str, offset: int = 0) -> Terminal:
        """The terminal of that id, from an offset of its output on; takes it over when it is read."""
        return Terminal(self._transport, self.id, self.process(exec_id), offset)

    def process(self, exec_id: str) -> Process:
        """The command of that id, without asking for it."""
        return Process(self._transport, self.id, self._path, exec_id)

    def processes(self) -> list[Process]:
        """The commands that run, and the last ones that ended; results come without output."""
        call = Call("GET", f"{self._path}/processes", sandbox=self.id)
        answer = self._transport.json(call)
        items = answer.get("processes") if isinstance(answer, dict) else None
        if not isinstance(items, list):
            raise faults.not_understood("a list of commands", answer)
        found = [parse_process(item) for item in items]
        return [Process(self._transport, self.id, self._path, i.exec_id, i) for i in found]

    def session(self, name: str = DEFAULT_NAME, **options: Unpack[SessionOptions]) -> Session:
        """Start a shell that keeps its state from command to command: directory, variables, functions.

        Args:
            name: no live session of the sandbox has it: 1 to 64 of [A-Za-z0-9._-].
            **options: see SessionOptions.

        Raises:
            ConflictError: the name is taken, or the shell did not come up.
            PathNotFoundError: the image has no such shell, or no terminals.
            SandmanError: the sandbox or the way to it failed.
        """
        return open_session(self._transport, self.id, self._path, name, options)

    def attach_session(self, name: str = DEFAULT_NAME) -> Session:
        """The session of that name, without asking for it."""
        return Session(self._transport, self.id, self._path, name)

    def sessions(self) -> list[Session]:
        """All sessions, also those whose shell has ended by itself."""
        return list_sessions(self._transport, self.id, self._path)

    def http(self, port: int, **options: Any) -> httpx.Client:  # noqa: ANN401 - httpx's own
        """An httpx client whose URLs are those of a server in the sandbox; close it when done.

            with box.http(8000) as server:
                answer = server.get("/health")

        What the server answers is an answer, whatever its status. Nothing is repeated.

        Args:
            port: that it listens on, at 127.0.0.1 or ::1 of the sandbox.
            **options: of `httpx.Client`, such as `timeout`, `headers`, `follow_redirects`.

        Raises:
            PortClosedError: by its calls: nothing listens there (yet); nothing was sent.
            SandmanError: by its calls: the sandbox or the way to it failed.
        """
        settings = self._transport.settings
        base = self.port_url(port)
        limits = settings.limits
        options.setdefault("timeout", httpx.Timeout(limits.silence_s, connect=limits.connect_s))
        transport = PortTransport(settings, self._transport.trust(), base, self.id)
        return httpx.Client(base_url=base, transport=transport, **options)

    def port_url(self, port: int, path: str = "/", *, websocket: bool = False) -> str:
        """The URL of a server in the sandbox, for other libraries; `port_headers` belong to it.

        Args:
            port: that it listens on.
            path: on that server, with its query, percent-encoded.
            websocket: `wss://` in place of `https://`.
        """
        url = f"{self._transport.settings.url}{self._path}{port_path(port, path)}"
        return f"ws{url.removeprefix('http')}" if websocket else url

    def port_headers(self) -> dict[str, str]:
        """What a request to `port_url` must carry; for the gateway alone, the server does not get it."""
        return {"Authorization": f"Bearer {self._transport.settings.bearer}"}

    def release(self) -> None:
        """Let the sandbox go, with all that is in it. May be repeated: gone is gone.

        Raises:
            SandmanError: the gateway could not be asked; the lease ends the sandbox in time.
        """
        call = Call("DELETE", self._path, sandbox=self.id, patience_s=RELEASE_LIMIT_S)
        self._transport.json(call)

    def renew(self) -> str | None:
        """Say that it is still needed: its `ttl_s` begins anew. Calls on it do so by themselves.

        Returns:
            When it ends unless it is renewed (RFC 3339).

        Raises:
            SandmanError: the gateway could not be asked, or the sandbox has ended.
        """
        answer = self._transport.json(Call("POST", f"{self._path}/renew", sandbox=self.id))
        if not isinstance(answer, dict):
            raise faults.not_understood("a renewal", answer)
        expires_at = answer.get("expires_at")
        return None if expires_at is None else str(expires_at)

    def set_network(self, network: str, *, wait_s: float = NETWORK_WAIT_S) -> NetworkInfo:
        """Give it another egress profile; comes back when a probe from inside has shown that it is in force.

        New connections follow it from then on; what becomes of open ones is up to the cluster's network plugin.

        Args:
            network: name of a profile that its pool allows; `none` closes all.
            wait_s: the most seconds until it is in force.

        Raises:
            NetworkDeniedError, NetworkUnsupportedError: it is not to be had.
            NetworkNotAppliedError: it is written, and something is open or closed that should not be.
        """
        return change_network(self._transport, self.id, self._path, network, wait_s)

    def certificate(self, exec_ids: Sequence[str] = ()) -> Certificate:
        """How it and these commands ran, signed by the gateway (docs/evaluation.md). Its network is probed for that.

        Args:
            exec_ids: of commands of `exec`, `run` and `start`, the last of each by its `exec_id`.

        Raises:
            SandmanError: the sandbox has ended, or the way to it failed.
        """
        return certify(self._transport, self.id, self._path, exec_ids)

    def refresh(self) -> SandboxInfo:
        """Ask the gateway for the present state; kept in `info`.

        Raises:
            NotFoundError: no such sandbox, or not yours.
        """
        self.info = parse_info(self._transport.json(Call("GET", self._path, sandbox=self.id)))
        return self.info

    def _exec(self, spec: ExecSpec, *, check: bool, options: ExecOptions) -> ExecResult:
        limit = options.get("output_limit", DEFAULT_OUTPUT_LIMIT)
        kept = {name: HeadTail(limit) for name in STREAMS}
        wanted, source = specify(spec, options)
        exec_id = wanted.exec_id or uuid.uuid4().hex
        wanted = wanted._replace(exec_id=exec_id, attached_grace_s=ATTACHED_GRACE_S)
        call = self._call(wanted, source)
        process = self.process(exec_id)
        output = Follow(self._transport, self.id, process.path, dict.fromkeys(STREAMS, 0), call)
        try:
            for event in output:
                kept["stdout" if isinstance(event, Stdout) else "stderr"].add(event.data)
        except SandmanError:
            raise
        except BaseException as error:
            with anyio.move_on_after(KILL_LIMIT_S, shield=True):
                output.close(whole=isinstance(error, Exception))
                if call.sent:
                    kill_quietly(process)
            raise
        result = self._judge(output.result, output, kept)
        if check and not result.ok:
            raise CommandError.of(spec.shell or " ".join(spec.argv or ()), result, self.id)
        return result

    def _judge(self, result: ExecResult, output: Follow, kept: dict[str, HeadTail]) -> ExecResult:
        if result.abandoned:
            raise faults.unknown_outcome(
                f"the command was ended: nobody could read it for {ATTACHED_GRACE_S:.0f} s", self.id
            )
        lacking = {gap.stream for gap in output.gaps}
        return result._replace(
            stdout=kept["stdout"].value(),
            stderr=kept["stderr"].value(),
            stdout_truncated=kept["stdout"].truncated or "stdout" in lacking,
            stderr_truncated=kept["stderr"].truncated or "stderr" in lacking,
        )

    def _call(self, spec: ExecSpec, source: Source | None) -> Call:
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
            # By its id it is found again and not run twice; but a stream cannot be sent again.
            repeat=Repeat.UNSENT if streamed or spec.exec_id is None else Repeat.SAFE,
            sandbox=self.id,
            silence_s=EXEC_SILENCE_S,
        )
