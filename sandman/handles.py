"""What programs say to each other about a command that was started and is not waited for.

Standard library only: the daemon ships this file.
"""

from __future__ import annotations

from sandman.fields import Fields
from sandman.records import TYPE_CHECKING, NamedTuple
from sandman.wire import ExecResult

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

RUNNING = "running"
ENDED = "ended"
STREAMS = ("stdout", "stderr")

ATTACHED_GRACE_S = 15.0
"""How long a command started as attached lives without a reader: enough for a client that lost its
connection to come back, short enough that the commands of a client that died do not add up."""
MAX_WAIT_S = 300.0
"""One long poll. The caller's own limit, or a load balancer's, is shorter anyway."""
MAX_STDIN_BYTES = 1024 * 1024
"""Input in one call; more comes in several."""

_MOST = 2**63 - 1


class Gap(NamedTuple):
    """Bytes `start` to `end` of a stream that are no longer kept."""

    stream: str
    start: int
    end: int

    def to_json(self) -> dict[str, object]:
        """The payload of a GAP frame."""
        return {"stream": self.stream, "from": self.start, "to": self.end}

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse the payload of a GAP frame.

        Raises:
            BadRequestError: names the member at fault.
        """
        reader = Fields(body)
        start = reader.count("from", 0, _MOST)
        return cls(reader.choice("stream", STREAMS), start, reader.count("to", 0, _MOST, start))


class ProcessInfo(NamedTuple):
    """A command as the daemon sees it. `result` once it has ended.

    `started_at`: RFC 3339, UTC, by the sandbox's clock. The counts are of all bytes so far.
    """

    exec_id: str
    state: str
    started_at: str = ""
    detached: bool = False
    terminal: bool = False
    stdin_bytes: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    result: ExecResult | None = None

    def to_json(self, *, streams: bool = True) -> dict[str, object]:
        """The members of the JSON body, with or without the result's streams."""
        body: dict[str, object] = dict(self._asdict())
        del body["result"]
        if self.result is not None:
            body["result"] = self.result.to_json(streams=streams)
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, object]) -> Self:
        """Parse; members that this version does not know are passed over.

        Raises:
            BadRequestError: what answered is not a daemon.
        """
        reader = Fields(body)
        exec_id = reader.text("exec_id")
        if not exec_id:
            raise reader.fail("exec_id", "a string that is not empty")
        result = reader.raw("result")
        return cls(
            exec_id=exec_id,
            state=reader.choice("state", (RUNNING, ENDED)),
            started_at=reader.text("started_at") or "",
            detached=reader.flag("detached"),
            terminal=reader.flag("terminal"),
            stdin_bytes=reader.count("stdin_bytes", 0, _MOST),
            stdout_bytes=reader.count("stdout_bytes", 0, _MOST),
            stderr_bytes=reader.count("stderr_bytes", 0, _MOST),
            result=ExecResult.from_json(result) if isinstance(result, dict) else None,
        )
