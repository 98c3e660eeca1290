"""JSON Schemas in few words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Schema = dict[str, object]


def text(about: str = "", **more: object) -> Schema:
    """A string."""
    return _typed("string", about, more)


def number(about: str = "", **more: object) -> Schema:
    """A number."""
    return _typed("number", about, more)


def whole(about: str = "", least: int = 0, most: int | None = None) -> Schema:
    """A whole number from `least` to `most`."""
    return _typed(
        "integer", about, {"minimum": least} | ({} if most is None else {"maximum": most})
    )


def flag(about: str = "", **more: object) -> Schema:
    """true or false."""
    return _typed("boolean", about, more)


def seconds(about: str = "", most: float | None = None, *, zero: bool = False) -> Schema:
    """A time: more than 0, with `zero` also 0."""
    limits: Schema = {"minimum": 0} if zero else {"exclusiveMinimum": 0}
    if most is not None:
        limits["maximum"] = most
    return number(about, **limits)


def moment(about: str = "") -> Schema:
    """A time in RFC 3339."""
    return text(about, format="date-time")


def one_of(choices: Sequence[str], about: str = "") -> Schema:
    """One of these strings."""
    return text(about, enum=list(choices))


def listed(items: Schema, about: str = "", **more: object) -> Schema:
    """A list."""
    return _typed("array", about, {"items": items, **more})


def texts_by_name(about: str = "") -> Schema:
    """An object of strings."""
    return _typed("object", about, {"additionalProperties": {"type": "string"}})


def anything(about: str = "") -> Schema:
    """An object of which nothing is said."""
    return _typed("object", about, {})


def either(schema: Schema, *names: str) -> Schema:
    """With exactly one of these members."""
    return {**schema, "oneOf": [{"required": [name]} for name in names]}


def ref(name: str) -> Schema:
    """The schema of that name."""
    return {"$ref": f"#/components/schemas/{name}"}


def maybe(schema: Schema) -> Schema:
    """That or null."""
    kind = schema.get("type")
    if not isinstance(kind, str):
        return {"anyOf": [schema, {"type": "null"}]}
    choices = schema.get("enum")
    more = {"enum": [*choices, None]} if isinstance(choices, list) else {}
    return {**schema, "type": [kind, "null"], **more}


def answer(
    always: Mapping[str, Schema], sometimes: Mapping[str, Schema] | None = None, about: str = ""
) -> Schema:
    """What is told. Readers pass over members that they do not know."""
    properties = {**always, **(sometimes or {})}
    return _typed("object", about, {"required": list(always), "properties": properties})


def body(
    fields: Mapping[str, Schema], required: Mapping[str, Schema] | None = None, about: str = ""
) -> Schema:
    """What is asked. Null is the same as absent; other members are refused."""
    needed = dict(required or {})
    properties = {**needed, **{name: maybe(one) for name, one in fields.items()}}
    more: Schema = {"properties": properties, "additionalProperties": False}
    return _typed("object", about, more | ({"required": list(needed)} if needed else {}))


def _typed(kind: str, about: str, more: Mapping[str, object]) -> Schema:
    return {"type": kind, **({"description": about} if about else {}), **more}
