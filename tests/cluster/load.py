"""Callers that never pause, for as long as something is done to what they call: each with a token of its kind makes a
sandbox, runs commands in it, writes and reads a file and gives it back, again and again."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import sandman as sdk
from sandman import names
from sandman.errors import SandmanError
from tests.cluster.bed.shell import wait_until
from tests.cluster.calling import client_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from sandman._core.retry import Retry
    from tests.cluster.deployed import Deployed

PAUSE_S = 0.1
"""Between two calls of one caller: the machine has two cores, for everything."""
COMMANDS = 5
"""In each sandbox; with what makes, fills, reads and releases it some two seconds."""
WAIT_S = 120.0
"""Seconds that a caller waits for a sandbox: pools may be rolled out meanwhile."""
TICK_S = 0.5
CONTENT = bytes(range(256)) * 64


class Load:
    """Callers by name, from the beginning of a block to its end.

    `calls` counts them by kind, `retries` those that a client made by itself by reason, and `failures` has every call
    that failed or answered wrongly.
    """

    def __init__(self, sandman: Deployed, callers: Mapping[str, Callable[[], str | Path]]) -> None:
        self._sandman = sandman
        self._image = sandman.image("busybox")
        self._callers = callers
        self._stop = threading.Event()
        self._retired = threading.Event()
        self._lock = threading.Lock()
        self.calls: collections.Counter[str] = collections.Counter()
        self.retries: collections.Counter[str] = collections.Counter()
        self.rounds: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []
        self.veteran: sdk.SyncSandbox
        self.lines = 0
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        with client_of(self._sandman, self._sandman.installation.token) as client:
            self.veteran = client.create(image=self._image, wait_s=WAIT_S)
        jobs: dict[str, Callable[[], None]] = {
            name: lambda name=name: self._loop(name) for name in self._callers
        }
        jobs |= {"veteran": self._serve, "stream": self._stream}
        self._threads = [
            threading.Thread(target=self._noted, args=item, daemon=True) for item in jobs.items()
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.retire()
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)

    def retire(self) -> None:
        """Let the one sandbox go that was there from the beginning, with all that runs in it."""
        if self._retired.is_set():
            return
        self._retired.set()
        for thread in self._threads[-2:]:
            thread.join(60)
        with client_of(self._sandman, self._sandman.installation.token) as client:
            client.attach(self.veteran.id).release()

    def exchange(self) -> None:
        """Let each caller's next sandboxes take the place of those that it has."""
        before = dict(self.rounds)
        wait_until(
            "two rounds more of each caller",
            lambda: all(self.rounds[one] >= before.get(one, 0) + 2 for one in self._callers),
            WAIT_S,
        )

    def told(self) -> str:
        """What it came to."""
        return (
            f"{self.calls.total()} calls {dict(self.calls)}, {self.lines} lines of one command, "
            f"{self.retries.total()} tried again by clients {dict(self.retries)}, "
            f"{len(self.failures)} failed"
        )

    def _noted(self, name: str, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:  # noqa: BLE001 - whatever ends a caller is a failure
            self._fail(f"{name} ended: {error!r}")

    def _fail(self, text: str) -> None:
        with self._lock:
            self.failures.append(f"{time.strftime('%X')} {text}")

    def _retry(self, retry: Retry) -> None:
        with self._lock:
            self.retries[retry.error.reason] += 1

    @contextlib.contextmanager
    def _counted(self, who: str, kind: str) -> Iterator[None]:
        """One call: what it raises is noted, and goes on."""
        with self._lock:
            self.calls[kind] += 1
        try:
            yield
        except SandmanError as error:
            self._fail(f"{who}: {kind}: {type(error).__name__}: {error}")
            raise
        time.sleep(PAUSE_S)

    def _client(self, token: str | Path) -> sdk.SyncClient:
        """As a caller makes one that has just started: by what is in its files now."""
        made = self._sandman.installation
        options: dict[str, Any] = {
            "ca": made.ca, "server_name": made.server_name, "on_retry": self._retry,
        }  # fmt: skip
        if isinstance(token, str):
            return sdk.SyncClient(made.url, token, **options)
        with self._lock:
            os.environ[names.ENV_TOKEN_FILE] = str(token)
            try:
                return sdk.SyncClient(made.url, **options)
            finally:
                del os.environ[names.ENV_TOKEN_FILE]

    def _loop(self, name: str) -> None:
        while not self._stop.is_set():
            # What failed is noted.
            with self._client(self._callers[name]()) as client, contextlib.suppress(SandmanError):
                self._round(name, client)
            self.rounds[name] += 1

    def _round(self, name: str, client: sdk.SyncClient) -> None:
        with self._counted(name, "create"):
            box = client.create(image=self._image, wait_s=WAIT_S)
        try:
            for number in range(COMMANDS):
                with self._counted(name, "exec"):
                    self._check(name, box.exec(["echo", str(number)]).stdout_text, f"{number}\n")
            with self._counted(name, "write"):
                box.files.write("/tmp/content", CONTENT)
            with self._counted(name, "read"):
                self._check(name, box.files.read("/tmp/content"), CONTENT)
            with self._counted(name, "list"):
                client.list()
        finally:
            with self._counted(name, "release"):
                box.release()

    def _check(self, name: str, said: object, wanted: object) -> None:
        if said != wanted:
            self._fail(f"{name}: {said!r} instead of {wanted!r}")

    def _serve(self) -> None:
        """Commands in the veteran with its own token, made when it was."""
        number = 0
        while not self._retired.is_set():
            with (
                self._client(self.veteran.info.token) as client,
                contextlib.suppress(SandmanError),
                self._counted("veteran", "exec of a sandbox's own token"),
            ):
                box = client.attach(self.veteran.id)
                number += 1
                self._check("veteran", box.exec(["echo", str(number)]).stdout_text, f"{number}\n")

    def _stream(self) -> None:
        """One command whose output comes over one connection for all of the time."""
        script = f"i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo $i; sleep {TICK_S}; done"
        with self._client(self._sandman.installation.token) as client:
            box = client.attach(self.veteran.id)
            with self._counted("stream", "stream"), box.stream(shell=script) as stream:
                said = bytearray()
                for event in stream:
                    said += event.data
                    self.lines = said.count(b"\n")
                    if self._retired.is_set():
                        box.files.write("/tmp/stop", b"")
            whole = "".join(f"{n}\n" for n in range(1, self.lines + 1))
            self._check("stream", said.decode(), whole)
