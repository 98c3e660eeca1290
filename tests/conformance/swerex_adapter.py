"""SWE-ReX's server with the runtime of our adapter (`sandman.adapters.swerex`) where it has its own machine.

Runs in the virtual environment that `swerex_run` makes.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI, File, Form, UploadFile
from swerex import server
from swerex.runtime import abstract

from sandman._async.sandbox import Sandbox
from sandman._async.transport import Transport
from sandman._core.config import Settings
from sandman._core.values import SandboxInfo
from sandman.adapters.swerex import SandmanRuntime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_BOX = SandboxInfo(id="direct", state="ready")
PATIENCE = 10.0
"""Times the limits that callers give. SWE-ReX's tests count on a pager being up a tenth of a second
after it was asked for, which a machine under load does not keep."""
_GATEWAY = re.compile(r"^/v1/sandboxes/direct(?=/)")


class Direct(Transport):
    """The way to a daemon without a gateway: only the paths of its calls are others."""

    async def _persist(self, call, *, read):
        call.path = _GATEWAY.sub("/v1", call.path)
        return await super()._persist(call, read=read)


class Runtime(SandmanRuntime):
    """The adapter, with patience."""

    def limit(self, asked):
        return None if asked.timeout is None else asked.timeout * PATIENCE


async def upload(
    file: UploadFile = File(...),  # noqa: B008 - how FastAPI is told
    target_path: str = Form(...),
    unzip: bool = Form(default=False),
) -> abstract.UploadResponse:
    """SWE-ReX's own upload writes on the server's machine and past the runtime."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "upload"
        path.write_bytes(await file.read())
        if unzip:
            source = Path(scratch) / "tree"
            with zipfile.ZipFile(path) as archive:
                archive.extractall(source)
            path = source
        request = abstract.UploadRequest(source_path=str(path), target_path=target_path)
        return await server.runtime.upload(request)


def application(url: str, token: str) -> FastAPI:
    """SWE-ReX's server over the daemon at this address."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        transport = Direct(Settings.load(url, token, environ={}))
        server.runtime = Runtime(Sandbox(transport, _BOX))
        yield
        await transport.aclose()

    app = server.app
    app.router.lifespan_context = lifespan
    app.router.routes = [one for one in app.router.routes if one.path != "/upload"]
    app.post("/upload")(upload)
    return app


def main() -> None:
    """Serve on a socket that was handed over."""
    server.AUTH_TOKEN = os.environ["SWEREX_TOKEN"]
    app = application(os.environ["CONFORMANCE_URL"], os.environ["CONFORMANCE_TOKEN"])
    uvicorn.run(app, fd=int(os.environ["SWEREX_FD"]), log_level="warning")


if __name__ == "__main__":
    main()
