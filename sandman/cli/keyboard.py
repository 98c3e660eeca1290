"""What is typed at this end: all of it is the sandbox's, but for one way out."""

from __future__ import annotations

_ENTER = frozenset(b"\r\n")
_ESCAPE = ord("~")
_LEAVE = ord(".")


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
