"""JSON bodies: whatever the text, a value or an error that says which member is at fault."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

from daemon import http1, transfers
from sandman import handles, notation, wire
from sandman._core import values
from sandman.errors import BadRequestError
from sandman.problems import from_problem
from tests.fuzz.choices import Choices

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

READERS: tuple[Callable[[Mapping[str, object]], object], ...] = (
    wire.ExecSpec.from_json, wire.Claim.from_json, wire.Info.from_json, wire.ExecResult.from_json,
    handles.Gap.from_json, handles.ProcessInfo.from_json, from_problem,
)  # fmt: skip
LOOSE = (values.FileInfo.from_json, values.EntryInfo.from_json, values.TreeInfo.from_json)
"""Read by the client, which makes one error of all these."""
NOT_UNDERSTOOD = (AttributeError, KeyError, TypeError, ValueError)


def check(data: bytes) -> None:
    """The first byte says what the others are."""
    kind, text = data[:1], data[1:]
    if kind == b"+":
        body(json.dumps(built(Choices(text))).encode())
    elif kind == b"?":
        query(text)
    elif kind == b"=":
        content_range(text)
    else:
        body(data)


def body(data: bytes) -> None:
    """Read an object as each of the things that an object can be."""
    assert outcome(notation.loads, data) == outcome(_library_loads, data)
    try:
        members = wire.load_object(data)
    except BadRequestError:
        return
    for read in READERS:
        try:
            value = read(members)
        except BadRequestError:
            continue
        if isinstance(value, (wire.ExecSpec, wire.Claim)):
            there_and_back(value)
    for read in LOOSE:
        with suppress(*NOT_UNDERSTOOD):
            read(members)


NAMES = tuple(sorted({
    *wire.ExecSpec._fields, *wire.Claim._fields, *wire.Info._fields, *wire.ExecResult._fields,
    *handles.ProcessInfo._fields, "stdin_b64", "stdout_b64", "from", "to", "stream", "reason", "status",
    "detail", "facts", "retry_after", "mode", "size", "path", "mtime", "skipped", "other",
}))  # fmt: skip
VALUES: tuple[object, ...] = (
    None, True, False, 0, 1, -1, 255, 256, 2**31, 2**63, 10**400, 0.5, -0.0, 1e300, float("nan"),
    float("inf"), "", "a", "merge", "ended", "stdout", "0644", "/x", "\0", "\ud800", "\udcff", "é", "A=",
    [], ["a"], [["a", "b"]], [0], {}, {"A": "b"}, {"": "b"}, {"A": 0}, {"exit_code": 1}, {"exit_code": "1"},
)  # fmt: skip


def built(choices: Choices) -> dict[str, object]:
    """An object of members that we know with values of every kind."""
    members: dict[str, object] = {"argv": ["a"]} if choices.one_in(2) else {}
    while not choices.is_spent:
        members[choices.of(NAMES)] = choices.of(VALUES)
    return members


def there_and_back(value: wire.ExecSpec | wire.Claim) -> None:
    """A value that was read is read again from what it writes."""
    assert type(value).from_json(json.loads(json.dumps(value.to_json()))) == value


def outcome(read: Callable[[bytes], object], data: bytes) -> str:
    """What reading gives, or that it is refused."""
    try:
        return repr(read(data))
    except (ValueError, RecursionError):
        return "refused"


def _library_loads(data: bytes) -> object:
    text = data.decode("utf-8", "surrogatepass").removeprefix("\ufeff")
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object, none of whose members is there twice: ours refuses those, too."""
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError
    return dict(pairs)


def query(data: bytes) -> None:
    """A query as it comes out of a head: printable ASCII."""
    text = "".join(chr(0x21 + byte % 94) for byte in data).replace("#", "%")
    try:
        values = http1.parse_query(text)
    except BadRequestError:
        return
    assert all(isinstance(value, bytes) for value in values.values())
    assert len(values) <= text.count("&") + 1


def content_range(data: bytes) -> None:
    """A range, which is within the file or none."""
    size = len(data) * 7919
    found = transfers.parse_range(data.decode("latin-1"), size)
    if found is not None and found[0] < found[1]:
        assert 0 <= found[0] < found[1] <= size
