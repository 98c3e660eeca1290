"""Readers that come to a command after its start, each in the thread of its own connection."""

from __future__ import annotations

import math
import select
import time

from daemon.exchange import CallerGoneError
from daemon.process import Reader
from sandman.errors import BadRequestError, InternalError
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from daemon.process import Process
    from daemon.replies import Reply

_GONE = select.POLLRDHUP | select.POLLHUP | select.POLLERR


def follow(process: Process, reply: Reply, boot_id: str) -> None:
    """Pass on what the command writes until it is over.

    Raises:
        CallerGoneError: the reader left, which does nothing to a detached command.
        SandmanError: what became of the command instead of a result.
    """
    process.begun.wait()
    check_offsets(process, reply)
    reply.join(process, boot_id)
    try:
        reader = Reader(reply.pace)
        with process.attended(reader):
            _until_settled(process, reply, reader)
    finally:
        reply.detach()
    result = process.result if reply.frames else process.full_result
    if result is None:
        error = process.failure or InternalError("the command's result is lost")
        if reply.is_live:
            reply.fail(error)
            return
        raise error
    reply.finish(result)


def _until_settled(process: Process, reply: Reply, reader: Reader) -> None:
    poll = select.poll()
    poll.register(reader.wake, select.POLLIN)
    while not process.is_settled:
        reply.take()
        if process.is_held:
            process.nudge()
        poll.register(reply.fileno(), reply.events())
        for fd, events in poll.poll(_wait_ms(reply.next_at())):
            if fd == reader.wake:
                reader.clear()
            else:
                reply.handle(events)


def wait_settled(process: Process, exchange: Exchange, seconds: float) -> None:
    """Wait for the command's end; counts as reading it, and does not hold it up.

    Raises:
        CallerGoneError: who waits for that left.
    """
    reader = Reader(None)
    poll = select.poll()
    poll.register(exchange.sock, select.POLLRDHUP)
    poll.register(reader.wake, select.POLLIN)
    until = time.monotonic() + seconds
    with process.attended(reader):
        while not process.is_settled and time.monotonic() < until:
            for fd, events in poll.poll(_wait_ms(until)):
                if fd == reader.wake:
                    reader.clear()
                elif events & _GONE:
                    raise CallerGoneError("closed by the caller")


def check_offsets(process: Process, reply: Reply) -> None:
    """Whether the reader stands where the command has come.

    Raises:
        BadRequestError: it is beyond.
    """
    for name, cursor in reply.cursors.items():
        stream = process.streams.get(name)
        total = stream.log.total if stream is not None else 0
        if cursor > total:
            raise BadRequestError(
                f"{name} has {total} bytes so far: there is no offset {cursor}",
                field=name,
                facts={"total": total},
            )


def _wait_ms(until: float) -> int | None:
    return None if math.isinf(until) else max(0, math.ceil((until - time.monotonic()) * 1000))
