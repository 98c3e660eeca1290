"""What a command names is there: targets of make, subcommands and flags, modules, files. Without running it."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
from typing import TYPE_CHECKING

import click

from sandman.cli import main as cli
from tests.examples.blocks import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROGRAMS = {
    "base64", "curl", "eval", "export", "kind", "kubectl", "less", "make", "openssl", "python", "python3", "sandman",
}  # fmt: skip
"""What examples begin with: a misspelt one is none of these."""


def faults(command: str) -> list[str]:
    """What is wrong with it."""
    checked = subprocess.run(
        ["bash", "-n"], input=command, text=True, capture_output=True, check=False
    )
    if checked.returncode:
        return [checked.stderr.strip()]
    return [fault for words in _simple(command) for fault in _faults(words)]


def _simple(command: str) -> Iterator[list[str]]:
    """The commands in a line, as words."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    found: list[str] = []
    for word in [*words, "&&"]:
        if word in {"&&", "||", "|", ";"}:
            if found:
                yield found
            found = []
        else:
            found.append(word)


def _faults(words: list[str]) -> Iterator[str]:
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if not words:
        return
    program = words[0].rpartition("/")[2]
    if program not in PROGRAMS:
        yield f"{program} is no program that examples use"
    if program == "make":
        yield from (
            f"make has no {word}" for word in words[1:] if "=" not in word and word not in TARGETS
        )
    if program == "sandman":
        yield from _of_cli(words[1:])
    if (
        program.startswith("python")
        and words[1:2] == ["-m"]
        and not importlib.util.find_spec(words[2])
    ):
        yield f"no module {words[2]}"
    for word in words[1:]:
        if (
            re.match(r"(manifests|scripts|docs)/", word)
            and not (ROOT / word.split("?")[0]).exists()
        ):
            yield f"no file {word}"


def _of_cli(words: list[str]) -> Iterator[str]:
    command: click.Command = cli
    context = click.Context(cli)
    for word in words:
        if word == "--":
            return
        if word.startswith("-"):
            flag = word.split("=")[0]
            known = {
                name
                for one in command.get_params(context)
                for name in (*one.opts, *one.secondary_opts)
            }
            if flag not in known and flag[:2] not in known:
                yield f"{command.name} has no {flag}"
        elif isinstance(command, click.Group):
            found = command.get_command(context, word)
            if word.isupper():
                return
            if found is None:
                yield f"sandman has no {word}"
                return
            command = found
