"""What every verb has: the way to the gateway, and a voice on stderr."""

from __future__ import annotations

import dataclasses
import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from rich.console import Console

from sandman.sync import Client, Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.status import Status

    from sandman.sync import Retry

RETRY_S = 10.0
"""A person waits at the other end: shorter than a program's patience."""


@dataclasses.dataclass(slots=True)
class Session:
    """The options before the verb."""

    url: str | None
    token: str | None
    ca: str | None
    server_name: str | None
    quiet: bool = False
    _status: Status | None = None

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client of the gateway; its retries are told on stderr.

        Raises:
            ConfigurationError: the options do not lead to a gateway.
        """
        # `on_retry` says it already, in fewer words.
        logging.getLogger("sandman").addHandler(logging.NullHandler())
        with Client(
            self.url,
            self.token,
            ca=self.ca,
            server_name=self.server_name,
            limits=Limits(retry_s=RETRY_S),
            on_retry=self._tell_retry,
        ) as client:
            yield client

    def say(self, text: str) -> None:
        """One line of progress on stderr, unless quiet."""
        if not self.quiet:
            click.echo(f"sandman: {text}", err=True)

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
