"""`/v1/archive`: a directory from or to the caller, as one tar."""

# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from daemon import config, files, http1, paths
from daemon.documents import dump
from daemon.exchange import CallerGoneError, Response
from sandman import names
from sandman.errors import BadRequestError, SandmanError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daemon.exchange import Exchange
    from daemon.state import Sandbox
    from sandman.pack import FilePart, Packer, Skips
    from sandman.unpack import Unpacker

_CHUNK_BYTES = 8 * 1024 * 1024
"""One chunk of a large file. Its length is promised before it is read, so it is filled up if need be."""
_GZIP = b"\x1f\x8b"


class Archives:
    """The handlers of `archive`. What they need is imported at the first call: the start is short."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def get(self, exchange: Exchange) -> None:
        """Send a directory."""
        from sandman.pack import Packer  # noqa: PLC0415

        asked = paths.take(exchange, self._sandbox)
        with asked.acting():
            packer = Packer(asked.path)
            try:
                exchange.begin(200, [("Content-Type", names.MEDIA_TAR)], None)
                _send(exchange, packer)
            finally:
                packer.close()
        exchange.send(http1.LAST_CHUNK)
        exchange.end()

    def put(self, exchange: Exchange) -> None:
        """Unpack a tar."""
        import zlib  # noqa: PLC0415, F401 - now: nothing can be loaded while acting

        from sandman.descent import Policy  # noqa: PLC0415
        from sandman.unpack import Unpacker  # noqa: PLC0415

        asked = paths.take(exchange, self._sandbox)
        with asked.acting():
            policy = Policy(is_new=files.make_directories(asked.path))
            with Unpacker(asked.path, policy) as unpacker:
                _receive(exchange, unpacker, asked.path)
        document = {
            "path": paths.text(asked.path),
            "members": unpacker.members,
            "bytes": unpacker.bytes,
            "skipped": unpacker.skips.told,
            "skipped_count": unpacker.skips.count,
        }
        exchange.respond(Response(200, dump(document), names.MEDIA_JSON))


# --- out -----------------------------------------------------------------------------------------


def _send(exchange: Exchange, packer: Packer) -> None:
    parts = packer.parts()
    try:
        for part in parts:
            if isinstance(part, bytes):
                exchange.send(http1.encode_chunk(part))
            else:
                _send_file(exchange, part, packer.skips)
    finally:
        parts.close()  # type: ignore[attr-defined]


def _send_file(exchange: Exchange, part: FilePart, skips: Skips) -> None:
    left, is_short = part.size, False
    while left:
        length = min(left, _CHUNK_BYTES)
        left -= length
        exchange.send(b"%x\r\n" % length)
        missing = length if is_short else _sendfile(exchange, part.fd, length)
        if missing and not is_short:
            is_short = True
            skips.add(part.name, "became shorter while it was read: filled up with zeros")
        while missing:
            zeros = bytes(min(missing, config.CHUNK_BYTES))
            missing -= len(zeros)
            exchange.send(zeros)
        exchange.send(b"\r\n")


def _sendfile(exchange: Exchange, fd: int, length: int) -> int:
    """From where the file stands; how many of the bytes it has not."""
    while length:
        try:
            sent = os.sendfile(exchange.sock.fileno(), fd, None, length)
        except BlockingIOError:
            exchange.wait_writable()
            continue
        except OSError as error:
            if isinstance(error, (ConnectionError, TimeoutError)):
                raise CallerGoneError(str(error)) from None
            return _copy(exchange, fd, length)  # the file's fault: not every file system can do it
        if sent == 0:
            return length
        length -= sent
    return 0


def _copy(exchange: Exchange, fd: int, length: int) -> int:
    """The same by reading; how many of the bytes cannot be read."""
    try:
        while length and (data := os.read(fd, min(length, config.CHUNK_BYTES))):
            exchange.send(data)
            length -= len(data)
    except OSError:
        pass
    return length


# --- in ------------------------------------------------------------------------------------------


def _receive(exchange: Exchange, unpacker: Unpacker, path: bytes) -> None:
    from sandman.unpack import UnpackError  # noqa: PLC0415

    try:
        for piece in _plain(exchange.views()):
            unpacker.feed(piece)
        unpacker.finish()
    except UnpackError as failure:
        place = path.rstrip(b"/") + b"/" + failure.name
        error = files.translate(failure.error, place)
        error.facts.update(unpacker.facts())
        raise error from None
    except SandmanError as error:
        error.facts.update(unpacker.facts())
        raise


def _plain(pieces: Iterator[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The tar, when it came gzipped, too. A bomb costs time and disk as any tar does, never memory."""
    import zlib  # noqa: PLC0415

    early = _at_least(b"", len(_GZIP), pieces)
    if not early.startswith(_GZIP):
        if early:
            yield early
        yield from pieces
        return
    gzip = zlib.decompressobj(wbits=31)
    try:
        data: bytes | memoryview = early
        while data or (data := next(pieces, b"")):
            yield gzip.decompress(data, config.CHUNK_BYTES)
            data = gzip.unconsumed_tail
            if gzip.eof:
                # A file of several members, one after the other, is the file of their contents (RFC 1952 2.2).
                data = _at_least(gzip.unused_data, len(_GZIP), pieces)
                if not data.startswith(_GZIP):
                    for _ in pieces:
                        pass  # zeros, if anything
                    return
                gzip = zlib.decompressobj(wbits=31)
    except zlib.error as error:
        raise BadRequestError(f"the gzipped tar is broken: {error}", field="body") from None
    raise BadRequestError("the gzipped tar is cut short", field="body")


def _at_least(data: bytes, size: int, pieces: Iterator[bytes | memoryview]) -> bytes:
    """These bytes and those of as many pieces as it takes to have so many, or all."""
    while len(data) < size and (piece := next(pieces, None)) is not None:
        data += piece
    return data
