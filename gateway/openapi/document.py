"""The whole document."""

from __future__ import annotations

import functools
import json

from gateway.openapi import asked, commands, files, problems, sandboxes, shown
from gateway.openapi.operation import path_parameters, problem
from sandman.version import __version__

OPERATIONS = (*sandboxes.OPERATIONS, *commands.OPERATIONS, *files.OPERATIONS)

WEBSOCKETS = {
    "/v1/sandboxes/{id}/processes/{exec_id}/terminal": "the terminal of a command",
    "/v1/sandboxes/{id}/ports/{port}/{path}": "a server in the sandbox",
}
"""OpenAPI has no word for them."""

_ABOUT = """Sandboxes for reinforcement learning of agents, on a shared Kubernetes cluster, in unmodified images.
docs/api.md says what each field and answer means. HEAD of what the gateway itself answers is GET without the body. Of any call
a line and headers over 64 KiB are 431, a method that the path has not is 405, what is no HTTP is 400."""


def document() -> dict[str, object]:
    """As OpenAPI 3.1 has it."""
    paths: dict[str, dict[str, object]] = {}
    shared = _Shared()
    for one in OPERATIONS:
        item = paths.setdefault(one.path, {})
        if parameters := path_parameters(one.path):
            item["parameters"] = parameters
        told = {str(status): shared.ref(status, found) for status, found in one.problems.items()}
        item[one.method.lower()] = one.render(told)
    schemas = {
        "Problem": problems.PROBLEM,
        **asked.SCHEMAS,
        **shown.SCHEMAS,
        **commands.SCHEMAS,
        **files.SCHEMAS,
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sandman",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": schemas,
            "responses": shared.responses,
        },
        "x-websockets": WEBSOCKETS,
    }


class _Shared:
    """Answers that many operations have, each told once."""

    def __init__(self) -> None:
        self.responses: dict[str, object] = {}
        self._names: dict[tuple[int, tuple[str, ...]], str] = {}

    def ref(self, status: int, reasons: tuple[str, ...]) -> dict[str, str]:
        """Where the answer for these errors is."""
        name = self._names.get((status, reasons))
        if name is None:
            count = sum(known == status for known, _ in self._names)
            name = self._names[status, reasons] = f"Problem{status}.{count + 1}"
            self.responses[name] = problem(status, reasons)
        return {"$ref": f"#/components/responses/{name}"}


@functools.cache
def text() -> bytes:
    """The same as it is served."""
    return json.dumps(document(), separators=(",", ":")).encode("ascii")
