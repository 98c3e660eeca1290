"""Files of JSON and of JSON lines, and their members, with errors that name the place."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Source = str | os.PathLike[str] | Iterable[Mapping[str, object]]
"""A file of JSON or of JSON lines, or what would be in it."""


class TaskListError(ValueError):
    """A task list, a file of predictions or a journal is not what it should be.

    `place` names the row or line, `field` the member at fault, where there is one.
    """

    def __init__(self, text: str, *, place: str, field: str | None = None) -> None:
        super().__init__(f"{place}: {text}" if field is None else f"{place}: {field}: {text}")
        self.place = place
        self.field = field


class Members:
    """The members of one JSON object."""

    def __init__(self, body: Mapping[str, object], place: str) -> None:
        self._body = body
        self.place = place

    def fail(self, field: str, text: str) -> TaskListError:
        """The error about one of them."""
        return TaskListError(text, place=self.place, field=field)

    def has(self, field: str) -> bool:
        """Whether it is there and says something."""
        return self._body.get(field) not in (None, "", "{}", [], {})

    def text(self, field: str, default: str | None = None) -> str:
        """A string; without a default it must be there, and not be empty."""
        value = self._body.get(field)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.fail(field, "is missing")
        if not isinstance(value, str):
            raise self.fail(field, f"must be a string, not {type(value).__name__}")
        if not value and default is None:
            raise self.fail(field, "must not be empty")
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        """A list of strings, or the JSON text of one, as data sets have it."""
        value = self._body.get(field)
        if value is None:
            raise self.fail(field, "is missing")
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise self.fail(field, "is a string that is no JSON") from None
        if not isinstance(value, Iterable) or isinstance(value, Mapping | str):
            raise self.fail(field, "must be a list of strings, or the JSON text of one")
        found = tuple(value)
        for one in found:
            if not isinstance(one, str):
                raise self.fail(field, f"must hold strings, not {type(one).__name__}")
        return found


def objects(source: Source, *, key: str) -> list[Members]:
    """The objects of a file, or of a sequence.

    Args:
        source: where they are.
        key: in a JSON object of objects, the member that repeats its key.

    Raises:
        TaskListError: it is not of that form.
        OSError: the file cannot be read.
    """
    if not isinstance(source, str | os.PathLike):
        return [_members(one, f"item {index}") for index, one in enumerate(source)]
    path = Path(source)
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise TaskListError(f"is not UTF-8: {error.reason}", place=str(path)) from None
    if path.suffix == ".jsonl":
        lines = enumerate(text.split("\n"), 1)
        return [
            _members(_parsed(line, f"{path}:{number}"), f"{path}:{number}")
            for number, line in lines
            if line.strip()
        ]
    whole = _parsed(text, str(path))
    if isinstance(whole, dict):
        whole = [
            {key: name, **one} if isinstance(one, dict) else one for name, one in whole.items()
        ]
    if not isinstance(whole, list):
        raise TaskListError("must hold a JSON array, or an object of objects", place=str(path))
    return [_members(one, f"{path}: item {index}") for index, one in enumerate(whole)]


def _members(value: object, place: str) -> Members:
    if not isinstance(value, Mapping):
        raise TaskListError(f"must be an object, not {type(value).__name__}", place=place)
    return Members(value, place)


def _parsed(text: str, place: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text)
    except ValueError as error:
        raise TaskListError(f"is no JSON: {error}", place=place) from None
