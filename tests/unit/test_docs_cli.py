"""docs/cli.md has every command with every option, and says of each what its JSON is."""

from __future__ import annotations

import re

import click
import pytest

from sandman.cli import guard, main
from sandman.contexts import ENV_CONTEXT
from tests.unit.client.test_cli_json import PEOPLE_ONLY, commands
from tests.unit.test_docs import text

DOCUMENT = text("docs/cli.md")
_HEADED = re.compile(r"^### (sandman .*?)\n(.*?)(?=^### |\Z)", re.MULTILINE | re.DOTALL)
SECTIONS: dict[str, str] = dict(_HEADED.findall(DOCUMENT))


def section(command: str) -> str:
    """Of this command: a heading may name several, of a group its members."""
    first, *rest = command.split()
    for heading, body in SECTIONS.items():
        parts = re.findall(r"[a-z][a-z-]*", re.sub(r"\[.*?\]", "", heading))
        if first in parts and set(rest) <= set(parts):
            return heading + body
    raise AssertionError(f"no section for {command}")


@pytest.mark.parametrize(("name", "command"), list(commands(main)))
def test_every_command_and_option_is_documented(name, command):
    told = section(name)
    for option in command.params:
        if isinstance(option, click.Option):
            for spelling in option.opts:
                assert f"`{spelling}`" in told, f"{name} {spelling}"
    assert name in PEOPLE_ONLY or re.search(
        r"`--json`[^\n]*[{\[]|`--json`[^\n]*(info|as of|reservation)", told
    )


def test_no_section_is_of_a_command_that_is_gone():
    known = {part for name, _ in commands(main) for part in name.split()} | {"sandman"}
    for heading in SECTIONS:
        words = set(re.findall(r"[a-z][a-z-]*", re.sub(r"\[.*?\]", "", heading)))
        assert words <= known, heading


def test_options_before_the_command_and_variables_are_documented():
    before = DOCUMENT.partition("## Before the command")[2].partition("## Commands")[0]
    for option in main.params:
        for spelling in option.opts:
            assert f"`{spelling}`" in before
    assert f"`{ENV_CONTEXT}`" in DOCUMENT


def test_every_exit_code_is_documented():
    codes = {value for name, value in vars(guard).items() if name.startswith("EXIT_")}
    assert len(codes) == 6
    told = DOCUMENT.partition("## Exit codes")[2].partition("## Before")[0]
    for code in codes:
        assert re.search(rf"^\| .*\b{int(code)}\b", told, re.MULTILINE), code
