"""Gateways that this user has logged in to: one file in the user's configuration, which nobody else can read.

Standard library only.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import ssl
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ENV_CONTEXT = "SANDMAN_CONTEXT"
"""Name of the context to use, in place of the current one."""
LOCAL = "local"
"""Always there: the gateway of local mode that runs on this machine. It can be chosen, not written."""
FILE_MAX_BYTES = 4 * 1024 * 1024
"""A few hundred contexts with their CAs."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
_OTHERS = 0o077


class ContextsError(Exception):
    """The file cannot be used; the text says why and what to do."""


class UnwritableError(ContextsError):
    """It is this machine that does not let it be written."""


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """One gateway, and who calls it. `ca` is PEM text, `tenant` what the gateway said when it was written."""

    url: str
    token: str = dataclasses.field(repr=False)
    ca: str | None = dataclasses.field(default=None, repr=False)
    server_name: str | None = None
    tenant: str | None = None

    def trust(self) -> ssl.SSLContext | None:
        """What trusts this gateway and nobody else; None: the usual CAs.

        Raises:
            ContextsError: what is kept is no certificate.
        """
        try:
            return None if self.ca is None else authority(self.ca)
        except ssl.SSLError as error:
            raise ContextsError(
                f"the CA kept for {self.url} is none ({error}): log in anew"
            ) from None


def authority(pem: str) -> ssl.SSLContext:
    """What trusts these certificates and nobody else.

    Raises:
        ssl.SSLError: there is none; an empty text would stand for the usual CAs.
    """
    context = ssl.create_default_context(cadata=pem) if pem.isascii() and pem.strip() else None
    if context is None or not context.cert_store_stats()["x509"]:
        raise ssl.SSLError(0, "no certificate in it")
    return context


@dataclasses.dataclass(frozen=True, slots=True)
class Contexts:
    """All of them, and the name of the current one."""

    known: Mapping[str, Context] = dataclasses.field(default_factory=dict)
    current: str | None = None

    def with_one(self, name: str, context: Context) -> Contexts:
        """With this one added or replaced, which is the current one from then on."""
        return Contexts({**self.known, name: context}, name)

    def without(self, name: str) -> Contexts:
        """Without this one."""
        left = {other: one for other, one in self.known.items() if other != name}
        return Contexts(left, None if self.current == name else self.current)

    def using(self, name: str) -> Contexts:
        """With this one as the current one.

        Raises:
            ContextsError: there is none of that name.
        """
        self.get(name)
        return dataclasses.replace(self, current=name)

    def get(self, name: str) -> Context | None:
        """The context of that name; None: local mode.

        Raises:
            ContextsError: there is none.
        """
        if name in self.known:
            return self.known[name]
        if name == LOCAL:
            return None
        known = ", ".join(sorted([*self.known, LOCAL]))
        raise ContextsError(f"no context {name!r}; there are: {known} (sandman login --list)")


def check_name(name: str) -> str:
    """The name, when it can be one of a context that is written.

    Raises:
        ValueError: it cannot.
    """
    if _NAME.fullmatch(name) is None or name == LOCAL:
        raise ValueError(
            f"{name!r} is no name for a context: letters, digits and . _ : -, and not {LOCAL}"
        )
    return name


def file(environ: Mapping[str, str]) -> Path:
    """Where they are kept."""
    given = environ.get("XDG_CONFIG_HOME")
    top = Path(given) if given else Path(environ.get("HOME") or "~").expanduser() / ".config"
    return top / "sandman" / "contexts.json"


def read(environ: Mapping[str, str]) -> Contexts:
    """What there is; no file is none.

    Raises:
        ContextsError: the file is somebody else's, or others can read it, or it makes no sense.
    """
    path = file(environ)
    try:
        with path.open("rb") as opened:
            found = os.fstat(opened.fileno())
            if found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
                raise ContextsError(
                    f"{path} holds tokens, and others may read it: chown to yourself, chmod 600"
                )
            told = json.loads(opened.read(FILE_MAX_BYTES))
        known = {str(name): _parse(one) for name, one in told["contexts"].items()}
        current = _name_or_none(told.get("current"))
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise ContextsError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ContextsError(f"{path} makes no sense: remove it, and log in anew") from None
    return Contexts(known, current if current in known or current == LOCAL else None)


def _name_or_none(current: object) -> str | None:
    if not isinstance(current, str | None):
        raise TypeError("the current one is a name")
    return current


def _parse(one: Mapping[str, object]) -> Context:
    values = {field.name: one.get(field.name) for field in dataclasses.fields(Context)}
    if not isinstance(one["url"], str) or not isinstance(one["token"], str):
        raise TypeError("a context has an URL and a token")
    if not all(value is None or isinstance(value, str) for value in values.values()):
        raise TypeError("all else of a context is text")
    return Context(**values)  # type: ignore[arg-type]


def change(environ: Mapping[str, str], decide: Callable[[Contexts], Contexts]) -> Path:
    """Write what follows from what there is: whole or not at all, for this user alone. Where it is.

    Raises:
        ContextsError: as `read`, or `decide` says so.
        UnwritableError: it cannot be written.
    """
    path = file(environ)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path):
            wanted = decide(read(environ))
            known = {name: dataclasses.asdict(one) for name, one in wanted.known.items()}
            _write(path, json.dumps({"current": wanted.current, "contexts": known}, indent=1))
    except OSError as error:
        raise UnwritableError(f"cannot write {path}: {error.strerror}") from None
    return path


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Two logins at once must not lose one's context. The lock is a file of its own: the other is replaced."""
    fd = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.new")
    partial.unlink(missing_ok=True)
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    partial.replace(path)
