"""Where the gateway is, how to trust it, and how long the client waits for what."""

from __future__ import annotations

import dataclasses
import os
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sandman import names, wire
from sandman._core import whereabouts
from sandman._core.faults import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

EXEC_SILENCE_S = 3 * wire.KEEPALIVE_S + 5
"""Longest silence on a command's stream: three keepalives are lost by then, not merely late."""
RELEASE_LIMIT_S = 15.0
"""Longest that leaving a `sandbox()` block waits for the release; the lease ends the sandbox else."""
STREAM_SILENCE_S = 3 * 15.0 + 5
"""Longest silence in a stream of several sandboxes, which tells how far it is each 15 s."""
FOLLOW_S = 20.0
"""Longest that one call for a sandbox waits before the gateway tells where it stands, and it is asked again:
load balancers cut longer silence, and somebody may watch."""
REPLY_MARGIN_S = 15.0
"""What is granted beyond `wait_s` for the gateway's own answer that it could not be done."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """How long the client waits, in seconds, and how many connections it holds.

    No limit here ends a command: it may be silent for hours, its stream has keepalives.
    """

    connect_s: float = 10.0
    """One attempt to connect, TLS included."""
    silence_s: float = 60.0
    """Longest pause within one transfer, or before an answer (creation: beyond its `wait_s`)."""
    retry_s: float = 30.0
    """How long a call that is safe to repeat is repeated (creation: its `wait_s`)."""
    idle_s: float = wire.KEEPALIVE_S
    """How long an idle connection is kept. Half of the shortest idle limit seen in load balancers: a
    command sent into a connection that they close is a command of unknown outcome."""
    max_connections: int | None = None
    """None: no limit. A limit makes calls queue in this process, where nobody sees them wait."""


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What a client needs to reach its gateway. Made by `Settings.load`."""

    url: str
    token: str = dataclasses.field(repr=False)
    trust: ssl.SSLContext | None = None
    """None: the CAs that httpx trusts by default."""
    server_name: str | None = None
    limits: Limits = Limits()
    token_file: Path | None = dataclasses.field(default=None, repr=False)
    """Where the token is read anew for each call: a projected ServiceAccount token is renewed hourly."""
    origin: str = dataclasses.field(default="", repr=False)
    """Who named the token, for people: a variable, a context."""

    @property
    def bearer(self) -> str:
        """The token to send now.

        Raises:
            ConfigurationError: its file cannot be read.
        """
        return self.token if self.token_file is None else _read_token(self.token_file)

    @classmethod
    def load(
        cls,
        url: str | None = None,
        token: str | None = None,
        *,
        ca: whereabouts.Authority = None,
        server_name: str | None = None,
        context: str | None = None,
        limits: Limits | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Settings:
        """Arguments first, then the environment, then a context, then local mode (`sandman._core.whereabouts`).

        Raises:
            ConfigurationError: something is missing or cannot be; the text names the variable.
        """
        given = whereabouts.Place(
            url=url or "", token=token or "", ca=ca, server_name=server_name or None
        )
        found = whereabouts.find(given, context, environ)
        file = found.token_file
        return cls(
            url=_check_url(found.url),
            token=_check_token(found.token, found.origin) if file is None else _read_token(file),
            token_file=file,
            trust=_trust(found.ca),
            server_name=found.server_name,
            limits=limits or Limits(),
            origin=found.origin,
        )


def _check_url(url: str) -> str:
    if not url:
        raise ConfigurationError(
            f"no gateway given: sandman login https://gateway:8443, or pass url= (--url), or set {names.ENV_URL};"
            " without a cluster: sandman serve --local",
            field="url",
        )
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigurationError(
            f"{url!r} is no gateway's URL: {names.ENV_URL} looks like https://gateway:8443",
            field="url",
        )
    return url.rstrip("/")


def _read_token(file: Path) -> str:
    try:
        return _check_token(file.read_text("ascii", "replace"), names.ENV_TOKEN_FILE)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the token from {file}: {error.strerror or error}. "
            f"{names.ENV_TOKEN_FILE} is the path of a file with nothing else in it",
            field="token",
        ) from error


def _check_token(token: str, origin: str) -> str:
    token = token.strip()
    if not token:
        raise ConfigurationError(
            f"no token given: sandman login, or pass token=, or set {names.ENV_TOKEN} to your API key"
            f" or {names.ENV_TOKEN_FILE} to a file with a token",
            field="token",
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        whose = origin if origin == whereabouts.GIVEN else f"the token of {origin}"
        raise ConfigurationError(f"{whose} holds characters that no token has", field="token")
    return token


def _trust(ca: whereabouts.Authority) -> ssl.SSLContext | None:
    if ca is None or isinstance(ca, ssl.SSLContext):
        return ca
    try:
        return ssl.create_default_context(cafile=os.fspath(ca))
    except OSError as error:  # ssl.SSLError is one: no PEM in it
        raise ConfigurationError(
            f"cannot read certificates from {ca}: {error.strerror or error}. "
            f"{names.ENV_CA} is the path of a PEM file",
            field="ca",
        ) from error
