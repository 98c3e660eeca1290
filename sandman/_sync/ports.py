# Written by scripts/unasync.py from sandman/_async/ports.py: change that, not this.
# ruff: noqa: RUF100, SIM117 - `async with` and `with` do not join, their twins could
"""HTTP to a server inside a sandbox: an httpx transport that is bound to its port."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from sandman import names
from sandman._core import blocking as anyio
from sandman._core import faults
from sandman._sync.lanes import CLOSE_LIMIT_S
from sandman._sync.transport import MOST_ERROR_BYTES
from sandman.errors import BadRequestError, SandmanError

if TYPE_CHECKING:
    import ssl

    from sandman._core.config import Settings


class PortTransport(httpx.BaseTransport):
    """Sends requests for one port and no others: the token goes nowhere else, whatever redirects say.

    What the server answers comes back as it is. What Sandman itself has to say is raised: nothing
    listens, the sandbox is gone. Failures of the way there are httpx's own. Nothing is repeated.

    Args:
        settings: of the client.
        trust: the gateway's certificates.
        base: the port's URL.
        sandbox: its id, for errors.
    """

    def __init__(self, settings: Settings, trust: ssl.SSLContext, base: str, sandbox: str) -> None:
        self._settings = settings
        self._base = httpx.URL(base)
        self._sandbox = sandbox
        self._inner = httpx.HTTPTransport(verify=trust, trust_env=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request.

        Raises:
            BadRequestError: it is for another place than the port.
            PortClosedError: nothing listens there; nothing was sent.
            SandmanError: the sandbox or the way to it failed.
            httpx.TransportError: the way to the gateway did.
        """
        if not is_below(self._base, request.url):
            raise BadRequestError(f"{request.url} is not at {self._base}", field="url")
        request.headers["authorization"] = f"Bearer {self._settings.bearer}"
        if self._settings.server_name is not None:
            request.extensions["sni_hostname"] = self._settings.server_name
        response = self._inner.handle_request(request)
        if response.is_error and names.HEADER_PORT not in response.headers:
            raise self._refusal(response)
        return response

    def close(self) -> None:
        """Close the connections."""
        self._inner.close()

    def _refusal(self, response: httpx.Response) -> SandmanError:
        body = b""
        try:
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > MOST_ERROR_BYTES:
                    break
        finally:
            with anyio.move_on_after(CLOSE_LIMIT_S, shield=True):
                response.close()
        error = faults.from_answer(response, body)
        error.sandbox = error.sandbox or self._sandbox
        return error


def is_below(base: httpx.URL, url: httpx.URL) -> bool:
    """Whether a URL is that of the port, or of something on it."""
    same = (url.scheme, url.host, url.port) == (base.scheme, base.host, base.port)
    path, prefix = url.raw_path.partition(b"?")[0], base.raw_path.rstrip(b"/")
    return same and (path == prefix or path.startswith(prefix + b"/"))


def port_path(port: int, path: str) -> str:
    """Below a sandbox's path: the port's, and what is on it.

    Raises:
        BadRequestError: there is no such port, or the path is not one.
    """
    if names.port_number(str(port)) is None:
        raise BadRequestError("a port is a number of 1 to 65535", field="port")
    if not path.startswith("/"):
        raise BadRequestError("a path on a port begins with a slash", field="path")
    return f"/ports/{port}{path}"
