"""How long it takes from a request for a sandbox to its first command. Pure.

Known to the replica that the request came to, for commands that come to it too: most clients keep their
connection. What comes through another replica is not counted, and never counted twice.
"""

from __future__ import annotations

from collections import OrderedDict

KEPT_MAX = 20_000
"""Sandboxes kept, those that had their first command too: a call that is repeated with its key must not
make a second one. As many as may wait for a sandbox, 150 bytes each."""


class FirstCommands:
    """Sandboxes: id → when they were asked for, seconds on any one clock; None once they had a command."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str, float | None] = OrderedDict()

    def made(self, sandbox: str, asked: float) -> None:
        """A request that came at `asked` got this sandbox."""
        self._asked.setdefault(sandbox, asked)
        while len(self._asked) > KEPT_MAX:
            self._asked.popitem(last=False)

    def answered(self, sandbox: str, now: float) -> float | None:
        """A command's answer has begun; seconds since the request when it is the first one."""
        asked = self._asked.get(sandbox)
        if asked is None:
            return None
        self._asked[sandbox] = None
        return now - asked
