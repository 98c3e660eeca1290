"""Records that are made without `typing`: as good as those of its NamedTuple."""

from __future__ import annotations

import copy
import pickle
import typing

import pytest

from sandman import records


class Light(records.NamedTuple):
    """Ours."""

    name: str
    size: int = 0
    parts: tuple[str, ...] = ()

    @property
    def double(self) -> int:
        return self.size * 2

    @classmethod
    def made(cls, name: str) -> Light:
        return cls(name, parts=(name,))


class Full(typing.NamedTuple):
    """The library's."""

    name: str
    size: int = 0
    parts: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("values", "named"),
    [(("a",), {}), (("a", 1), {}), (("a", 1, ("b",)), {}), ((), {"name": "a", "parts": ("x",)}), (("a",), {"size": 3})],
)  # fmt: skip
def test_it_is_what_the_library_would_make(values: tuple, named: dict) -> None:
    ours, theirs = Light(*values, **named), Full(*values, **named)
    assert ours == theirs
    assert hash(ours) == hash(theirs)
    assert repr(ours) == repr(theirs).replace("Full", "Light")
    assert ours._asdict() == theirs._asdict()
    assert ours._replace(size=9) == theirs._replace(size=9)
    assert (ours.name, ours.size, ours.parts) == tuple(theirs)
    assert type(ours._replace(size=9)) is Light


@pytest.mark.parametrize(
    ("values", "named"),
    [((), {}), ((1, 2, 3, 4), {}), (("a",), {"name": "b"}), (("a",), {"colour": 1}), (("a", 1, (), 2), {"size": 1})],
)  # fmt: skip
def test_what_does_not_fit_is_refused(values: tuple, named: dict) -> None:
    for kind in (Light, Full):
        with pytest.raises(TypeError):
            kind(*values, **named)


def test_fields_cannot_be_set_and_methods_work() -> None:
    one = Light.made("a")
    assert (one.parts, one.double, one._fields) == (("a",), 0, Full._fields)
    assert Light._field_defaults == Full._field_defaults
    with pytest.raises(AttributeError):
        one.size = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        one.other = 1  # type: ignore[attr-defined]


def test_copies_and_pickles_and_matches() -> None:
    one = Light("a", 1, ("b",))
    assert copy.deepcopy(one) == one
    assert pickle.loads(pickle.dumps(one)) == one
    match one:
        case Light("a", size, parts=parts):
            assert (size, parts) == (1, ("b",))
        case _:
            raise AssertionError(one)
