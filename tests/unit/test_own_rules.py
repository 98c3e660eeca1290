"""What no reader of Python warns of, and nobody may write here: secrets compared in the open, trust switched off.

An exception is a word on its line or above it, with a reason: `# not secret: …` or `# on purpose: …`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PROGRAMS = ("gateway", "webhook", "daemon", "sandman", "scripts", "benchmarks", "loadtest")
SECRET = re.compile(
    r"(^|_)(tokens?|digests?|hexdigest|secrets?|signatures?|h?macs?|passwords?|sha256)(_|$)",
    re.IGNORECASE,
)
EXCEPTION = re.compile(r"# (not secret|on purpose): \S+")
# They make objects, or run code, of what somebody sent.
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "shelve", "marshal", "jsonpickle", "cloudpickle"}
UNSAFE_BUILTINS = {"eval", "exec", "compile", "__import__"}
UNSAFE_CALLS = {
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "os.system", "os.popen", "tempfile.mktemp"),
    *("ssl._create_unverified_context", "subprocess.getoutput", "subprocess.getstatusoutput"),
}  # fmt: skip
UNSAFE_ARGUMENTS = {
    ("verify", False),
    ("shell", True),
    ("check_hostname", False),
    ("assert_hostname", False),
}
UNSAFE_ATTRIBUTES = {("check_hostname", False), ("verify_mode", "CERT_NONE")}


def dotted(node: ast.expr) -> str:
    """`a.b.c` as it is written; of anything else the last name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}".lstrip(".")
    return ""


def word(node: ast.expr) -> str:
    """What a value is called where it is compared."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return dotted(node).rsplit(".", 1)[-1]


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Line and fault."""
    for node in ast.walk(ast.parse(source)):
        for fault in _faults(node):
            yield node.lineno, fault  # type: ignore[attr-defined]


def _faults(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Compare():
            if any(isinstance(one, ast.Eq | ast.NotEq) for one in node.ops) and _is_about_secrets(
                node
            ):
                yield "a secret is compared with == or !=, which tells by its time how much of it was right"
        case ast.Call():
            yield from _calls(node)
        case ast.Import() | ast.ImportFrom():
            parts = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [one.name for one in node.names]
            )
            if any(part.split(".")[0] in UNSAFE_MODULES for part in parts):
                yield "a module that makes objects of what was sent"
        case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
            said = value.value if isinstance(value, ast.Constant) else word(value)
            if (name, said) in UNSAFE_ATTRIBUTES:
                yield "the other side's certificate is not looked at"


def _is_about_secrets(node: ast.Compare) -> bool:
    sides = [node.left, *node.comparators]
    if any(_is_open(side) for side in sides):
        return False
    return any(SECRET.search(word(side)) for side in sides)


def _is_open(side: ast.expr) -> bool:
    """A constant is nobody's secret, nor is a length: `name == names.KEYS_SECRET`, `len(digest) == 32`."""
    return isinstance(side, ast.Constant) or word(side).isupper() or word(side) == "len"


def _calls(node: ast.Call) -> Iterator[str]:
    name = dotted(node.func)
    if name in UNSAFE_BUILTINS or name in UNSAFE_CALLS:
        yield f"{name} is called"
    for argument in node.keywords:
        if (
            isinstance(argument.value, ast.Constant)
            and (argument.arg, argument.value.value) in UNSAFE_ARGUMENTS
        ):
            yield f"{argument.arg}={argument.value.value}"
    if word(node.func) == "extractall":
        yield "an archive is unpacked by whatever names are in it"


def found_in(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    return [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for line, fault in faults("\n".join(lines))
        if not EXCEPTION.search("\n".join(lines[max(line - 2, 0) : line]))
    ]


@pytest.mark.parametrize("program", PROGRAMS)
def test_nobody_breaks_them(program: str) -> None:
    files = sorted((ROOT / program).rglob("*.py"))
    assert files
    assert [fault for path in files for fault in found_in(path)] == []


@pytest.mark.parametrize(
    "line",
    [
        "if token != self._token: pass",
        "ok = hashlib.sha256(body).hexdigest() == wanted",
        "ok = entry['sha256'] == made",
        "ok = mac == given.mac",
        "ok = api_token == given",
        "import pickle",
        "from marshal import loads",
        "import os, shelve",
        "eval(text)",
        "exec(text)",
        "yaml.load(text)",
        "yaml.load(text, Loader=yaml.SafeLoader)",
        "httpx.get(address, verify=False)",
        "subprocess.run(line, shell=True)",
        "os.system(line)",
        "context.check_hostname = False",
        "context.verify_mode = ssl.CERT_NONE",
        "ssl._create_unverified_context()",
        "tarfile.open(name).extractall(place)",
    ],
)
def test_each_is_seen_when_it_is_broken(line: str) -> None:
    assert len(list(faults(f"import tarfile\n{line}\n"))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "if hmac.compare_digest(token, self._token): pass",
        "if name == names.KEYS: pass",
        "if len(digest) == 32: pass",
        "if token is None: pass",
        "yaml.safe_load(text)",
        "sandbox.exec(['true'], shell=name)",
        "re.compile(pattern)",
        "context.verify_mode = ssl.CERT_REQUIRED",
    ],
)
def test_what_is_well_is_not_complained_of(line: str) -> None:
    assert list(faults(line)) == []


def test_an_exception_has_a_reason() -> None:
    assert EXCEPTION.search("if token != mine:  # not secret: it names a command")
    assert not EXCEPTION.search("if token != mine:  # not secret:")
