"""`NamedTuple` and `TYPE_CHECKING` for what a daemon loads at its start.

Those of `typing` cost each pod's start some 6 ms: 2 for that module, and a third of one for each class, since
`collections.namedtuple` compiles source text. Type checkers see the real ones. What is loaded later may use either.
"""

from __future__ import annotations

from collections import _tuplegetter  # type: ignore[attr-defined]  # namedtuple's own

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any
    from typing import NamedTuple as NamedTuple  # noqa: PLC0414 - told on
    from typing import Protocol as Protocol  # noqa: PLC0414

else:
    Protocol = object

    class _Record(type):
        """Makes a subclass of `tuple` of a class body with annotated fields."""

        def __new__(mcs, name, bases, body):  # noqa: ANN001, ANN204 - see above: checkers do not
            if not bases:
                return super().__new__(mcs, name, bases, body)
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body[field] for field in fields if field in body}
            getters = {field: _tuplegetter(at, "") for at, field in enumerate(fields)}
            own = {"_fields": fields, "_field_defaults": defaults, "__match_args__": fields}
            return type(name, (tuple,), {"__slots__": (), **_METHODS, **body, **own, **getters})

    class NamedTuple(metaclass=_Record):
        """Base of records; what subclasses it is a plain subclass of `tuple`."""


def _new(cls: type[Any], *values: object, **named: object) -> Any:  # noqa: ANN401
    fields = cls._fields
    if named or len(values) != len(fields):
        values = _complete(cls, fields, values, named)
    return tuple.__new__(cls, values)


def _complete(
    cls: type[Any], fields: tuple[str, ...], values: tuple[object, ...], named: dict[str, object]
) -> tuple[object, ...]:
    left = fields[len(values) :]
    if len(values) > len(fields) or not named.keys() <= set(left):
        raise TypeError(f"{cls.__name__} takes {', '.join(fields)}, each once")
    given = cls._field_defaults | named
    try:
        return (*values, *[given[field] for field in left])
    except KeyError as error:
        raise TypeError(f"{cls.__name__} needs {error}") from None


def _repr(self: Any) -> str:  # noqa: ANN401
    pairs = zip(self._fields, self, strict=True)
    return f"{type(self).__name__}({', '.join(f'{field}={value!r}' for field, value in pairs)})"


def _getnewargs(self: Any) -> tuple[object, ...]:  # noqa: ANN401
    return tuple(self)


def _asdict(self: Any) -> dict[str, object]:  # noqa: ANN401
    return dict(zip(self._fields, self, strict=True))


def _replace(self: Any, **named: object) -> Any:  # noqa: ANN401
    return type(self)(**(self._asdict() | named))


_METHODS = {
    "__new__": _new,
    "__repr__": _repr,
    "__getnewargs__": _getnewargs,
    "_asdict": _asdict,
    "_replace": _replace,
}
