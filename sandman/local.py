"""Where local mode tells clients of this user how to reach it: a file that its gateway writes, and removes at its end.

Standard library only.
"""

from __future__ import annotations

import json
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

ENV_STATE = "SANDMAN_LOCAL_STATE"
"""Directory of local mode's files; the user's cache directory else."""
FILE_MAX_BYTES = 64 * 1024


class Connection(NamedTuple):
    """How to reach a gateway of local mode."""

    url: str
    token: str
    ca: str
    """PEM text."""
    pid: int
    """Of the gateway."""

    def trust(self) -> ssl.SSLContext:
        """What trusts this gateway, and nobody else."""
        return ssl.create_default_context(cadata=self.ca)


def state_directory(environ: Mapping[str, str]) -> Path:
    """Where local mode keeps its files."""
    if given := environ.get(ENV_STATE):
        return Path(given)
    cache = (
        environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".cache"
    )
    return Path(cache) / "sandman" / "local"


def connection_file(environ: Mapping[str, str]) -> Path:
    """The file."""
    return state_directory(environ) / "client.json"


def read(environ: Mapping[str, str]) -> Connection | None:
    """How to reach the gateway of local mode that runs; None: none does, or what is there is not this user's own."""
    path = connection_file(environ)
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            told = json.loads(file.read(FILE_MAX_BYTES))
        found = Connection(str(told["url"]), str(told["token"]), str(told["ca"]), int(told["pid"]))
        os.kill(found.pid, 0)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return found


def write(connection: Connection, environ: Mapping[str, str]) -> Path:
    """Tell clients; only this user can read it. Where it is.

    Raises:
        OSError: it could not be written.
    """
    path = connection_file(environ)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        json.dump(connection._asdict(), file)
    partial.replace(path)
    return path


def forget(connection: Connection, environ: Mapping[str, str]) -> None:
    """Take it away, unless it is another gateway's by now."""
    if read(environ) == connection:
        connection_file(environ).unlink(missing_ok=True)
