"""Image references as text: their one full form, patterns that allow them, mirrors to pull them from. Pure."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DEFAULT_HOST = "docker.io"
_HUB_ALIASES = frozenset({"index.docker.io", "registry-1.docker.io"})


class Mirror(NamedTuple):
    """Images below `source` are pulled from below `target`."""

    source: str
    target: str


@functools.lru_cache(maxsize=4096)
def canonical(reference: str) -> str:
    """The reference as runtimes write it: with host, `library/` and tag; a digest alone where there is one,
    for a tag beside it says nothing.

    `debian` → `docker.io/library/debian:latest`, `r.example/a:1@sha256:…` → `r.example/a@sha256:…`
    """
    name, _, digest = reference.partition("@")
    host, path = _split_host(name)
    repository, _, tag = path.partition(":")
    return f"{host}/{repository}@{digest}" if digest else f"{host}/{repository}:{tag or 'latest'}"


def _split_host(name: str) -> tuple[str, str]:
    """Host and path. The first part is a host when it can be nothing else, as Docker has it."""
    host, slash, path = name.partition("/")
    if not slash or not (set(".:") & set(host) or host == "localhost" or host != host.lower()):
        host, path = DEFAULT_HOST, name
    if host in _HUB_ALIASES:
        host = DEFAULT_HOST
    if host == DEFAULT_HOST and "/" not in path:
        path = f"library/{path}"
    return host, path


# --- allowlists -----------------------------------------------------------------------------------


def is_allowed(reference: str, patterns: Iterable[str] | None) -> bool:
    """Whether one of the patterns is for this image; None allows all.

    In a pattern `*` stands for anything but a slash, `**` for anything. One without tag and digest is for
    all of them; one without a host is for Docker Hub, as in a reference.
    """
    if patterns is None:
        return True
    full = canonical(reference)
    return any(_compiled(pattern).fullmatch(full) for pattern in patterns)


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    if pattern == "**":
        return re.compile(r".*")
    name, at, digest = pattern.partition("@")
    # A star may stand for a host: what it is part of is taken to be one when a slash follows.
    first, slash, _ = name.partition("/")
    host, path = name.split("/", 1) if slash and "*" in first else _split_host(name)
    path, colon, tag = path.partition(":")
    tail = f"@{_glob(digest)}" if at else f":{_glob(tag)}" if colon else r"[:@][^/]*"
    return re.compile(f"{_glob(host)}/{_glob(path)}{tail}")


def _glob(text: str) -> str:
    parts = re.split(r"(\*+)", text)
    return "".join(
        ("[^/]*" if part == "*" else ".*") if part.startswith("*") else re.escape(part)
        for part in parts
    )


# --- mirrors --------------------------------------------------------------------------------------


def parse_mirrors(rules: Sequence[str]) -> tuple[Mirror, ...]:
    """Rules `source=target`, the most exact first.

    Raises:
        ValueError: one is no such rule, or a source has two.
    """
    mirrors = [_mirror(rule) for rule in rules]
    if len({one.source for one in mirrors}) < len(mirrors):
        raise ValueError("a source has two mirrors")
    return tuple(sorted(mirrors, key=lambda one: -len(one.source)))


def _mirror(rule: str) -> Mirror:
    source, equals, target = (part.strip().strip("/") for part in rule.partition("="))
    if not equals or not all(re.fullmatch(r"[\w.:/-]+", part) for part in (source, target)):
        raise ValueError(f"mirror {rule!r} is not of the form host[/path]=host[/path]")
    return Mirror(DEFAULT_HOST if source in _HUB_ALIASES else source, target)


def rewrite(reference: str, mirrors: Iterable[Mirror]) -> str:
    """Where the image is pulled from; as it was given when no rule is for it."""
    full = canonical(reference)
    for one in mirrors:
        if full.startswith(f"{one.source}/"):
            return one.target + full[len(one.source) :]
    return reference
