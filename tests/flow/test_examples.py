"""Every example of README.md and docs/ runs, against a real gateway in local mode with real sandboxes.

A block that is in none of the ways to run one, nor among the exceptions, fails here.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
import trio
import yaml

import sandman
from gateway.openapi.document import OPERATIONS
from gateway.openapi.document import document as described
from sandman import local
from tests.examples import blocks, exceptions, image, static
from tests.flow.local_mode import Gateway, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.examples.blocks import Block

pytestmark = pytest.mark.timeout(180)

BLOCKS = [one for one in blocks.collect() if one.file not in exceptions.RUN_ELSEWHERE]
READ = {"json", "yaml", "text", ""}
"""Answers, files and pictures: nothing to run."""
RUN = {"python", "sh", "console"}
SCHEMAS = described()["components"]["schemas"]
IMAGES = ("registry.example/task:1", "registry.example/app:1")


def not_run(block: Block, command: str) -> bool:
    return any(one.fits(block.file, command) for one in exceptions.NOT_RUN)


def scripts(file: str) -> str:
    """What a reader of this file has typed in the end."""
    of_file = [
        block for block in BLOCKS if block.file == file and block.language in {"sh", "console"}
    ]
    return "\n".join(
        command for block in of_file for command in block.commands if not not_run(block, command)
    )


def in_python(file: str) -> list[Block]:
    of_file = [block for block in BLOCKS if block.file == file and block.language == "python"]
    return [b for b in of_file if not any(text in b.text for text in exceptions.NOT_RUN_PYTHON)]


FILES = sorted({block.file for block in BLOCKS})


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Iterator[Gateway]:
    place = str(image.build(tmp_path_factory.mktemp("image")))
    images = dict.fromkeys((*IMAGES, "task:1"), place)
    state = tmp_path_factory.mktemp("state")
    with running(state, images=images, image=IMAGES[0], most=12, free=2) as one:
        yield one


def test_every_block_is_of_a_known_kind():
    assert len(BLOCKS) >= 30
    assert {block.name for block in BLOCKS if block.language not in RUN | READ} == set()
    # A line of output, and nothing typed, is no example.
    assert {b.name for b in BLOCKS if b.language == "console" and not b.commands} == set()


@pytest.mark.parametrize("one", exceptions.NOT_RUN, ids=lambda one: f"{one.file} {one.begins}")
def test_every_exception_is_of_use_and_what_it_names_is_there(one):
    meant = [
        command for block in BLOCKS for command in block.commands if one.fits(block.file, command)
    ]
    assert meant
    assert one.why
    for command in meant:
        assert static.faults(command) == [], command


@pytest.mark.parametrize(("file", "runner"), exceptions.RUN_ELSEWHERE.items())
def test_what_runs_the_others_is_there(file, runner):
    assert Path(file).name in (blocks.ROOT / runner).read_text()


def test_a_misspelt_command_is_found():
    for command in (
        "make no-such-target", "sandman rnu", "sandman run --imgae x -- ls", "kubeclt get pods",
        "kubectl apply -k manifests/nowhere", "python -m no_such_module", "echo 'open",
    ):  # fmt: skip
        assert static.faults(command), command
    assert static.faults("A=1 sandman -q run --image x -- ls -la | kubectl apply -f -") == []


@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language in READ - {""}], ids=lambda b: b.name
)
def test_what_is_shown_can_be_read(block):
    if block.language == "json":
        for document in re.split(r"\n(?=\{)", block.text):
            shown = json.loads(document.replace(", …}", "}"))
            known = [set(schema.get("properties", ())) for schema in SCHEMAS.values()]
            assert shown
            assert block.file != "docs/api.md" or any(set(shown) <= names for names in known), (
                document
            )
    elif block.language == "yaml":
        assert yaml.safe_load(block.text)


@pytest.mark.parametrize("file", [file for file in FILES if scripts(file)])
def test_what_is_typed_does_what_it_says(whole, file, tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    assert shutil.which("curl"), "curl is a part of this machine (.ci/run)"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", scripts(file)],
        env={**os.environ, **whole.environ, "PATH": path}, cwd=tmp_path,
        text=True, capture_output=True, check=False, timeout=170,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("file", [file for file in FILES if in_python(file)])
async def test_python_runs(whole, file, monkeypatch, capsys):
    monkeypatch.setenv(local.ENV_STATE, whole.environ[local.ENV_STATE])
    seen: list[str] = []

    async def rollout(box: sandman.Sandbox) -> None:
        seen.append(box.id)

    for block in in_python(file):
        async with trio.open_nursery() as tasks, sandman.Client() as client:
            names = {
                "sandman": sandman, "anyio": anyio, "client": client, "tasks": tasks, "rollout": rollout,
                "patch": b"diff",
            }  # fmt: skip
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile(block.text, block.name, "exec", flags=flags, dont_inherit=True)
            made = eval(code, names)
            if made is not None:
                await made
    if file == "README.md":
        assert "1 passed" in capsys.readouterr().out
    if file == "docs/api.md":
        assert len(seen) == 8


@pytest.mark.parametrize("text", exceptions.NOT_RUN_PYTHON)
def test_python_that_is_not_run_is_python(text):
    [block] = [one for one in BLOCKS if one.language == "python" and text in one.text]
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
    assert compile(block.text, block.name, "exec", flags=flags)


CALL = re.compile(r"\bcall\b(.*?)(?=\$\(|\bcall\b|$)", re.MULTILINE)


def called() -> set[tuple[str, str]]:
    """Method and path of each call by curl in docs/api.md."""
    found = set()
    for words in CALL.findall(scripts("docs/api.md")):
        url = re.search(r'"\$url(/[^"?]*)', words)
        if url is None:
            continue
        method = re.search(r"-X (\w+)", words)
        is_head = "--head" in words
        found.add((method[1] if method else "HEAD" if is_head else "GET", url[1]))
    return found


def test_every_call_of_the_api_is_there_with_curl():
    asked = called()
    for operation in OPERATIONS:
        if "/ports/" in operation.path and operation.method != "GET":
            continue  # there the method is the server's business
        pattern = re.sub(r"{path}", ".+", operation.path)
        pattern = re.sub(r"{\w+}", "[^/]+", pattern)
        exact = [p for m, p in asked if m == operation.method and re.fullmatch(pattern, p)]
        assert exact, f"{operation.method} {operation.path}"
