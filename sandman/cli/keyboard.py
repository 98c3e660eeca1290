"""What is typed at this end: all of it is the sandbox's, but for one way out."""

from __future__ import annotations

import anyio

_ENTER = frozenset(b"\r\n")
_ESCAPE = ord("~")
_LEAVE = ord(".")
MOST_UNSENT_BYTES = 1024 * 1024
"""Beyond this keys wait in the terminal, the way out among them. Nobody types so much; who pastes more
must not lose the rest."""


class Keyboard:
    """`~.` at the beginning of a line leaves, as it does in ssh; `~~` there types one `~`.

    In a terminal every other key is the command's. When the connection hangs nothing else would end it.
    """

    def __init__(self) -> None:
        self._is_at_start = True
        self._has_escape = False
        self.leaves = False
        """It was asked to leave."""

    def take(self, data: bytes) -> bytes:
        """What of these bytes is for the sandbox."""
        typed = bytearray()
        for byte in data:
            if self._has_escape:
                self._has_escape = False
                if byte == _LEAVE:
                    self.leaves = True
                    break
                if byte != _ESCAPE:
                    typed.append(_ESCAPE)
            elif self._is_at_start and byte == _ESCAPE:
                self._has_escape, self._is_at_start = True, False
                continue
            typed.append(byte)
            self._is_at_start = byte in _ENTER
        return bytes(typed)


class Unsent:
    """What was typed and not passed on yet. So keys are heard while the sandbox takes none."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._is_over = False
        self._change = anyio.Condition()

    async def put(self, data: bytes) -> None:
        """Add this; waits while there is too much."""
        async with self._change:
            while len(self._data) >= MOST_UNSENT_BYTES:
                await self._change.wait()
            self._data += data
            self._change.notify_all()

    async def take(self) -> bytes:
        """All there is, as soon as there is something; empty: no more will come."""
        async with self._change:
            while not (self._data or self._is_over):
                await self._change.wait()
            data = bytes(self._data)
            self._data.clear()
            self._change.notify_all()
            return data

    async def end(self) -> None:
        """No more will be added."""
        async with self._change:
            self._is_over = True
            self._change.notify_all()
