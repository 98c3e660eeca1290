"""The user's own credentials for registries: docker's file with its helpers, and podman's."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sandman.images.reference import HUB

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HELPER_S = 30.0
"""Seconds for a credential helper, which may ask a cloud or a keychain."""
_HUB_KEY = "https://index.docker.io/v1/"
_TOKEN_USER = "<token>"  # noqa: S105 - how helpers say that the secret is an identity token


class Login(NamedTuple):
    """User and password, or an identity token that is exchanged for another."""

    user: str = ""
    password: str = ""
    identity_token: str = ""


class Credentials:
    """Reads the files anew at each question: they are small, and asked for few times.

    Args:
        environ: DOCKER_CONFIG, REGISTRY_AUTH_FILE, XDG_RUNTIME_DIR and HOME say where they are.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ

    def find(self, host: str, repository: str) -> Login | None:
        """The login for a repository, the most specific one; None: nobody has logged in there.

        Raises:
            OSError: a helper that a file names does not answer.
            ValueError: a file cannot be read.
        """
        for path in self._files():
            if path.is_file() and (found := self._of_file(path, host, repository)) is not None:
                return found
        return None

    def _files(self) -> Iterator[Path]:
        home = Path(self._environ.get("HOME", "/"))
        if explicit := self._environ.get("REGISTRY_AUTH_FILE"):
            yield Path(explicit)
        if runtime := self._environ.get("XDG_RUNTIME_DIR"):
            yield Path(runtime) / "containers/auth.json"
        yield Path(self._environ.get("DOCKER_CONFIG", home / ".docker")) / "config.json"

    def _of_file(self, path: Path, host: str, repository: str) -> Login | None:
        try:
            config = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from None
        key = _HUB_KEY if host == HUB else host
        helpers = config.get("credHelpers") or {}
        helper = helpers.get(key) or helpers.get(host) or config.get("credsStore")
        if helper and (found := self._ask(str(helper), key)) is not None:
            return found
        auths = config.get("auths") or {}
        for name in _names(host, repository):
            for entry in (auths.get(name), auths.get(f"https://{name}")):
                if isinstance(entry, dict) and (login := _login(path, entry)) is not None:
                    return login
        return None

    def _ask(self, helper: str, key: str) -> Login | None:
        """What docker-credential-<helper> says; None: it has nothing."""
        program = f"docker-credential-{helper}"
        try:
            done = subprocess.run(  # noqa: S603 - the helper that the user's own configuration names
                [program, "get"],
                input=key.encode(),
                capture_output=True,
                check=False,
                timeout=HELPER_S,
                env=dict(self._environ),
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{program} does not answer") from error
        if done.returncode:
            return None
        answer = json.loads(done.stdout)
        user, secret = str(answer.get("Username", "")), str(answer.get("Secret", ""))
        return Login(identity_token=secret) if user == _TOKEN_USER else Login(user, secret)


def _names(host: str, repository: str) -> Iterator[str]:
    """Under which names a login may stand, the most specific first."""
    parts = repository.split("/")
    for length in range(len(parts), 0, -1):
        yield "/".join([host, *parts[:length]])
    yield host
    if host == HUB:
        yield "index.docker.io/v1/"


def _login(path: Path, entry: dict[str, Any]) -> Login | None:
    if token := entry.get("identitytoken"):
        return Login(identity_token=str(token))
    if text := entry.get("auth"):
        try:
            user, _, password = base64.b64decode(text, validate=True).decode().partition(":")
        except ValueError:
            raise ValueError(f"{path}: an `auth` in it is not base64") from None
        return Login(user, password.strip("\0"))
    if entry.get("username"):
        return Login(str(entry["username"]), str(entry.get("password", "")))
    return None
