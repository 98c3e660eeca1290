"""What the load is put on: a file, the environment, or the gateway of local mode that runs."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sandman import local, names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ENV_KEYS = "SANDMAN_LOAD_KEYS"
"""`tenant=key,tenant=key`: keys are no business of who lists processes."""


class TargetError(ValueError):
    """There is no such target, or it may not be used; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tenant:
    """Who calls."""

    name: str
    key: str = dataclasses.field(repr=False)
    weight: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class ApiServer:
    """A Kubernetes API server that may be asked for its metrics: by a token, a client's certificate, or both."""

    url: str
    ca: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    certificate: str | None = None
    key: str | None = None

    def trust(self) -> ssl.SSLContext:
        """What trusts it, with our certificate where there is one."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate:
            context.load_cert_chain(self.certificate, self.key)
        return context

    def headers(self) -> dict[str, str]:
        """Who we are."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A gateway, of one or several replicas, and what may be asked of it.

    Args:
        urls: base addresses; callers spread over them.
        ca: PEM text of its authority; None: the machine's own.
        tenants: at least one.
        pool, image: what is asked for; one of both at least.
        metrics: addresses of the replicas' metrics; those of `urls` else.
        server_name: the name in its certificate, where it is reached by another.
        api_server: where its metrics may be read.
    """

    urls: tuple[str, ...]
    ca: str | None
    tenants: tuple[Tenant, ...]
    pool: str | None = None
    image: str | None = None
    metrics: tuple[str, ...] = ()
    server_name: str | None = None
    api_server: ApiServer | None = None

    def trust(self) -> ssl.SSLContext:
        """What trusts it, and nobody else where an authority was named."""
        return ssl.create_default_context(cadata=self.ca)

    def metrics_urls(self) -> tuple[str, ...]:
        """Where each replica tells its metrics."""
        return self.metrics or tuple(f"{url}/metrics" for url in self.urls)


def read(path: Path) -> Target:
    """A target file (docs/loadtest.md).

    Raises:
        TargetError: it is none.
    """
    try:
        told = json.loads(path.read_text())
        return _from_document(told, path.parent)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TargetError(f"{path} is no target: {error!r}") from error


def _from_document(told: Mapping[str, Any], beside: Path) -> Target:
    urls = told.get("base_urls") or [told["base_url"]]
    ca = told.get("ca")
    tenants = [
        Tenant(name, one["key"], float(one.get("weight", 1)))
        if isinstance(one, dict)
        else Tenant(name, one)
        for name, one in told["tenants"].items()
    ]
    server = told.get("api_server")
    return Target(
        urls=tuple(str(url).rstrip("/") for url in urls),
        ca=(beside / ca).read_text() if ca else None,
        tenants=tuple(tenants),
        pool=told.get("pool"),
        image=told.get("image"),
        metrics=tuple(told.get("metrics", ())),
        server_name=told.get("server_name"),
        api_server=_api_server(server, beside) if server else None,
    )


def _api_server(told: Mapping[str, Any], beside: Path) -> ApiServer:
    files = {
        name: str(beside / told[name]) if told.get(name) else None
        for name in ("ca", "certificate", "key")
    }
    return ApiServer(url=str(told["url"]).rstrip("/"), token=told.get("token"), **files)


def from_environment(environ: Mapping[str, str], urls: Sequence[str] = ()) -> Target:
    """What the environment names; nothing: the gateway of local mode that runs for this user.

    Raises:
        TargetError: there is none, or no key for it.
    """
    given = tuple(url.rstrip("/") for url in urls) or tuple(
        filter(None, [environ.get(names.ENV_URL)])
    )
    if not given:
        found = local.read(environ)
        if found is None:
            raise TargetError(
                f"no target: say --target or --base-url, set {names.ENV_URL}, or start `sandman serve --local`"
            )
        return Target((found.url,), found.ca, (Tenant("local", found.token),), image="host")
    tenants = keys(environ.get(ENV_KEYS, ""))
    if not tenants and (key := environ.get(names.ENV_TOKEN)):
        tenants = (Tenant("tenant", key),)
    if not tenants:
        raise TargetError(f"no key: set {ENV_KEYS} or {names.ENV_TOKEN}")
    ca = environ.get(names.ENV_CA)
    return Target(given, Path(ca).read_text() if ca else None, tenants)


def keys(text: str) -> tuple[Tenant, ...]:
    """Tenants of `name=key` or `name:weight=key`, with commas between.

    Raises:
        TargetError: it is none.
    """
    found = []
    for part in filter(None, text.split(",")):
        name, is_pair, key = part.partition("=")
        name, _, weight = name.partition(":")
        try:
            found.append(Tenant(name, key, float(weight or 1)))
        except ValueError:
            is_pair = ""
        if not (is_pair and name and key):
            raise TargetError(f"{ENV_KEYS} is `tenant=key` or `tenant:weight=key`, with commas")
    return tuple(found)


def check(target: Target, mine: Sequence[str]) -> None:
    """Refuse what is not this machine unless it was named once more, letter by letter.

    Raises:
        TargetError: a host that nobody claimed, plain HTTP beyond the loopback, or nothing to ask for.
    """
    others = [] if target.api_server is None else [target.api_server.url]
    for url in [*target.urls, *target.metrics_urls(), *others]:
        check_host(url, mine)
    if target.pool is None and target.image is None:
        raise TargetError("nothing to ask for: say --image or --pool")


def check_host(url: str, mine: Sequence[str]) -> None:
    """The same of one address."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme not in ("https", "http") or not host:
        raise TargetError(f"{url} is no address of a gateway")
    if is_loopback(host):
        return
    if parts.scheme != "https":
        raise TargetError(f"{url} would carry keys in the open")
    if host not in mine:
        raise TargetError(
            f"{host} is not this machine. Load harms who else works there: say --mine {host} if it is yours"
        )


def is_loopback(host: str) -> bool:
    """Whether that is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
