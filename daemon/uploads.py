"""Request bodies with a command: JSON, or frames with its stdin, passed on as it arrives."""

from __future__ import annotations

from daemon import config
from sandman import wire
from sandman.errors import BadRequestError
from sandman.records import TYPE_CHECKING

if TYPE_CHECKING:
    from daemon.exchange import Exchange
    from daemon.process import Process


class Upload:
    """The frames that a caller sends. Holds one frame at most."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._decoder = wire.FrameDecoder()
        self._is_ended = False

    def read_request(self) -> wire.ExecSpec:
        """Wait for the first frame.

        Raises:
            BadRequestError: it is not a REQUEST with a command.
        """
        while not self._exchange.body_is_done:
            data = b"".join(self._exchange.receive())
            # The frames after the first stay in the decoder until `feed`.
            for frame in self._decoder.feed(data):
                if frame.type != wire.REQUEST:
                    raise BadRequestError("the first frame must be REQUEST", field="body")
                spec = wire.ExecSpec.from_json(wire.load_object(frame.payload))
                return spec if spec.stdin is not None else spec._replace(stdin=b"")
        raise BadRequestError("the body holds no REQUEST frame", field="body")

    @property
    def is_done(self) -> bool:
        """Whether the whole body was taken."""
        return self._exchange.body_is_done

    def receive(self, process: Process) -> None:
        """Take what has arrived on the non-blocking connection."""
        try:
            data = b"".join(self._exchange.receive()) if not self.is_done else b""
        except BlockingIOError:
            return
        self.feed(process, data)

    def feed(self, process: Process, data: bytes = b"") -> None:
        """Give the frames in these bytes to the command.

        Raises:
            BadRequestError: a frame out of place, or the body ends within one.
        """
        stdin = process.stdin
        for frame in self._decoder.feed(data):
            if frame.type == wire.STDIN_CLOSE and not (self._is_ended or frame.payload):
                self._is_ended = True
            elif frame.type != wire.STDIN or self._is_ended:
                name = wire.FRAME_TYPES[frame.type]
                raise BadRequestError(f"a frame of type {name} is out of place", field="body")
            elif stdin is not None:
                stdin.feed(frame.payload)
        if self.is_done and not self._decoder.is_clean:
            raise BadRequestError("the body ends within a frame", field="body")
        if stdin is not None and (self.is_done or self._is_ended):
            stdin.end()


def read_spec(exchange: Exchange) -> wire.ExecSpec:
    """The command in a JSON body."""
    body = wire.load_object(exchange.read_body(config.MAX_JSON_BYTES))
    return wire.ExecSpec.from_json(body)
