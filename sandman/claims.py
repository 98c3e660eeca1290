"""The handshake: what a gateway tells a daemon whose pod it has just taken, and what that says of itself.

Standard library only: the daemon ships this file. NamedTuple and not dataclass: see `wire`.
"""

from __future__ import annotations

from sandman.fields import Fields
from sandman.records import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self


class LeaseTerms(NamedTuple):
    """How long a daemon may be out of the gateway's reach, seconds, before it ends its sandbox.

    `ttl_s` is the lease itself. `grace_s` is for an outage of the gateway.
    """

    ttl_s: float
    grace_s: float = 0.0

    def to_json(self) -> dict[str, object]:
        """The members of the JSON object."""
        return dict(self._asdict())

    @classmethod
    def from_fields(cls, reader: Fields) -> Self:
        """Parse the members of a JSON object.

        Raises:
            BadRequestError: names the field at fault.
        """
        ttl_s = reader.seconds("ttl_s")
        if ttl_s is None:
            raise reader.fail("ttl_s", "a number of seconds greater than 0")
        # What a newer gateway adds is passed over: it is ours, and its placeholders may be days old.
        return cls(ttl_s, reader.seconds("grace_s", zero=True) or 0.0)


class Claim(NamedTuple):
    """What the gateway tells a daemon whose pod it has just taken.

    `claim_id` names the claim: the same one again is answered alike, another is refused.
    `previous_boot_id` is the start of the daemon before an image swap: a daemon that is still that
    one must refuse, it is about to be stopped. `env`, `workdir` (absolute) and `user` hold for all commands.
    `lease` None: the daemon does not end by itself.
    """

    claim_id: str
    previous_boot_id: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    workdir: str | None = None
    user: str | int | None = None
    lease: LeaseTerms | None = None

    def to_json(self) -> dict[str, object]:
        """The members of the JSON body."""
        apart = {"env", "lease"}
        body = {k: v for k, v in self._asdict().items() if v is not None and k not in apart}
        if self.env:
            body["env"] = dict(self.env)
        if self.lease is not None:
            body["lease"] = self.lease.to_json()
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse the members of a JSON body.

        Raises:
            BadRequestError: names the field at fault.
        """
        reader = Fields(body)
        claim_id = reader.text("claim_id")
        if not claim_id:
            raise reader.fail("claim_id", "a string that is not empty")
        workdir = reader.text("workdir")
        if workdir is not None and not workdir.startswith("/"):
            raise reader.fail("workdir", "an absolute path")
        lease = reader.inner("lease")
        return cls(
            claim_id=claim_id,
            previous_boot_id=reader.text("previous_boot_id"),
            env=reader.environment("env"),
            workdir=workdir,
            user=reader.text_or_int("user"),
            lease=None if lease is None else LeaseTerms.from_fields(lease),
        )


class Info(NamedTuple):
    """What a daemon says of itself: answer of `GET /v1/info` and of the claim.

    Seconds since there was use for the sandbox: `used_s` since the last call, 0 while one is open (calls that
    only look at its state, and a gateway's own, are none); `renewed_s` since its caller last renewed it;
    `idle_s` since the last call or command was over. None: never, or the daemon is one that does not tell.
    """

    boot_id: str
    version: str = ""
    claim_id: str | None = None
    uptime_s: float = 0.0
    workdir: str = "/"
    uid: int = 0
    gid: int = 0
    running: int = 0
    used_s: float | None = None
    renewed_s: float | None = None
    idle_s: float | None = None

    def to_json(self) -> dict[str, object]:
        """The members of the JSON body."""
        return dict(self._asdict())

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse; members that this version does not know are passed over.

        Raises:
            BadRequestError: what answered is not a daemon.
        """
        reader = Fields(body)
        boot_id = reader.text("boot_id")
        if not boot_id:
            raise reader.fail("boot_id", "a string that is not empty")
        return cls(
            boot_id=boot_id,
            version=reader.text("version") or "",
            claim_id=reader.text("claim_id"),
            uptime_s=reader.seconds("uptime_s", zero=True) or 0.0,
            workdir=reader.text("workdir") or "/",
            uid=reader.count("uid", 0, 2**32),
            gid=reader.count("gid", 0, 2**32),
            running=reader.count("running", 0, 2**32),
            used_s=reader.seconds("used_s", zero=True),
            renewed_s=reader.seconds("renewed_s", zero=True),
            idle_s=reader.seconds("idle_s", zero=True),
        )
