"""Words that are no commands: which one was meant."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from sandman.cli import group, main

KNOWN = main.list_commands(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("poosl", "there is no sandman poosl: did you mean pools?"),
        ("list", "there is no sandman list: did you mean ls?"),
        ("rm", "did you mean release"),
        ("portforward", "did you mean port-forward?"),
        ("zzzz", "there is no sandman zzzz: sandman --help lists all"),
    ],
)
def test_a_word_that_is_no_command_is_one_line_with_what_to_do(word, says):
    result = CliRunner().invoke(main, [word, "--option"])
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_groups_below_do_likewise():
    for name, word, meant in (("keys", "revok", "revoke"), ("signing-keys", "rotat", "rotate")):
        result = CliRunner().invoke(main, [name, word])
        assert (result.exit_code, f"did you mean {meant}?" in result.stderr) == (2, True)


def test_what_other_tools_call_it_leads_to_a_command_that_there_is():
    assert set(group.ELSEWHERE.values()) <= set(KNOWN)
    assert not set(group.ELSEWHERE) & set(KNOWN)


def test_options_that_are_none_are_left_to_click():
    result = CliRunner().invoke(main, ["--ur", "x", "ls"])
    assert (result.exit_code, "--url" in result.stderr) == (2, True)
