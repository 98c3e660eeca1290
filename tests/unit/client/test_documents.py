"""Manifests come out as kubectl would have read them when they went in."""

from __future__ import annotations

import json

import pytest
import yaml

from sandman.cli import documents

# What `kubectl annotate --local -f` makes of each scalar (kubectl 1.35), by what stands there unquoted.
READ = {
    **dict.fromkeys(["y", "Y", "yes", "on", "On", "true", "TRUE"], True),
    **dict.fromkeys(["n", "N", "no", "off", "OFF", "false"], False),
    **dict.fromkeys(["~", "null", "Null", "NULL"], None),
    "1e3": 1000,
    "1e-4": 0.0001,
    "-.5e3": -500,
    ".5": 0.5,
    "1.": 1,
    "1_0.5": 10.5,
    "0o17": 15,
    "0O17": 15,
    "-0o17": -15,
    "017": 15,
    "08": 8,
    "1_000": 1000,
    "+1": 1,
    "0x1F": 31,
    "0X1F": 31,
    "0b11": 3,
    "0B1": 1,
    "-0b1": -1,
    "0": 0,
    "-0": 0,
    "00": 0,
    **{
        text: text
        for text in (
            "12:30",
            "190:20:30.15",
            "=",
            "2026-11-30",
            "2001-12-14t21:59:43.10-05:00",
            "1e400",
            "tRUE",
            "0.1.2",
            "1e",
            "0x",
            "0o9",
            "e1",
            "--lr",
            "yEs",
            "-",
            "",
        )
    },
}
WORDS = [text for text in READ if text not in {"", "-"}]


def _manifest(value: object) -> dict[str, object]:
    return {"kind": "Pod", "spec": {"containers": [{"name": "a", "args": [value]}]}}


def _argument(document: dict[str, object]) -> object:
    return document["spec"]["containers"][0]["args"][0]  # type: ignore[index]


@pytest.mark.parametrize("text", WORDS)
def test_a_plain_scalar_is_what_kubectl_reads(text):
    (document,) = documents.load(f"kind: Pod\nspec: {{containers: [{{args: [{text}]}}]}}")
    value = _argument(document)
    assert (value, isinstance(value, bool)) == (READ[text], isinstance(READ[text], bool))


@pytest.mark.parametrize("text", READ)
def test_a_string_comes_out_as_a_string(text):
    """A learning rate of 1e-4 among a command's arguments, say: as a number kubectl refuses it."""
    out = documents.dump([_manifest(text)])
    (again,) = documents.load(out)
    assert _argument(again) == text
    # Other readers of YAML 1.1, with times, dates and sexagesimal numbers, are told likewise.
    assert _argument(yaml.safe_load(out)) == text


@pytest.mark.parametrize("value", [True, False, None, 0, -7, 2**63, 0.1, 1e-7, 1e300, 1000.0])
def test_what_is_no_string_comes_out_as_it_is(value):
    (again,) = documents.load(documents.dump([_manifest(value)]))
    assert (_argument(again), type(_argument(again))) == (value, type(value))


def test_ordinary_words_are_left_unquoted():
    out = documents.dump([_manifest("/bin/web"), {"kind": "Service"}])
    assert "- /bin/web\n" in out
    assert "kind: Service\n" in out


def test_json_goes_through_as_it_is():
    document = _manifest("1e3")
    assert documents.load(json.dumps(document)) == [document]
