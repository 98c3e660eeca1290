"""One route and method: what may be asked, and every answer that there is to it. Pure."""

from __future__ import annotations

import dataclasses
import http
import re
from typing import TYPE_CHECKING, TypedDict

from gateway.openapi import schema as s
from sandman import names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.openapi.schema import Schema
    from sandman.errors import SandmanError

Reasons = frozenset["type[SandmanError]"]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What success looks like.

    Args:
        about: what it says.
        content: schemas by media type; none: there is no body.
        headers: descriptions by name.
    """

    about: str
    content: Mapping[str, Schema] = dataclasses.field(default_factory=dict)
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def render(self) -> dict[str, object]:
        """As OpenAPI has it."""
        shown: dict[str, object] = {"description": self.about}
        if self.content:
            shown["content"] = {kind: {"schema": one} for kind, one in self.content.items()}
        if self.headers:
            shown["headers"] = {
                name: {"description": about, "schema": {"type": "string"}}
                for name, about in self.headers.items()
            }
        return shown


NOTHING = Answer("done")
"""204."""


def told(schema: Schema, about: str = "done", **headers: str) -> Answer:
    """An answer in JSON; in names of headers `_` stands for `-`."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(about, {names.MEDIA_JSON: schema}, named)


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """One of the query or of the headers."""

    name: str
    schema: Schema
    about: str = ""
    place: str = "query"
    required: bool = False

    def render(self) -> dict[str, object]:
        """As OpenAPI has it."""
        shown: dict[str, object] = {"name": self.name, "in": self.place, "schema": self.schema}
        if self.about:
            shown["description"] = self.about
        if self.required:
            shown["required"] = True
        return shown


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What there is to know of one method of one path.

    Args:
        method: of HTTP.
        path: with its parameters in braces.
        summary: one line.
        answers: by status; 0: whatever comes.
        tag: the subject.
        reasons: each error that may come instead.
        parameters: of the query and the headers.
        body: schemas by media type.
        needs_body: it makes no sense without one.
        is_open: it takes no token.
    """

    method: str
    path: str
    summary: str
    answers: Mapping[int, Answer]
    tag: str = ""
    reasons: Reasons = frozenset()
    parameters: Sequence[Parameter] = ()
    body: Mapping[str, Schema] = dataclasses.field(default_factory=dict)
    needs_body: bool = False
    is_open: bool = False

    @property
    def name(self) -> str:
        """What generated clients call it."""
        parts = re.findall(r"[a-z_]+", self.path.removeprefix("/v1").lower())
        return "_".join([self.method.lower(), *parts])

    @property
    def problems(self) -> dict[int, tuple[str, ...]]:
        """Reasons of errors by status; none of a status whose answer is described otherwise."""
        by_status: dict[int, list[str]] = {}
        for one in self.reasons:
            by_status.setdefault(one.status, []).append(one.reason)
        return {k: tuple(sorted(v)) for k, v in sorted(by_status.items()) if k not in self.answers}

    def render(self, problems: Mapping[str, object]) -> dict[str, object]:
        """As OpenAPI has it.

        Args:
            problems: what to say of errors, by status.
        """
        answers: dict[str, object] = {
            _key(status): one.render() for status, one in sorted(self.answers.items())
        }
        shown: dict[str, object] = {
            "operationId": self.name,
            "tags": [self.tag],
            "summary": self.summary,
            "responses": {**answers, **problems},
        }
        if self.parameters:
            shown["parameters"] = [one.render() for one in self.parameters]
        if self.body:
            content = {kind: {"schema": one} for kind, one in self.body.items()}
            shown["requestBody"] = {"required": self.needs_body, "content": content}
        if self.is_open:
            shown["security"] = []
        return shown


class More(TypedDict, total=False):
    """What an operation may have besides, as those who make many take it."""

    tag: str
    reasons: Reasons
    parameters: Sequence[Parameter]
    body: Mapping[str, Schema]
    needs_body: bool
    is_open: bool


PATH_PARAMETERS: Mapping[str, Schema] = {
    "id": s.text("of a sandbox, request or reservation, as it was told"),
    "run": s.text("name of a run", pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"),
    "exec_id": s.text("of a command", pattern=r"^[A-Za-z0-9._-]{1,64}$"),
    "name": s.text("of a session", pattern=r"^[A-Za-z0-9._-]{1,64}$"),
    "port": s.whole("in the sandbox", 1, 65535),
    "path": s.text("whatever the server there has, slashes among it"),
}


def path_parameters(path: str) -> list[dict[str, object]]:
    """Those in its braces."""
    return [
        {"name": name, "in": "path", "required": True, "schema": PATH_PARAMETERS[name]}
        for name in re.findall(r"{(\w+)}", path)
    ]


def problem(status: int, reasons: Sequence[str]) -> dict[str, object]:
    """What is said of errors with this status."""
    schema: Schema = {
        "allOf": [s.ref("Problem"), {"properties": {"reason": {"enum": list(reasons)}}}]
    }
    return Answer(
        f"{http.HTTPStatus(status).phrase}: {', '.join(reasons)}",
        {names.MEDIA_PROBLEM: schema},
        {"Retry-After": "seconds"} if status in {429, 503} else {},
    ).render()


def _key(status: int) -> str:
    return str(status) if status else "default"
