"""What images run when a pod does not say: found by `sandman inject`, kept in an annotation of the pod
template, read by the webhook, which asks no registry.

Standard library only.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Entrypoint(NamedTuple):
    """What one container's image says.

    `image` is the reference that was resolved, as it stands in the pod; `digest` what it was then.
    """

    image: str
    digest: str
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()


def dump(found: Mapping[str, Entrypoint]) -> str:
    """The annotation's text; `found` by container name."""
    values = {
        name: {
            "image": one.image,
            "digest": one.digest,
            "entrypoint": list(one.entrypoint),
            "cmd": list(one.cmd),
        }
        for name, one in sorted(found.items())
    }
    return json.dumps(values, separators=(",", ":"))


def load(text: str) -> dict[str, Entrypoint]:
    """What the annotation says, by container name.

    Raises:
        ValueError: it is not what `dump` writes.
    """
    try:
        values = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one kind of failure for callers
    return {name: _one(name, value) for name, value in values.items()}


def _one(name: str, value: object) -> Entrypoint:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not an object")  # noqa: TRY004
    image, digest = value.get("image"), value.get("digest", "")
    if not isinstance(image, str) or not isinstance(digest, str):
        raise ValueError(f"{name} names no image")  # noqa: TRY004
    return Entrypoint(image, digest, _words(name, value, "entrypoint"), _words(name, value, "cmd"))


def _words(name: str, value: Mapping[str, object], member: str) -> tuple[str, ...]:
    words = value.get(member) or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"{member} of {name} is not a list of strings")
    return tuple(words)
