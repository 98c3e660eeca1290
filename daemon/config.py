"""Settings, read once from the environment, and the limits of the daemon with their reasons."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - `typing` would come too early: see `listener`

from sandman import names

MAX_HEAD_BYTES = 32 * 1024
"""A path of 4096 bytes, each percent-encoded, twice over, and headers."""
MAX_HEADERS = 100
MAX_JSON_BYTES = 96 * 1024 * 1024
"""50 MiB of stdin as base64 is 67 MiB; larger input goes in frames."""
MAX_CONNECTIONS = 512
"""Each costs a thread, some 100 KiB once it has run. A gateway replica keeps a few."""
MAX_WITHIN = MAX_CONNECTIONS // 2
"""Of these, connections from within the sandbox: whatever floods the daemon there, the gateway gets in."""
HEAD_TIMEOUT_S = 15.0
"""From a request's first byte to the end of its head: a slow-loris bound."""
IDLE_TIMEOUT_S = 120.0
"""A kept-alive connection without a request. Longer than the gateway's pool keeps one, so that it
is the gateway that closes, and no request meets a closing socket."""
STALL_TIMEOUT_S = 120.0
"""A body or answer of which not one byte moves."""
FINISH_S = 300.0
"""For all that is left when a command has ended: its last output to a reader who takes some bytes now and
then, input that it did not want. Without a total either could hold a thread for ever. What the logs hold
by default goes in this time at 70 KB/s."""
HALF_CLOSED_S = 30.0
"""Once one side of a tunnel has said its last word, silence of this length ends the other, too."""
LINGER_S = 2.0
"""How long an unwanted request body is read away before closing; without it the reset that the
kernel sends would overtake the answer."""
LINGER_BYTES = 16 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
"""One read. The default capacity of a pipe."""
BODY_BYTES = 256 * 1024
"""One read of a file or tar that comes in: a quarter of the calls, and still in the processor's cache."""


class ConfigError(Exception):
    """A setting is missing or malformed; the text names the variable."""


class Config:
    """How this daemon was told to run. Not a NamedTuple: see `listener`."""

    __slots__ = ("port", "token_sha256")

    def __init__(self, token_sha256: str, port: int = names.DAEMON_PORT) -> None:
        self.token_sha256 = token_sha256
        self.port = port

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Config:
        """Read and check the settings.

        Raises:
            ConfigError: names the variable at fault.
        """
        # No token would mean that every pod in the cluster may run commands here.
        digest = environ.get(names.ENV_TOKEN_SHA256, "").lower()
        if len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise ConfigError(f"{names.ENV_TOKEN_SHA256} must be the hex SHA-256 of the token")
        text = environ.get(names.ENV_PORT, str(names.DAEMON_PORT))
        if not (text.isascii() and text.isdigit() and int(text) < 65536):
            raise ConfigError(f"{names.ENV_PORT} must be a port number, not {text!r}")
        return cls(token_sha256=digest, port=int(text))

    def __repr__(self) -> str:
        return f"Config(port={self.port}, token_sha256=…)"


def command_environment(environ: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The image's and the pod's variables: the daemon's own environment without its settings."""
    prefix = names.ENV_PREFIX.encode()
    return {key: value for key, value in environ.items() if not key.startswith(prefix)}


def workload_environment(environ: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The variables of a pod's own command: all but the two that the webhook has added. A workload may
    be a caller of Sandman and have variables with our prefix."""
    ours = {names.ENV_TOKEN_SHA256.encode(), names.ENV_PORT.encode()}
    return {key: value for key, value in environ.items() if key not in ours}
