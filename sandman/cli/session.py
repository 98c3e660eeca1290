"""What every verb has: the way to the gateway, and a voice on stderr."""

from __future__ import annotations

import dataclasses
import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sandman.sync import Client, Limits

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from rich.status import Status

    from sandman._core.config import Settings
    from sandman.client import Client as AsyncClient
    from sandman.sync import Retry

RETRY_S = 10.0
"""A person waits at the other end: shorter than a program's patience."""
TERMINAL_RETRY_S = 45.0
"""Of a terminal that was lost: what runs in it waits for a minute, and its person can leave."""


@dataclasses.dataclass(slots=True)
class Session:
    """The options before the verb."""

    url: str | None
    token: str | None
    ca: str | None
    server_name: str | None
    context: str | None = None
    quiet: bool = False
    origin: str = ""
    """Who named the token of the client that was made last."""
    advice: str = ""
    """What to do about an error that ends the verb, where that is known better than by its reason."""
    is_raw: bool = False
    """The terminal takes every byte as it is: a new line does not begin at the left."""
    _status: Status | None = None

    @contextmanager
    def client(
        self,
        retry_s: float = RETRY_S,
        answer_s: float | None = None,
        trust: ssl.SSLContext | None = None,
    ) -> Iterator[Client]:
        """A client of the gateway; its retries are told on stderr.

        Args:
            retry_s: seconds that what may pass is tried again.
            answer_s: seconds that connecting and an answer may take; None: as long as a program would wait.
            trust: certificates in place of those of the options.

        Raises:
            ConfigurationError: the options do not lead to a gateway.
        """
        options = self._options(retry_s)
        if answer_s is not None:
            options["limits"] = Limits(connect_s=answer_s, silence_s=answer_s, retry_s=retry_s)
        if trust is not None:
            options["ca"] = trust
        with Client(self.url, self.token, **options) as client:
            self.origin = self._origin(client.settings)
            yield client

    def async_client(self, retry_s: float = TERMINAL_RETRY_S) -> AsyncClient:
        """The same for who waits for several things at once; to be entered.

        Args:
            retry_s: seconds that what may pass is tried again.

        Raises:
            ConfigurationError: the options do not lead to a gateway.
        """
        from sandman import client  # noqa: PLC0415 - few verbs need it

        made = client.Client(self.url, self.token, **self._options(retry_s))
        self.origin = self._origin(made.settings)
        return made

    def _origin(self, settings: Settings) -> str:
        return "--token" if self.token else settings.origin

    def _options(self, retry_s: float) -> dict[str, Any]:
        # `on_retry` says it already, in fewer words.
        logging.getLogger("sandman").addHandler(logging.NullHandler())
        return {
            "ca": self.ca,
            "server_name": self.server_name,
            "context": self.context,
            "limits": Limits(retry_s=retry_s),
            "on_retry": self._tell_retry,
        }

    def say(self, text: str) -> None:
        """One line of progress on stderr, unless quiet."""
        if not self.quiet:
            around = "\r\n" if self.is_raw else ""
            click.echo(f"{around}sandman: {text}{around}", err=True, nl=not self.is_raw)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show that we wait: a spinner on a terminal, a line elsewhere."""
        if self.quiet or not sys.stderr.isatty():
            self.say(text)
            yield
            return
        with Console(stderr=True).status(text) as status:
            self._status = status
            try:
                yield
            finally:
                self._status = None

    def _tell_retry(self, retry: Retry) -> None:
        text = f"{retry.error}; again in {retry.pause_s:.1f} s (attempt {retry.attempt + 1})"
        if self._status is not None:
            self._status.update(text)
        else:
            self.say(text)
