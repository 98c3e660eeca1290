"""Names of commands that are no longer remembered: none of them may run a second time."""

from __future__ import annotations

MAX_FORGOTTEN = 100_000
"""Names kept, 16 bytes each. Beyond the ended commands that are remembered whole, so whoever repeats a
call after that many others has waited for hours."""
_MASK = (1 << 64) - 1


class Forgotten:
    """The last names that were added, as hashes of 64 bits.

    Python salts its hashes at each start, so nobody can choose names whose hashes are equal; of names
    that nobody chose two are as likely to be taken for one another as 1 to 10^14.
    """

    def __init__(self, most: int = MAX_FORGOTTEN) -> None:
        from array import array  # noqa: PLC0415 - the first thousand commands need none of it

        self._most = most
        self._sorted = array("Q")
        self._order = array("Q")
        self._next = 0

    def add(self, name: str) -> None:
        """Keep this name, and drop the oldest when there are too many."""
        from bisect import bisect_left, insort  # noqa: PLC0415

        key = hash(name) & _MASK
        if name in self:
            return
        if len(self._order) < self._most:
            self._order.append(key)
        else:
            del self._sorted[bisect_left(self._sorted, self._order[self._next])]
            self._order[self._next] = key
            self._next = (self._next + 1) % self._most
        insort(self._sorted, key)

    def __contains__(self, name: str) -> bool:
        from bisect import bisect_left  # noqa: PLC0415

        key = hash(name) & _MASK
        place = bisect_left(self._sorted, key)
        return place < len(self._sorted) and self._sorted[place] == key
