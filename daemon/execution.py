"""`POST /v1/exec`: one command from its request to its answer."""

from __future__ import annotations

from daemon.follow import follow
from daemon.replies import Reply
from daemon.uploads import Upload, read_spec
from sandman import names
from sandman.errors import BadRequestError, InternalError
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from daemon.processes import Processes
    from daemon.runner import Runner


class Executions:
    """The handler of `exec`."""

    def __init__(self, processes: Processes, runner: Runner) -> None:
        self._processes = processes
        self._runner = runner

    def run(self, exchange: Exchange) -> None:
        """Answer one exec call."""
        upload = Upload(exchange) if _is_framed(exchange) else None
        spec = upload.read_request() if upload else read_spec(exchange)
        if spec.detached or spec.terminal is not None:
            raise BadRequestError(
                "a command that is detached or has a terminal is started by /v1/processes",
                field="detached" if spec.detached else "terminal",
            )
        reply = Reply(exchange, upload, frames=wants_frames(exchange))
        process, is_new = self._runner.claim(spec, grace_s=0.0)
        if not is_new:
            for _ in exchange.body():
                pass  # the first call's input counts
            follow(process, Reply(exchange, None, frames=reply.frames), self._processes.boot_id)
            return
        started = self._runner.start(process, spec)
        timeout_s = spec.timeout_s
        del spec  # and its stdin, which may be large
        try:
            if started:
                self._runner.attend(process, timeout_s, reply)
            else:
                reply.join(process, self._processes.boot_id)
                reply.detach()
            result = process.result if reply.frames else process.full_result
            if result is None:
                raise process.failure or InternalError("the command's result is lost")
            reply.finish(result)
        finally:
            self._processes.answered(process)


def wants_frames(exchange: Exchange) -> bool:
    """Whether the caller reads frames."""
    return names.MEDIA_FRAMES in exchange.head.headers.get("accept", "").lower()


def _is_framed(exchange: Exchange) -> bool:
    media_type = exchange.head.headers.get("content-type", names.MEDIA_JSON)
    media_type = media_type.partition(";")[0].strip().lower()
    if media_type not in {names.MEDIA_JSON, names.MEDIA_FRAMES}:
        raise BadRequestError(
            f"Content-Type must be {names.MEDIA_JSON} or {names.MEDIA_FRAMES}", field="Content-Type"
        )
    return media_type == names.MEDIA_FRAMES
