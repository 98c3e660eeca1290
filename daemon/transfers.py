"""`/v1/files`: one file from or to the caller."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from daemon import config, digest, http1, paths, queries, removal
from daemon.documents import dump
from daemon.exchange import CallerGoneError, Response
from daemon.files import Writer, open_for_reading
from sandman import names
from sandman.errors import BadRequestError, TooLargeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daemon.exchange import Exchange
    from daemon.state import Sandbox

_SMALL_BYTES = 64 * 1024
"""Up to this a file is read first and sent with the head: one packet, and the true length also of
files in /proc and /sys, whose size the kernel does not know."""
_SENDFILE_BYTES = 8 * 1024 * 1024


_UNHEEDED = (
    "content-encoding", "content-range", "if-match", "if-none-match", "if-unmodified-since",
)  # fmt: skip
"""Headers of a call that changes a file, which would make it another call, were they heeded."""


class Transfers:
    """The handlers of `files`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def get(self, exchange: Exchange) -> None:
        """Send a file, or with HEAD what would be sent."""
        asked = paths.take(exchange, self._sandbox)
        limit = queries.size(exchange.query, "max_bytes")
        with asked.acting():
            fd, found = open_for_reading(asked.path)
            try:
                _send(exchange, fd, found, limit)
            finally:
                os.close(fd)

    def put(self, exchange: Exchange) -> None:
        """Receive a file, which appears only when it is whole."""
        _refuse_unheeded(exchange.head.headers)
        asked = paths.take(exchange, self._sandbox)
        mode = paths.mode(exchange.query.get("mode"))
        wanted = exchange.query.get("sha256")
        with asked.acting():
            writer = Writer(asked.path, mode)
            try:
                document = _receive(exchange, writer, wanted)
                document["mode"] = f"{writer.commit():04o}"
            finally:
                writer.abort()
        document["path"] = paths.text(asked.path)
        exchange.respond(Response(200, dump(document), names.MEDIA_JSON))

    def delete(self, exchange: Exchange) -> None:
        """Remove a file or an empty directory; with `recursive` all that is below, too."""
        _refuse_unheeded(exchange.head.headers)
        asked = paths.take(exchange, self._sandbox)
        recursive = queries.flag(exchange.query, "recursive")
        with asked.acting():
            if recursive:
                removal.remove_tree(asked.path)
            else:
                removal.remove(asked.path)
        exchange.respond(Response(204))


def _refuse_unheeded(headers: Mapping[str, str]) -> None:
    """A part is not written over the whole, nor a file replaced whose sender set a condition.

    Raises:
        BadRequestError: that was asked for.
    """
    for name in _UNHEEDED:
        if headers.get(name, "identity").lower() != "identity":
            raise BadRequestError(f"{name} is not understood here: nothing was done", field=name)


def _receive(exchange: Exchange, writer: Writer, wanted: bytes | None) -> dict[str, object]:
    """Write the body; what is known of it then."""
    hasher = digest.new()
    size = 0
    for piece in exchange.views():
        hasher.update(piece)
        size += len(piece)
        writer.write(piece)
    found = hasher.digest().hex()
    if wanted is not None and wanted.lower() != found.encode():
        raise BadRequestError(
            f"the body's sha256 is {found}, not as given; nothing was written", field="sha256"
        )
    return {"size": size, "sha256": found}


def _send(exchange: Exchange, fd: int, found: os.stat_result, limit: int | None) -> None:
    mode = f"{stat.S_IMODE(found.st_mode):04o}"
    headers = [("Sandman-Mode", mode)]
    early = _read_up_to(fd, _SMALL_BYTES + 1)
    if len(early) <= _SMALL_BYTES:
        _send_range(exchange, headers, len(early), early, limit)
    elif found.st_size > _SMALL_BYTES:
        _send_range(exchange, headers, found.st_size, fd, limit)
    else:
        _stream(exchange, headers, early, fd, limit)


