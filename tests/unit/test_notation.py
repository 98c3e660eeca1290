"""JSON without `json`: the same values, texts and refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandman import names, notation
from tests.unit.daemon.harness import ROOT

texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=15,
)


@given(values)
def test_texts_are_those_of_the_standard_library(value: object) -> None:
    assert notation.dumps(value) == json.dumps(value, ensure_ascii=False)
    assert notation.dumps(value, ascii_only=True) == json.dumps(value)


@given(values, st.sampled_from(["", " ", "\n\t\r "]))
def test_values_are_those_of_the_standard_library(value: object, blank: str) -> None:
    text = f"{blank}{json.dumps(value, indent=1)}{blank}".encode()
    assert repr(notation.loads(text)) == repr(json.loads(text))


def outcome(read: object, data: bytes) -> str:
    """What reading gives, or that it is refused."""
    try:
        return repr(read(data))  # type: ignore[operator]
    except (ValueError, RecursionError):
        return "refused"


def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object, whose members must differ."""
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError(pairs)
    return dict(pairs)


@given(st.text('[]{}":,0123eE+-.tfn\\u \n\x00\ufeffä', max_size=12).map(str.encode))
@example(b"")
@example(b" ")
@example(b"nul")
@example(b"1 2")
@example(b"[1]x")
@example(b'"\\ud800"')
@example(b'"\t"')
@example(b"\xff")
@example(b"\xed\xa0\x80")
@example(b"NaN")
@example(b"-Infinity")
@example(b"[" * 100_000)
@example(b"9" * 5000)
@example(b"\xef\xbb\xbf{}")
@example(b'{"":0,"":1}')
def test_what_is_no_json_is_refused_alike(data: bytes) -> None:
    def read(data: bytes) -> object:
        return json.loads(data.decode("utf-8-sig", "surrogatepass"), object_pairs_hook=once)

    assert outcome(notation.loads, data) == outcome(read, data)


@pytest.mark.parametrize("has_parts", [True, False])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"a": 1, "a": 1}', "a"),
        ('{"a": 1, "b": 2, "b": 3, "a": 4}', "b"),
        ('{"env": {"X": "1", "\\u0058": "2"}}', "X"),
        ('[{"": [{"": 1, "": 2}]}]', ""),
    ],
)
def test_a_member_that_is_there_twice(
    monkeypatch: pytest.MonkeyPatch, text: str, name: str, *, has_parts: bool
) -> None:
    monkeypatch.setattr(notation, "_has_parts", has_parts)
    with pytest.raises(notation.TwiceError, match="occurs twice") as caught:
        notation.loads(text.encode())
    assert caught.value.name == name


def test_what_json_cannot_say_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="set has no form"):
        notation.dumps({"a": {1}})
    with pytest.raises(TypeError):
        notation.dumps({(1,): 2})


def test_a_fault_is_told_where_json_is_not_loaded() -> None:
    # The C parts then say only that they failed.
    script = """
import sys
from sandman import notation
assert "json" not in sys.modules
for text in (b'{"a"', b'{"a": 1, ', b'["', b"nul", b"", b"1 1", b"\\xff"):
    try:
        notation.loads(text)
    except ValueError as error:
        print(error)
    sys.modules.pop("json", None), sys.modules.pop("json.decoder", None)
"""
    argv = [sys.executable, "-S", "-c", script]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert len(ended.stdout.splitlines()) == 7
    assert ended.stderr == ""


def test_another_python_takes_the_whole_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notation, "_has_parts", False)
    assert notation.loads(b' {"a": [1, "\xc3\xa4"]} ') == {"a": [1, "ä"]}
    assert notation.dumps(["ä"]) == '["ä"]'
    assert notation.dumps(["ä"], ascii_only=True) == '["\\u00e4"]'


def test_a_daemon_starts_without_json_and_base64() -> None:
    script = "import sys, daemon.serve, daemon.application; print(*sorted(sys.modules))"
    argv = [sys.executable, "-S", "-c", script]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {"json", "base64"} & set(ended.stdout.split())


@given(st.text("aZ0._-/\n é", max_size=66) | st.integers(0, 70).map("a".__mul__))
@example("." * 3)
@example("a\n")
def test_names_are_what_their_descriptions_say(value: str) -> None:
    label = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
    assert names.is_label(value) == (re.fullmatch(label, value) is not None)
    exec_id = r"(?!\.+$)[A-Za-z0-9._-]{1,64}"
    assert names.is_exec_id(value) == (re.fullmatch(exec_id, value) is not None)
    assert not names.is_label(1)
    assert not names.is_exec_id(None)
