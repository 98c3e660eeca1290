"""What the shell may offer where a word is to be completed. Never an error, and never long: somebody waits at a key."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

from sandman import contexts as kept
from sandman.errors import SandmanError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import click

    from sandman.cli.session import Session

    Offer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

ANSWER_S = 1.5
"""Seconds that the gateway has to tell of sandboxes; else none are offered."""


def contexts(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Names of contexts."""
    try:
        known = kept.read(os.environ).known
    except kept.ContextsError:
        return []
    found = [(name, one.url) for name, one in sorted(known.items())]
    found.append((kept.LOCAL, "local mode"))
    return [CompletionItem(name, help=url) for name, url in found if name.startswith(begun)]


def sandboxes(ctx: click.Context, _param: click.Parameter, begun: str) -> list[CompletionItem]:
    """Ids of the caller's sandboxes, with their images."""
    return [
        CompletionItem(name, help=image) for name, image in _boxes(ctx) if name.startswith(begun)
    ]


def paths(ctx: click.Context, param: click.Parameter, begun: str) -> list[CompletionItem]:
    """For `cp`: files here, or SANDBOX: of a sandbox."""
    del param
    files = CompletionItem(begun, type="file")
    if not begun or "/" in begun or ":" in begun:
        return [files]
    found = [CompletionItem(f"{name}:") for name, _ in _boxes(ctx) if name.startswith(begun)]
    return found or [files]


def _boxes(ctx: click.Context) -> Iterator[tuple[str, str]]:
    try:
        with _session(ctx).client(retry_s=0, answer_s=ANSWER_S) as client:
            yield from [(box.id, box.info.image or "") for box in client.list()]
    except (SandmanError, OSError):
        return


def _session(ctx: click.Context) -> Session:
    """As the words before the verb have it, which is not called."""
    from sandman.cli.session import Session  # noqa: PLC0415 - the client takes its time to load

    said = ctx.find_root().params
    return Session(
        said.get("url"), said.get("token"), said.get("ca"), said.get("server_name"),
        said.get("name"), quiet=True,
    )  # fmt: skip
