"""Which manifest of an index is meant. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Platform(NamedTuple):
    """Operating system and architecture, in the registry's words, which are Go's and Kubernetes'."""

    os: str = "linux"
    architecture: str = "amd64"
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in self if part)


def parse(text: str) -> Platform:
    """`os/architecture` or `os/architecture/variant`.

    Raises:
        ValueError: something else.
    """
    parts = text.split("/")
    if not 2 <= len(parts) <= 3 or not all(parts):
        raise ValueError(f"{text!r} is not a platform: write linux/amd64 or the like")
    return Platform(*parts)


def choose(manifests: Iterable[Mapping[str, Any]], wanted: Platform) -> Mapping[str, Any] | None:
    """The entry for this platform; None: there is none. Attestations stand in an index as of the
    platform unknown/unknown, and so are never meant."""
    fitting = [one for one in manifests if _fits(one.get("platform") or {}, wanted)]
    exact = [one for one in fitting if (one["platform"].get("variant") or "") == wanted.variant]
    return next(iter(exact or fitting), None)


def _fits(platform: Mapping[str, Any], wanted: Platform) -> bool:
    same = (platform.get("os"), platform.get("architecture")) == (wanted.os, wanted.architecture)
    return same and (not wanted.variant or platform.get("variant") in (None, "", wanted.variant))
