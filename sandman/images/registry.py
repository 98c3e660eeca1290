"""Manifests and configurations from a registry (OCI distribution 1.1, Docker's before it)."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from sandman.images import platforms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sandman.images.credentials import Credentials, Login
    from sandman.images.reference import Reference

TIMEOUT_S = 30.0
"""Seconds for a call to a registry, as docker's own."""
MAX_BYTES = 4 * 1024 * 1024
"""Of a manifest or configuration; registries themselves take no larger manifest."""
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_CHALLENGE = re.compile(r'([a-zA-Z]+)="([^"]*)"')


class ImageError(Exception):
    """An image cannot be looked up; the text names it and says why."""


class Found(NamedTuple):
    """What an image runs. `digest` is what its reference led to: of the index, where there is one."""

    digest: str
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    stop_signal: str = ""


class Whole(NamedTuple):
    """An image as its registry has it: its digest, its manifest and its configuration."""

    digest: str
    manifest: Mapping[str, Any]
    configuration: Mapping[str, Any]


class Registry:
    """Looks images up, with the user's credentials.

    Args:
        client: does the calls; its certificates and proxies hold.
        credentials: who the user is.
        platform: which image of an index is meant.
    """

    def __init__(
        self, client: httpx.Client, credentials: Credentials, platform: platforms.Platform
    ) -> None:
        self._client = client
        self._credentials = credentials
        self._platform = platform
        self._authorizations: dict[tuple[str, str], str] = {}

    def find(self, image: str, reference: Reference) -> Found:
        """What the image runs.

        Args:
            image: the text of the reference, for errors.
            reference: what it means.

        Raises:
            ImageError: no such image, not for this user, not for this platform, or no answer.
        """
        try:
            return self._find(reference)
        except (httpx.HTTPError, OSError, ValueError, LookupError) as error:
            raise ImageError(f"{image}: {str(error) or type(error).__name__}") from error

    def _find(self, reference: Reference) -> Found:
        whole = self.read(reference)
        return self._read(whole.digest, whole.configuration)

    def read(self, reference: Reference) -> Whole:
        """All that is told of an image.

        Raises:
            httpx.HTTPError, OSError, ValueError, LookupError: as `find`, which makes one kind of them.
        """
        accept = ", ".join((*_INDEXES, *_MANIFESTS))
        kind, body = self._get(reference, f"manifests/{reference.version}", accept)
        digest = reference.digest or _sha256(body)
        _check(body, reference.digest)
        document = _object(body)
        if kind in _INDEXES or "manifests" in document:
            entry = platforms.choose(document.get("manifests") or [], self._platform)
            if entry is None:
                raise LookupError(f"it has no image for {self._platform}")
            _, body = self._get(reference, f"manifests/{entry['digest']}", ", ".join(_MANIFESTS))
            _check(body, entry["digest"])
            document = _object(body)
        config = document.get("config")
        if not isinstance(config, dict) or "digest" not in config:
            raise ValueError("its manifest is of a kind that is too old, or is no image")
        _, body = self._get(reference, f"blobs/{config['digest']}", "*/*")
        _check(body, config["digest"])
        return Whole(digest, document, _object(body))

    def blob(self, reference: Reference, digest: str) -> Iterator[bytes]:
        """A blob, of any size, as it comes; what it is nobody has checked.

        Raises:
            httpx.HTTPError, LookupError: no such blob, or no answer.
        """
        url = f"{reference.base_url}/v2/{reference.repository}/blobs/{digest}"
        authorization = self._authorizations.get((reference.host, reference.repository))
        headers = {"authorization": authorization} if authorization else {}
        with self._client.stream(
            "GET", url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True
        ) as response:
            if response.status_code != httpx.codes.OK:
                raise LookupError(f"the registry answers {response.status_code}")
            yield from response.iter_raw()

    def _read(self, digest: str, configuration: Mapping[str, Any]) -> Found:
        # A manifest without an index is of one platform, which only its configuration tells.
        built_for = (configuration.get("os"), configuration.get("architecture"))
        if built_for != (self._platform.os, self._platform.architecture):
            raise LookupError(f"it is for {'/'.join(map(str, built_for))}, not {self._platform}")
        told = configuration.get("config") or {}
        return Found(
            digest,
            tuple(told.get("Entrypoint") or ()),
            tuple(told.get("Cmd") or ()),
            told.get("StopSignal") or "",
        )

    # --- calls ---

    def _get(self, reference: Reference, path: str, accept: str) -> tuple[str, bytes]:
        url = f"{reference.base_url}/v2/{reference.repository}/{path}"
        key = (reference.host, reference.repository)
        status, headers, body = self._fetch(url, accept, self._authorizations.get(key))
        if status == httpx.codes.UNAUTHORIZED:
            challenge = headers.get("www-authenticate", "")
            self._authorizations[key] = self._authorize(reference, challenge)
            status, headers, body = self._fetch(url, accept, self._authorizations[key])
        if status in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
            raise LookupError(
                "the registry refuses it: is there such an image, and are you logged in?"
            )
        if status == httpx.codes.NOT_FOUND:
            raise LookupError("there is none")
        if status != httpx.codes.OK:
            raise LookupError(f"the registry answers {status}")
        return headers.get("content-type", "").partition(";")[0].strip(), body

    def _fetch(
        self, url: str, accept: str, authorization: str | None
    ) -> tuple[int, httpx.Headers, bytes]:
        headers = {"accept": accept} | ({"authorization": authorization} if authorization else {})
        # Blobs are often elsewhere; httpx takes the authorization off on the way to another host.
        with self._client.stream(
            "GET", url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True
        ) as response:
            data = bytearray()
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) > MAX_BYTES:
                    raise ValueError(f"an answer of over {MAX_BYTES} bytes")
            return response.status_code, response.headers, bytes(data)

    def _authorize(self, reference: Reference, challenge: str) -> str:
        """The Authorization for a repository, as its registry asks for it."""
        login = self._credentials.find(reference.host, reference.repository)
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "basic":
            if login is None:
                raise LookupError("the registry wants a login: docker login does that")
            return _basic(login)
        asked = dict(_CHALLENGE.findall(rest))
        realm = asked.get("realm", "")
        if scheme.lower() != "bearer" or not realm:
            raise LookupError(f"the registry asks for a login of an unknown kind: {scheme}")
        if urlsplit(realm).scheme != "https" and reference.base_url.startswith("https"):
            raise LookupError("the registry would have the login sent without TLS")
        scope = asked.get("scope") or f"repository:{reference.repository}:pull"
        return f"Bearer {self._token(realm, asked.get('service', ''), scope, login)}"

    def _token(self, realm: str, service: str, scope: str, login: Login | None) -> str:
        query = {"service": service, "scope": scope}
        if login is not None and login.identity_token:
            form = {
                **query,
                "grant_type": "refresh_token",
                "refresh_token": login.identity_token,
                "client_id": "sandman",
            }
            response = self._client.post(realm, data=form, timeout=TIMEOUT_S)
        else:
            headers = {} if login is None else {"authorization": _basic(login)}
            response = self._client.get(realm, params=query, headers=headers, timeout=TIMEOUT_S)
        if response.status_code != httpx.codes.OK:
            raise LookupError(f"the registry's login answers {response.status_code}")
        answer = _object(response.content)
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str):
            raise LookupError("the registry's login gives no token")  # noqa: TRY004
        return token


def _basic(login: Login) -> str:
    return f"Basic {base64.b64encode(f'{login.user}:{login.password}'.encode()).decode()}"


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except RecursionError:
        raise ValueError("an answer that makes no sense") from None
    if not isinstance(value, dict):
        raise ValueError("an answer that makes no sense")  # noqa: TRY004
    return value


def _sha256(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def _check(body: bytes, digest: str | None) -> None:
    if digest is None:
        return
    name, _, wanted = digest.partition(":")
    # not secret: of an image
    if name not in {"sha256", "sha512"} or hashlib.new(name, body).hexdigest() != wanted:
        raise ValueError("what the registry sent is not what its digest says")
