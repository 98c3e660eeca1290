"""Runs one command: from its specification to its result, with or without a caller in the same thread."""

from __future__ import annotations

import os
import threading

from daemon import config, log, outcome
from daemon.attach import Attachment
from daemon.launch import StartFailedError
from daemon.processes import refused
from daemon.stop import Stop, kill_now
from sandman.errors import InternalError, OutcomeUnknownError, SandmanError
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from daemon.drain import Drain
    from daemon.process import Process
    from daemon.processes import Processes
    from daemon.replies import Reply
    from sandman.wire import ExecSpec


class Runner:
    """Starts commands and sees them through."""

    def __init__(self, processes: Processes, drain: Drain) -> None:
        self._processes = processes
        self._drain = drain

    def claim(self, spec: ExecSpec, grace_s: float) -> tuple[Process, bool]:
        """The command of this name, and whether it is yet to be started.

        Raises:
            ConflictError: the name is another command's.
        """
        process, is_new = self._processes.reserve(spec.exec_id, mark_of(spec))
        if is_new:
            process.grace_s = grace_s if spec.attached_grace_s is None else spec.attached_grace_s
        return process, is_new

    def start(self, process: Process, spec: ExecSpec) -> bool:
        """Start the command; False: it did not start, and that is its result.

        Raises:
            SandmanError: it did not start, which is an error.
        """
        try:
            self._processes.start(process, spec)
        except StartFailedError as failure:
            refused(process, failure)
            result = outcome.not_started(failure, process, self._processes.boot_id)
            self._processes.finish(process, result)
            return False
        except BaseException as error:
            self._processes.forget(process, _as_ours(error))
            raise
        process.begun.set()
        return True

    def keep(self, process: Process, timeout_s: float | None) -> None:
        """See a command through in a thread of its own."""
        if process.stdin is not None and not process.stdin.is_open:
            process.stdin.end()
        try:
            threading.Thread(target=self._keep, args=(process, timeout_s), daemon=True).start()
        except RuntimeError as error:  # the sandbox's limit of processes is reached
            process.failure = OutcomeUnknownError(
                f"the command was begun and killed at once, for want of a thread: {error}",
                cause="sandbox",
            )
            kill_now(process, self._processes.others(process))
            self._release(process)
            raise process.failure from error

    def _keep(self, process: Process, timeout_s: float | None) -> None:
        try:
            self.attend(process, timeout_s, None)
        except Exception as error:  # noqa: BLE001 - nobody is there to tell but the log
            log.line(f"command {process.exec_id}: {type(error).__name__}: {error}")

    def attend(self, process: Process, timeout_s: float | None, reply: Reply | None) -> None:
        """See a command through, here; then `process.result` is there.

        Raises:
            CallerGoneError, SandmanError: the caller left, or broke the rules.
        """
        attachment = Attachment(
            process,
            reply,
            lambda now: Stop(process, lambda: self._processes.others(process), now),
            timeout_s,
            reply.scratch if reply else memoryview(bytearray(config.CHUNK_BYTES)),
        )
        try:
            attachment.run(
                lambda: reply.attach(process, self._processes.boot_id) if reply else None
            )
        except Exception as error:
            process.failure = InternalError(f"{type(error).__name__}: {error}")
            kill_now(process, self._processes.others(process))
            if reply and reply.is_live:
                reply.fail(process.failure)
            raise
        finally:
            if reply:
                reply.detach()
            self._release(process, timed_out=attachment.timed_out)
        if attachment.caller_error is not None:
            raise attachment.caller_error

    def _release(self, process: Process, *, timed_out: bool = False) -> None:
        """Leave what background children still hold to the drain, and tell how it ended."""
        for stream in process.streams.values():
            fd = stream.release()
            if fd is None:
                continue
            if process.is_terminal:
                # Whoever is left in it was hung up by the kernel when its leader ended.
                os.close(fd)
            else:
                self._drain.take(fd)
        result = None
        if process.failure is None:
            meter, boot_id = self._processes.meter, self._processes.boot_id
            result = outcome.ended(process, meter, boot_id, timed_out=timed_out)
        self._processes.finish(process, result)


def _as_ours(error: BaseException) -> SandmanError:
    if isinstance(error, SandmanError):
        return error
    return InternalError(f"{type(error).__name__}: {error}")


def mark_of(spec: ExecSpec) -> bytes:
    """What tells this specification from another; empty for a command without a name."""
    if spec.exec_id is None:
        return b""
    from hashlib import sha256  # noqa: PLC0415 - not needed to listen

    mark = sha256(
        repr(spec._replace(stdin=None, env=tuple(sorted(spec.env)))).encode(
            "utf-8", "surrogatepass"
        )
    )
    mark.update(b"\0" if spec.stdin is None else b"\1" + spec.stdin)
    return mark.digest()
