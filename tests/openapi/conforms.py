"""Whatever a flow test asks of a gateway, the answer's status and reason are among those that are described."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from gateway.openapi.document import OPERATIONS
from sandman import names

if TYPE_CHECKING:
    import httpx

    from gateway.openapi.operation import Operation

_PATTERNS = [
    (re.compile(re.sub(r"{\w+}", "[^/]+", one.path.replace("{path}", ".*")), re.DOTALL), one)
    for one in sorted(OPERATIONS, key=lambda one: one.path.count("{"))
]
ELSEWHERE = {431: "bad_request"}
"""Of any call, before it is known which."""


def find(method: str, path: str) -> Operation | None:
    """The operation that is meant; None: there is none, and 404 or 405 is right."""
    of_path = [one for pattern, one in _PATTERNS if pattern.fullmatch(path)]
    least = min((one.path.count("{") for one in of_path), default=0)
    return next(
        (one for one in of_path if one.method == method and one.path.count("{") == least), None
    )


async def conforms(response: httpx.Response) -> None:
    """A hook of httpx."""
    operation = find(response.request.method, response.request.url.path)
    if operation is None or 0 in operation.answers or response.status_code in operation.answers:
        return
    told = f"{operation.name} answered {response.status_code}"
    assert response.headers["content-type"] == names.MEDIA_PROBLEM, told
    described = operation.problems.get(response.status_code)
    if response.request.method == "HEAD":
        assert described or response.status_code in ELSEWHERE, told
        return
    reason = json.loads(await response.aread())["reason"]
    allowed = {*(described or ()), ELSEWHERE.get(response.status_code)}
    assert reason in allowed, f"{told} {reason}"
