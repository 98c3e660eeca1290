"""The change as an agent makes it: replacements of text that stands once in a file.

That is the form of the editing tools that language models are given. The edits come from the two
releases, so this agent always knows the answer; what it shows is the traffic that a real one makes.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, NamedTuple

from tests.tasks import unified

if TYPE_CHECKING:
    from collections.abc import Iterator

# Lines around a change, until the text to replace stands once: at last the whole file.
_CONTEXTS = (1, 3, 10, 1_000_000)


class EditError(Exception):
    """The text to replace is not there, or more than once."""


class Edit(NamedTuple):
    """Replace `old`, which stands once in the file, by `new`."""

    old: bytes
    new: bytes


def edits(before: bytes, after: bytes) -> list[Edit]:
    """Edits that, one after the other, turn one content of a file into the other."""
    for context in _CONTEXTS:
        candidates = list(_edits(unified.lines_of(before), unified.lines_of(after), context))
        try:
            if replay(before, candidates) == after:
                return candidates
        except EditError:
            continue
    raise EditError("an empty file cannot be edited, only written")


def _edits(before: list[str], after: list[str], context: int) -> Iterator[Edit]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for group in matcher.get_grouped_opcodes(context):
        first, last = group[0], group[-1]
        old = unified.bytes_of(before[first[1] : last[2]])
        yield Edit(old, unified.bytes_of(after[first[3] : last[4]]))


def replay(data: bytes, steps: list[Edit]) -> bytes:
    """The content after the edits.

    Raises:
        EditError: the text of one of them is not there exactly once.
    """
    for edit in steps:
        found = data.count(edit.old) if edit.old else 0
        if found != 1:
            raise EditError(f"the text to replace stands {found} times in the file: {edit.old!r}")
        data = data.replace(edit.old, edit.new)
    return data


def clue(edit: Edit) -> str:
    """A line by which to find the file: the longest that the edit would replace."""
    return max(unified.lines_of(edit.old), key=len).strip()
