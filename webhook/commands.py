"""What a workload's container runs, and the same with the daemon before it. Pure.

The pod says it, or else an annotation does: what an image runs by itself stands in a registry, and an
admission that asked one would fail with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandman import entrypoints, names
from webhook.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandman.entrypoints import Entrypoint
    from webhook.podview import Container

_DAEMON = (*names.DAEMON_COMMAND, "--")


@dataclass(frozen=True, slots=True)
class Wrapped:
    """`command` and `args` for the container; `args` None: those that it has stay."""

    command: tuple[str, ...]
    args: tuple[str, ...] | None = None


def told(annotations: Mapping[str, str]) -> dict[str, Entrypoint]:
    """What `sandman inject` found out, by container.

    Raises:
        RefusedError: the annotation cannot be read.
    """
    text = annotations.get(names.ANNOTATION_COMMANDS)
    if text is None:
        return {}
    try:
        return entrypoints.load(text)
    except ValueError as error:
        raise RefusedError(
            f"annotation {names.ANNOTATION_COMMANDS}: {error}: run `sandman inject` again"
        ) from None


def is_wrapped(container: Container) -> bool:
    """Whether the daemon is there already. Not only at the front: another injector may have put
    something of its own before it since."""
    words = (*(container.command or ()), *(container.args or ()))
    span = len(names.DAEMON_COMMAND)
    return any(
        words[start : start + span] == names.DAEMON_COMMAND
        for start in range(len(words) - span + 1)
    )


def wrap(container: Container, found: Mapping[str, Entrypoint]) -> Wrapped:
    """The daemon, with the container's own command as its child.

    Raises:
        RefusedError: nobody knows that command.
    """
    if container.command:
        return Wrapped((*_DAEMON, *container.command))
    image = found.get(container.name)
    if image is None:
        raise RefusedError(
            f"container {container.name} has no command: set it, or run `sandman inject` on the workload"
        )
    if image.image != container.image:
        raise RefusedError(
            f"container {container.name} runs another image than `sandman inject` saw: run it again"
        )
    entrypoint = _literal(image.entrypoint)
    if container.args:
        return _something(container, Wrapped((*_DAEMON, *entrypoint)), container.args)
    cmd = _literal(image.cmd)
    return _something(container, Wrapped((*_DAEMON, *entrypoint), cmd or None), cmd)


def _something(
    container: Container, wrapped: Wrapped, args: tuple[str, ...] | list[str]
) -> Wrapped:
    if len(wrapped.command) == len(_DAEMON) and not args:
        raise RefusedError(
            f"container {container.name}: neither the pod nor its image has a command: set one"
        )
    return wrapped


def _literal(words: tuple[str, ...]) -> tuple[str, ...]:
    """The kubelet expands $(NAME) in what a pod says, and nothing in what an image says."""
    return tuple(word.replace("$", "$$") for word in words)
