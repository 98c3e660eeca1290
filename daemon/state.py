"""What this daemon knows of its sandbox: its boot, who claimed it, where and as whom commands run."""

# ruff: noqa: PTH118
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import os
import threading
import time

from daemon import kernel, users
from sandman.claims import Claim, Info
from sandman.errors import BadRequestError, ConflictError
from sandman.records import TYPE_CHECKING
from sandman.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping


class Sandbox:
    """The state behind claim and info. One claim is accepted in a life."""

    def __init__(self, environment: Mapping[bytes, bytes], workdir: bytes = b"/") -> None:
        # Sixteen bytes of the kernel's: a start must never be taken for an earlier one.
        self.boot_id = os.urandom(16).hex()
        self.environment = dict(environment)
        if b"HOME" not in self.environment:
            self.environment[b"HOME"] = encode(users.find(os.geteuid()).home)
        self.workdir = workdir
        self.user: users.User | None = None
        self._claim: Claim | None = None
        self._lock = threading.Lock()
        self._started = time.monotonic()

    def accept(self, claim: Claim) -> None:
        """Take the claim; the same id again changes nothing.

        Raises:
            ConflictError: claimed by another, or meant for the start after this one.
            UserUnsupportedError: its user is not known here.
        BadRequestError: no command could be started with its variables.
        """
        if claim.previous_boot_id == self.boot_id:
            raise ConflictError(
                "this daemon is the one from before the swap and about to be stopped",
                facts={"boot_id": self.boot_id},
            )
        with self._lock:
            if self._claim is None:
                self._take(claim)
            elif self._claim.claim_id != claim.claim_id:
                raise ConflictError("the sandbox is claimed by another claim")

    def _take(self, claim: Claim) -> None:
        _check_environment(self.environment, claim.env)
        if claim.user is not None:
            self.user = users.find(claim.user)
            self.environment.update(login_environment(self.user))
        if claim.workdir is not None:
            self.workdir = encode(claim.workdir)
        self.environment.update({encode(key): encode(value) for key, value in claim.env})
        self._claim = claim

    @property
    def claim_id(self) -> str | None:
        """Of the claim that has it; None: it waits for one."""
        return self._claim.claim_id if self._claim else None

    def absolute(self, path: bytes) -> bytes:
        """The path, from the working directory when it is relative."""
        return os.path.join(self.workdir, path)

    def info(self, running: int) -> Info:
        """What `GET /v1/info` tells."""
        user = self.user
        return Info(
            boot_id=self.boot_id,
            version=__version__,
            claim_id=self.claim_id,
            uptime_s=round(time.monotonic() - self._started, 3),
            workdir=self.workdir.decode("utf-8", "surrogateescape"),
            uid=user.uid if user else os.geteuid(),
            gid=user.gid if user else os.getegid(),
            running=running,
        )


def _check_environment(own: Mapping[bytes, bytes], given: tuple[tuple[str, str], ...]) -> None:
    """Whether commands can be started with it: a sandbox in which none can is of no use.

    Raises:
        BadRequestError: a variable is too long, or all are together.
    """
    most = kernel.most_of_one_string()
    variables = dict(own)
    for name, value in given:
        variables[encode(name)] = encode(value)
        if len(encode(name)) + len(encode(value)) + 1 > most:
            text = f"{name[:200]} has more than the {most} bytes that Linux takes in a variable"
            raise BadRequestError(text, field=f"env.{name[:200]}")
    size = sum(len(k) + len(v) + 2 + kernel.POINTER_BYTES for k, v in variables.items())
    if size > kernel.most_of_all_strings():
        text = f"the variables have {size} bytes, more than Linux takes for a command's start"
        raise BadRequestError(text, field="env")


def login_environment(user: users.User) -> dict[bytes, bytes]:
    """What a login of this user would set."""
    name = encode(user.name)
    shell = encode(user.shell or "/bin/sh")
    return {b"HOME": encode(user.home), b"USER": name, b"LOGNAME": name, b"SHELL": shell}


def encode(text: str) -> bytes:
    """Text of the wire as the bytes that the kernel takes; arbitrary bytes are surrogate escapes."""
    return text.encode("utf-8", "surrogateescape")
