"""What was found out about tokens of others, for a short while. Pure; the clock comes in.

By the hash of the token, so that no memory holds one. Good and bad apart: who sends ten thousand bad ones does not
make the good ones be asked about again.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from sandman.errors import SandmanError

T = TypeVar("T")

REFUSED_S = 10.0
"""Seconds that a refusal holds: a rule that is added takes effect at once all the same, for it clears all."""
AWAY_S = 1.0
"""Seconds that nobody could tell holds: those who wait for the same token need not wait one after the other."""
VERDICTS_MAX = 10_000
"""Of each kind; some 500 bytes each."""


def digest(token: str) -> bytes:
    """What stands for a token."""
    return hashlib.sha256(token.encode()).digest()


class _Kept(Generic[T]):
    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, tuple[float, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes, now: float) -> T | None:
        until, value = self._kept.get(key, (now, None))
        return value if now < until else None

    def put(self, key: bytes, value: T, until: float) -> None:
        self._kept[key] = (until, value)
        self._kept.move_to_end(key)
        while len(self._kept) > VERDICTS_MAX:
            self._kept.popitem(last=False)


class Verdicts(Generic[T]):
    """Who a token's caller is, or why nobody."""

    def __init__(self) -> None:
        self._good: _Kept[T] = _Kept()
        self._bad: _Kept[tuple[type[SandmanError], str, float | None]] = _Kept()

    def __len__(self) -> int:
        return len(self._good) + len(self._bad)

    def get(self, key: bytes, now: float) -> T | None:
        """Who it is; None: it has to be found out.

        Raises:
            SandmanError: as when it was found out that it is nobody.
        """
        found = self._good.get(key, now)
        if found is None and (why := self._bad.get(key, now)) is not None:
            # A new one each time: two tasks must not raise the same object.
            kind, detail, retry_after = why
            raise kind(detail, retry_after=retry_after)
        return found

    def allow(self, key: bytes, who: T, until: float) -> None:
        """Keep who it is."""
        self._good.put(key, who, until)

    def refuse(self, key: bytes, error: SandmanError, until: float) -> None:
        """Keep why nobody."""
        self._bad.put(key, (type(error), error.detail, error.retry_after), until)

    def clear(self) -> None:
        """Forget all: what it was found out by has changed."""
        self._good, self._bad = _Kept(), _Kept()
