"""Every example of README.md and docs/ runs, against a real gateway in local mode with real sandboxes.

A block that is in none of the ways to run one, nor among the exceptions, fails here.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import re
import shutil
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
from tests.examples import blocks, exceptions, image, reader, script, static
from tests.flow.local_mode import Gateway, running
from tests.ports import free_port
from tests.tasks import fetch

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


def of_file(file: str) -> list[Block]:
    return [one for one in BLOCKS if one.file == file]


def typed(file: str) -> list[str]:
    """What a reader of this file types who has no cluster."""
    return [
        command
        for block in of_file(file)
        for command in block.commands
        if not (not_run(block, command) or exceptions.on_the_cluster(file, command))
    ]


def in_python(file: str) -> list[Block]:
    found = [block for block in of_file(file) if block.language == "python"]
    return [block for block in found if exceptions.OF_ASYNCIO not in block.text]


FILES = sorted({block.file for block in BLOCKS})


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Iterator[Gateway]:
    place = str(image.build(tmp_path_factory.mktemp("image")))
    images = dict.fromkeys((*IMAGES, "task:1"), place)
    state = tmp_path_factory.mktemp("state")
    with running(state, images=images, image=IMAGES[0], most=12, free=2) as one:
        one.place = place
        yield one


def test_what_looks_otherwise_than_shown_is_found():
    shown = ["report: load-b04d0a63/report.html", "  met     allocation, p99: 133 ms"]
    printed = "started\nreport: load-0fe/report.html\n  missed  allocation, p99: 0.2 ms\n"
    assert script.missing(printed, shown) == []
    assert script.missing(printed, [*shown, "  met     leaked: 0"]) == ["  met     leaked: 0"]
    assert script.missing(printed, shown[::-1]) == shown[:1]


def test_every_block_is_of_a_known_kind():
    assert len(BLOCKS) >= 30
    assert {block.name for block in BLOCKS if block.language not in RUN | READ} == set()
    # A line of output, and nothing typed, is no example.
    assert {b.name for b in BLOCKS if b.language == "console" and not b.commands} == set()


def meant(file: str, begins: str) -> list[str]:
    return [
        one
        for block in of_file(file)
        for one in block.commands
        if re.match(begins, one) is not None
    ]


@pytest.mark.parametrize("one", exceptions.NOT_RUN, ids=lambda one: f"{one.file} {one.begins}")
def test_every_exception_is_of_use_and_what_it_names_is_there(one):
    assert meant(one.file, one.begins)
    assert one.why
    for command in meant(one.file, one.begins):
        assert static.faults(command) == [], command


def test_what_is_left_to_the_cluster_is_what_its_tests_type():
    """tests/cluster/test_examples.py and test_zzz_installation.py, by these names."""
    files = {"README.md", "docs/operations.md", "docs/quickstart-cluster.md"}
    assert {file for file, _ in exceptions.ON_THE_CLUSTER} == files


@pytest.mark.parametrize(("file", "begins"), exceptions.ON_THE_CLUSTER)
def test_what_is_run_on_the_cluster_names_what_is_there(file, begins):
    assert meant(file, begins)
    for command in meant(file, begins):
        assert static.faults(command) == [], command


@pytest.mark.parametrize("file", reader.READERS)
def test_what_a_reader_puts_and_keeps_is_in_his_document(file):
    one, commands = reader.READERS[file], meant(file, "")
    assert [text for text in one.puts if not any(text in command for command in commands)] == []
    assert [begins for begins in one.keeps if not meant(file, re.escape(begins))] == []


@pytest.mark.parametrize("begins", [one.begins for one in (*reader.SERVERS, *reader.ASKING)])
def test_a_command_that_wants_more_than_to_be_typed_is_in_a_document(begins):
    assert [command for file in FILES for command in meant(file, begins)]


def test_commands_in_running_text_name_what_is_there():
    found = [command for path in blocks.files() for command in blocks.inline(path)]
    assert len(found) >= 100
    wrong = {command: static.faults(command) for command in found}
    assert {command: faults for command, faults in wrong.items() if faults} == {}


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


@pytest.mark.parametrize("file", [file for file in FILES if typed(file)])
def test_what_is_typed_does_what_it_says(whole, file, tmp_path):
    assert shutil.which("curl"), "curl is a part of this machine (.ci/run)"
    (tmp_path / "ca.pem").write_text(whole.connection.ca)
    own = {
        **whole.environ, "OWN_GATEWAY": whole.connection.url.removeprefix("https://"), "OWN_TOKEN": whole.tokens["acme"],
        "OWN_PORT": str(free_port()), "OWN_IMAGE": whole.place,
        "OWN_TASKS": str(fetch.CACHE),
    }  # fmt: skip
    del own["HOME"]
    said = script.run(script.of(file, typed(file)), tmp_path, own, 170)
    assert script.missing(said, script.shown(of_file(file), own)) == [], said[-3000:]


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


HEARS = """
from websockets.sync.server import serve
def hear(socket):
    for message in socket:
        open("/tmp/heard", "w").write(message)
serve(hear, "127.0.0.1", 8000).serve_forever()
"""
HEARD = "until [ -s /tmp/heard ]; do sleep 0.05; done; cat /tmp/heard"


def test_a_library_of_asyncio_opens_a_websocket(whole, monkeypatch, tmp_path):
    [block] = [one for one in BLOCKS if exceptions.OF_ASYNCIO in one.text]
    (tmp_path / "ca.pem").write_text(whole.connection.ca)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv(local.ENV_STATE, whole.environ[local.ENV_STATE])
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(block.text, block.name, "exec", flags=flags, dont_inherit=True)

    async def main() -> str:
        async with sandman.Client() as client, client.sandbox(image=IMAGES[0]) as box:
            await box.start(["python3", "-c", HEARS], detached=True)
            await opened(box)
            url = box.port_url(8000, "/ws", websocket=True)
            await eval(code, {"box": box, "url": url})
            return (await box.run(HEARD, timeout_s=60)).stdout_text

    assert asyncio.run(main()) == "hello"


async def opened(box: sandman.Sandbox) -> None:
    async with box.http(8000) as server:
        while True:
            with contextlib.suppress(sandman.PortClosedError):
                await server.get("/")
                return
            await anyio.sleep(0.05)


CALL = re.compile(r"\bcall\b(.*?)(?=\$\(|\bcall\b|$)", re.MULTILINE)


def called() -> set[tuple[str, str]]:
    """Method and path of each call by curl in docs/api.md."""
    found = set()
    for words in CALL.findall("\n".join(typed("docs/api.md"))):
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
