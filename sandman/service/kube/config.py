"""Which API server, and as whom: kubeconfig or the pod's own account, as a frozen value.

The only place that touches the package `kubernetes`, whose client is synchronous and spends
0.85 ms on decoding one pod; its reading of kubeconfig files is good, and that is all it does here.
"""

from __future__ import annotations

import dataclasses
import os
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandman.service.kube import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_REREAD_S = 60.0
"""Seconds for which a bearer token is kept. Projected tokens rotate about hourly, ten minutes or
more before they expire; a minute costs nothing and leaves a wide margin."""


@dataclasses.dataclass(frozen=True)
class Target:
    """An API server and the caller's credentials.

    Args:
        base_url: scheme, host and port, without a slash at the end.
        ssl: for https; holds the CA and the client's certificate.
        read_token: gives the bearer token that is valid now, "" for none. May read a file.
        namespace: the namespace that the credentials belong to.
        server_name: name to expect in the server's certificate, where it is not the host's.
    """

    base_url: str
    ssl: ssl.SSLContext | None = dataclasses.field(default=None, repr=False)
    read_token: Callable[[], str] = dataclasses.field(default=lambda: "", repr=False)
    namespace: str = "default"
    server_name: str | None = None


def load(
    context: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    account: Path = SERVICE_ACCOUNT,
    kubeconfig: str | None = None,
) -> Target:
    """The pod's own account inside of a cluster, else the kubeconfig (KUBECONFIG or ~/.kube/config).

    Args:
        context: name of a context in the kubeconfig; the current one if None. Given, it means that
            a kubeconfig is wanted even inside of a cluster, as does `kubeconfig`.
        environ: where KUBERNETES_SERVICE_HOST and _PORT are looked up.
        account: directory with `token`, `ca.crt` and `namespace`.
        kubeconfig: path of the file, instead of the usual places.

    Raises:
        OSError: a file named by the configuration cannot be read.
        ConfigurationError: the kubeconfig is missing or makes no sense.
    """
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    wants_file = context is not None or kubeconfig is not None
    if host and not wants_file and (account / "token").exists():
        return _from_account(host, environ.get("KUBERNETES_SERVICE_PORT", "443"), account)
    return _from_kubeconfig(context, kubeconfig)


def _from_account(host: str, port: str, account: Path) -> Target:
    bracketed = f"[{host}]" if ":" in host else host
    namespace = account / "namespace"
    return Target(
        base_url=f"https://{bracketed}:{port}",
        ssl=ssl.create_default_context(cafile=str(account / "ca.crt")),
        read_token=lambda: (account / "token").read_text("utf-8").strip(),
        namespace=namespace.read_text("utf-8").strip() if namespace.exists() else "default",
    )


def _from_kubeconfig(context: str | None, path: str | None) -> Target:
    # Imported here: it takes half a second, and a pod inside of a cluster never needs it.
    from kubernetes import client, config  # noqa: PLC0415

    settings: Any = client.Configuration()
    reader: Any = config
    try:
        reader.load_kube_config(path, context=context, client_configuration=settings)
        contexts, current = reader.list_kube_config_contexts(path)
    except config.ConfigException as error:
        raise errors.ConfigurationError(str(error)) from error
    chosen = next((item for item in contexts if item["name"] == context), current)
    return Target(
        base_url=str(settings.host).rstrip("/"),
        ssl=_context_of(settings) if str(settings.host).startswith("https:") else None,
        read_token=lambda: _token_of(settings),
        namespace=chosen["context"].get("namespace") or "default",
        server_name=settings.tls_server_name or None,
    )


def _context_of(settings: Any) -> ssl.SSLContext:  # noqa: ANN401 - an untyped package's object
    context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
    if settings.cert_file:
        context.load_cert_chain(settings.cert_file, settings.key_file)
    if not settings.verify_ssl:
        context.check_hostname = False  # on purpose: the kubeconfig says so; none is read in a pod
        context.verify_mode = ssl.CERT_NONE  # on purpose: as above
    return context


def _token_of(settings: Any) -> str:  # noqa: ANN401
    """The bearer token; the package's own hook renews it where a plugin made it.

    Two names: not all releases of the package call the entry alike.
    """
    value = settings.get_api_key_with_prefix("BearerToken", "authorization") or ""
    return str(value).removeprefix("Bearer ").strip()


class TokenCache:
    """The token of a Target, read again at most once in TOKEN_REREAD_S.

    Args:
        read: gives the token that is valid now.
        clock: monotonic seconds.
    """

    def __init__(self, read: Callable[[], str], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._token = ""
        self._until = float("-inf")

    def current(self) -> str:
        """The token to send now; the last good one while its file cannot be read."""
        now = self._clock()
        if now >= self._until:
            try:
                self._token = self._read()
            except OSError:
                if not self._token:
                    raise
            self._until = now + TOKEN_REREAD_S
        return self._token

    def forget(self) -> None:
        """Read it again next time: the server did not accept it."""
        self._until = float("-inf")
