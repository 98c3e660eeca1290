"""Groups of verbs that say which one was meant, where somebody misspells it or knows it by another tool's name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

ELSEWHERE = {
    "list": "ls", "get": "ls", "rm": "release", "delete": "release", "stop": "release", "kill": "release",
    "create": "run", "start": "run", "ssh": "shell", "connect": "shell", "copy": "cp", "upload": "cp",
    "download": "cp", "forward": "port-forward", "tunnel": "port-forward", "status": "top", "watch": "top",
    "auth": "login", "config": "login", "check": "doctor", "completions": "completion",
}  # fmt: skip
"""What other tools call it."""
MOST_MEANT = 3


def meant(word: str, known: Sequence[str]) -> list[str]:
    """Verbs that were probably meant, the likeliest first."""
    found = difflib.get_close_matches(word, known, MOST_MEANT)
    other = ELSEWHERE.get(word.lower())
    if other is not None and other in known and other not in found:
        found.insert(0, other)
    return found


class Group(click.Group):
    """A group of verbs."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb; one that there is not is told in one line."""
        if ctx.resilient_parsing or not args or self.get_command(ctx, args[0]) is not None:
            return super().resolve_command(ctx, args)
        word = args[0]
        if word.startswith("-"):
            return super().resolve_command(ctx, args)
        found = meant(word, self.list_commands(ctx))
        hint = (
            f"did you mean {' or '.join(found)}?"
            if found
            else f"{ctx.command_path} --help lists all"
        )
        raise click.UsageError(f"there is no {ctx.command_path} {word}: {hint}")

    def group(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - click's own
        """A group below it is of the same kind."""
        kwargs.setdefault("cls", Group)
        return super().group(*args, **kwargs)
