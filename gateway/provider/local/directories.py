"""Directories of an image while its layers come, and afterwards.

Images have directories that their owner may not write: Fedora's and Nix's are all like that. Who is not root could neither fill
nor empty them for the next layer, so that they get what they are to be when all layers are there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING

from sandman.descent import Descent, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from sandman import tar


@dataclasses.dataclass(slots=True)
class _One:
    """A directory; `member` is None where layers told only of what is below it."""

    member: tar.Member | None = None
    below: dict[bytes, _One] = dataclasses.field(default_factory=dict)


class Directories:
    """What they are to be, by the names that lead to them."""

    def __init__(self) -> None:
        self._top = _One()

    def make(self, parts: Iterable[bytes], member: tar.Member, charge: Callable[[], None]) -> None:
        """This one is in a layer, in place of what another layer has said of it. `charge`: called for each that is to be
        remembered besides, for one name may lead through hundreds."""
        one = self._top
        for part in parts:
            if one is not self._top and one.member is None and not one.below:
                charge()  # it was made by the step before, and is only led through
            one = one.below.setdefault(part, _One())
        one.member = member

    def forget(self, parts: list[bytes]) -> None:
        """This one was taken away, with all below it."""
        one = self._top
        for part in parts[:-1]:
            if part not in one.below:
                return
            one = one.below[part]
        one.below.pop(parts[-1], None)

    def told(self) -> Iterator[tuple[list[bytes], tar.Member]]:
        """All of them, those below first: they are out of reach when those above are closed."""
        found: list[tuple[list[bytes], tar.Member]] = []
        todo: list[tuple[list[bytes], _One]] = [([], self._top)]
        while todo:
            parts, one = todo.pop()
            if one.member is not None:
                found.append((parts, one.member))
            todo += [([*parts, name], below) for name, below in one.below.items()]
        return reversed(found)

    def settle(self, top: Path) -> None:
        """Give them mode, owner and time.

        Raises:
            OSError: the kernel refused.
        """
        is_root = os.geteuid() == 0
        with contextlib.closing(Descent(top, Policy())) as descent:
            for parts, member in self.told():
                _set(descent, parts, member, is_root)


def give(fd: int, member: tar.Member, is_root: bool) -> None:
    """Its owner, where there are others than ourselves."""
    if is_root and max(member.uid, member.gid) < 2**32 - 1:
        os.fchown(fd, member.uid, member.gid)


def _set(descent: Descent, parts: list[bytes], member: tar.Member, is_root: bool) -> None:
    try:
        fd = descent.open_below(parts)
    except (FileNotFoundError, NotADirectoryError):
        return  # something took its place
    try:
        give(fd, member, is_root)
        os.fchmod(fd, member.mode)
        os.utime(fd, ns=(member.mtime_ns, member.mtime_ns))
    finally:
        os.close(fd)
