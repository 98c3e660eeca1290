"""Which gateway is meant, and as whom: arguments first, then the environment, then a context of `sandman login`,
then the local mode of this user.

A token goes only to the gateway that it was given for: what a context holds is used with its own address alone.
"""

from __future__ import annotations

import dataclasses
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from sandman import contexts, local, names
from sandman._core.faults import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

Authority = str | os.PathLike[str] | ssl.SSLContext | None
"""Certificates to trust: path of a PEM file, or made already."""

ENV_SERVER_NAME = f"{names.ENV_PREFIX}SERVER_NAME"
"""Name in the gateway's certificate, where the URL has another (an address, a port-forward)."""

GIVEN = "the token given"
"""Origin of a token that arguments name."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A gateway and how to call it, as far as anybody has said. `origin` says to people who named the token."""

    url: str = ""
    token: str = ""
    ca: Authority = None
    server_name: str | None = None
    token_file: Path | None = None
    origin: str = GIVEN

    def or_else(self, other: Place) -> Place:
        """What is said here, and of the rest what is said there."""
        has_token = bool(self.token or self.token_file)
        by = self if has_token else other
        return Place(
            url=self.url or other.url, token=by.token, token_file=by.token_file, origin=by.origin,
            ca=self.ca or other.ca, server_name=self.server_name or other.server_name,
        )  # fmt: skip


def find(given: Place, context: str | None, environ: Mapping[str, str]) -> Place:
    """What is meant.

    Args:
        given: what arguments say.
        context: name of the context that they say.
        environ: the environment.

    Raises:
        ConfigurationError: arguments contradict each other, or a context cannot be had.
    """
    if given.url and context:
        raise ConfigurationError(
            "say either which gateway (url=, --url) or which context (context=, --context)",
            field="context",
        )
    said = _environment(environ)
    if given.url:
        return given.or_else(said)
    if context:
        return given.or_else(_named(context, environ))
    if said.url:
        return given.or_else(said)
    chosen = environ.get(contexts.ENV_CONTEXT, "") or _read(environ).current
    if chosen and chosen != contexts.LOCAL:
        return given.or_else(said).or_else(_named(chosen, environ))
    # Local mode as a whole, or not at all: what the environment says is another gateway's.
    if environ.get(contexts.ENV_CONTEXT):
        return given.or_else(_named(contexts.LOCAL, environ))
    return given.or_else(_local(environ) or said)


def _environment(environ: Mapping[str, str]) -> Place:
    path, token = environ.get(names.ENV_TOKEN_FILE, ""), environ.get(names.ENV_TOKEN, "")
    return Place(
        url=environ.get(names.ENV_URL, ""),
        token=token,
        token_file=Path(path) if path and not token else None,
        ca=environ.get(names.ENV_CA) or None,
        server_name=environ.get(ENV_SERVER_NAME) or None,
        origin=names.ENV_TOKEN_FILE if path and not token else names.ENV_TOKEN,
    )


def _named(name: str, environ: Mapping[str, str]) -> Place:
    try:
        found = _read(environ).get(name)
        if found is not None:
            return Place(
                url=found.url, token=found.token, ca=found.trust(), server_name=found.server_name,
                origin=f"context {name}",
            )  # fmt: skip
    except contexts.ContextsError as error:
        raise ConfigurationError(str(error), field="context") from None
    here = _local(environ)
    if here is None:
        raise ConfigurationError(
            "no gateway of local mode runs on this machine: sandman serve --local", field="context"
        )
    return here


def _read(environ: Mapping[str, str]) -> contexts.Contexts:
    try:
        return contexts.read(environ)
    except contexts.ContextsError as error:
        raise ConfigurationError(str(error), field="context") from None


def _local(environ: Mapping[str, str]) -> Place | None:
    here = local.read(environ)
    if here is None:
        return None
    return Place(url=here.url, token=here.token, ca=here.trust(), origin="local mode")