def _read_up_to(fd: int, most: int) -> bytes:
    pieces: list[bytes] = []
    while most > 0 and (piece := os.read(fd, most)):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def _check_limit(size: int, limit: int | None) -> None:
    if limit is not None and size > limit:
        raise TooLargeError(
            f"{size} bytes are over the limit of {limit} that the call sets",
            field="max_bytes",
            facts={"limit": limit, "size": size},
        )


def _send_range(
    exchange: Exchange,
    headers: list[tuple[str, str]],
    size: int,
    source: bytes | int,
    limit: int | None,
) -> None:
    """Send a file of known size, or the part of it that is asked for. `source`: it, or its descriptor."""
    wanted = exchange.head.headers
    # No condition can hold: files have no ETag here. Then the whole is right (RFC 9110 13.1.5), and a part is not.
    asked = None if "if-range" in wanted else parse_range(wanted.get("range"), size)
    status, start, end = 200, 0, size
    headers.append(("Accept-Ranges", "bytes"))
    if asked is not None:
        status, (start, end) = 206, asked
        if start >= end:
            error = BadRequestError(f"the file has {size} bytes", field="Range")
            error.status = 416
            headers.append(("Content-Range", f"bytes */{size}"))
            body = dump(error.problem())
            exchange.respond(Response(416, body, names.MEDIA_PROBLEM, tuple(headers)))
            return
        headers.append(("Content-Range", f"bytes {start}-{end - 1}/{size}"))
    _check_limit(end - start, limit)
    headers.append(("Content-Type", names.MEDIA_BYTES))
    if isinstance(source, bytes) or exchange.head.method == "HEAD":
        content = source[start:end] if isinstance(source, bytes) else b""
        headers.append(("Content-Length", str(end - start)))
        exchange.respond(Response(status, content, None, tuple(headers)))
        return
    exchange.begin(status, headers, end - start)
    _sendfile(exchange, source, start, end)
    exchange.end()


def parse_range(text: str | None, size: int) -> tuple[int, int] | None:
    """Start and end of the one range that is asked for; None: the whole file.

    What is not understood is passed over, as RFC 9110 14.2 wants; an empty range cannot be had.
    """
    unit, _, spec = (text or "").partition("=")
    first, dash, last = spec.partition("-")
    digits = f"{first}{last}"
    if unit.strip().lower() != "bytes" or not dash or not (digits.isascii() and digits.isdigit()):
        return None
    if len(digits) > 36:
        return None
    if not first:
        return max(0, size - int(last)), size
    end = min(int(last) + 1, size) if last else size
    if last and int(last) < int(first):
        return None
    return int(first), end


def _sendfile(exchange: Exchange, fd: int, start: int, end: int) -> None:
    """From the page cache to the socket; a file that became shorter breaks the answer off."""
    while start < end:
        try:
            sent = os.sendfile(exchange.sock.fileno(), fd, start, min(end - start, _SENDFILE_BYTES))
        except BlockingIOError:
            exchange.wait_writable()
            continue
        except OSError as error:
            raise CallerGoneError(str(error)) from None
        if sent == 0:
            raise CallerGoneError("the file became shorter while it was sent")
        start += sent


def _stream(
    exchange: Exchange,
    headers: list[tuple[str, str]],
    early: bytes,
    fd: int,
    limit: int | None,
) -> None:
    """Send a file whose size nobody knows. One that turns out to be over the limit breaks off."""
    _check_limit(len(early), limit)
    sent = 0
    headers.append(("Content-Type", names.MEDIA_BYTES))
    exchange.begin(200, headers, None)
    piece = early
    while piece:
        if exchange.head.method == "HEAD":
            break
        exchange.send(http1.encode_chunk(piece))
        sent += len(piece)
        piece = os.read(fd, config.CHUNK_BYTES)
        if limit is not None and sent + len(piece) > limit:
            raise CallerGoneError("the file is over the limit that the call sets")
    else:
        exchange.send(http1.LAST_CHUNK)
    exchange.end()
