"""`POST /v1/exec`: one command from its request to its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daemon import config, outcome
from daemon.attach import Attachment
from daemon.launch import StartFailedError
from daemon.replies import Reply
from daemon.stop import Stop, kill_now
from daemon.uploads import Upload
from sandman import names, wire
from sandman.errors import BadRequestError, InternalError

if TYPE_CHECKING:
    from daemon.drain import Drain
    from daemon.exchange import Exchange
    from daemon.processes import Process, Processes

_LEAST_KEPT = 2 * config.CHUNK_BYTES
"""What a log must keep for a live reader to find each read in it."""


class Executions:
    """The handler of `exec`."""

    def __init__(self, processes: Processes, drain: Drain) -> None:
        self._processes = processes
        self._drain = drain

    def run(self, exchange: Exchange) -> None:
        """Answer one exec call."""
        upload = Upload(exchange) if _is_framed(exchange) else None
        spec = upload.read_request() if upload else _read_spec(exchange)
        frames = names.MEDIA_FRAMES in exchange.head.headers.get("accept", "").lower()
        reply = Reply(exchange, upload, frames=frames)
        process = self._processes.reserve(spec.exec_id)
        result = self._start(process, spec, _kept(spec, upload, frames=frames))
        timeout_s = spec.timeout_s
        del spec  # and its stdin, which may be large
        if result is None:
            result = self._attend(process, timeout_s, reply)
        reply.finish(result)

    def _start(self, process: Process, spec: wire.ExecSpec, limit: int) -> wire.ExecResult | None:
        """Start the command; its result when it did not start."""
        try:
            self._processes.start(process, spec, limit)
        except StartFailedError as failure:
            self._processes.finish(process)
            return outcome.not_started(failure, process.exec_id, self._processes.boot_id)
        except BaseException:
            self._processes.forget(process)
            raise
        return None

    def _attend(self, process: Process, timeout_s: float | None, reply: Reply) -> wire.ExecResult:
        attachment = Attachment(
            process,
            reply,
            lambda now: Stop(process, lambda: self._processes.others(process), now),
            timeout_s,
            reply.scratch,
        )
        try:
            attachment.run(lambda: reply.attach(process, self._processes.boot_id))
        except Exception as error:
            kill_now(process, self._processes.others(process))
            if reply.is_live:
                reply.fail(InternalError(f"{type(error).__name__}: {error}"))
            raise
        finally:
            reply.detach()
            self._release(process)
        if attachment.caller_error is not None:
            raise attachment.caller_error
        return outcome.ended(
            process,
            self._processes.meter,
            self._processes.boot_id,
            timed_out=attachment.timed_out,
        )

    def _release(self, process: Process) -> None:
        """Leave what background children still hold to the drain."""
        for stream in process.streams.values():
            fd = stream.release()
            if fd is not None:
                self._drain.take(fd)
        self._processes.finish(process)


def _read_spec(exchange: Exchange) -> wire.ExecSpec:
    body = wire.load_object(exchange.read_body(config.MAX_JSON_BYTES))
    return wire.ExecSpec.from_json(body)


def _kept(spec: wire.ExecSpec, upload: Upload | None, *, frames: bool) -> int:
    """Bytes of each stream to keep."""
    if not frames:
        return spec.output_limit
    return max(spec.output_limit, _LEAST_KEPT) if upload else _LEAST_KEPT


def _is_framed(exchange: Exchange) -> bool:
    media_type = exchange.head.headers.get("content-type", names.MEDIA_JSON)
    media_type = media_type.partition(";")[0].strip().lower()
    if media_type not in {names.MEDIA_JSON, names.MEDIA_FRAMES}:
        raise BadRequestError(
            f"Content-Type must be {names.MEDIA_JSON} or {names.MEDIA_FRAMES}", field="Content-Type"
        )
    return media_type == names.MEDIA_FRAMES
