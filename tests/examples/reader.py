"""What somebody has who reads a document: what he puts where it leaves him the choice, and what else he does."""

from __future__ import annotations

import re
import shlex
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTHING: Mapping[str, str] = MappingProxyType({})


class Reader(NamedTuple):
    """Of one document."""

    puts: Mapping[str, str] = NOTHING
    """His own, in bash, for what stands for it in the document."""
    has: str = ""
    """Commands that make what the document takes for given."""
    keeps: Mapping[str, str] = NOTHING
    """The beginning of a command, and the file that he keeps its output in."""
    sees: str = ""
    """Commands by which he sees in the end that it has worked."""

    def put(self, text: str) -> str:
        """The text with what is his."""
        longest_first = sorted(self.puts, key=len, reverse=True)
        pattern = "|".join(rf"(?<!\w){re.escape(one)}(?!\w)" for one in longest_first)
        return re.sub(pattern, lambda found: self.puts[found[0]], text) if pattern else text


CACHE = 'mkdir -p ~/.cache\nln -s "$OWN_CACHE" ~/.cache/sandman'
"""What was built once: the daemon's Python, releases, the cluster."""

READERS = {
    "README.md": Reader(
        puts={"SANDBOX": "$box"},
        has="box=$(kept_sandbox)\nexport box\n"
        # What `make demo` makes in minutes: this environment has more in it, and the same.
        "mkdir -p build/demo\n"
        'for one in bin lib pyvenv.cfg; do ln -s "$PWD/.venv/$one" build/demo; done\n'
        "touch build/demo/.ready\n"
        # So that releases are downloaded once.
        'mkdir -p ~/.cache/sandman "$OWN_TASKS"\nln -s "$OWN_TASKS" ~/.cache/sandman/tasks',
    ),
    "docs/local.md": Reader(
        # "DIRECTORY-OR-ARCHIVE", where the document tells of images.
        puts={"serve --local": 'serve --local --image task:1="$OWN_IMAGE"'},
    ),
    "docs/cli.md": Reader(
        puts={"gateway.example:8443": "$OWN_GATEWAY", "8888": "$OWN_PORT"},
        has="BOX=$(kept_sandbox)\nexport BOX\n"
        'sandman exec -d -w /task "$BOX" -- python3 -m http.server "$OWN_PORT"\n'
        # As fish has made it when it is first started.
        "mkdir -p ~/.config/fish/completions",
        sees="complete -p sandman\n"
        "grep -q 'complete .*sandman' ~/.config/fish/completions/sandman.fish\n"
        "curl -sS --retry 30 --retry-delay 1 --retry-all-errors "
        '"http://127.0.0.1:$OWN_PORT/test_it.py" | grep "def test_sum"',
    ),
    "docs/quickstart-cluster.md": Reader(
        puts={
            "registry.example": "$OWN_REGISTRY",
            "registry.example/python:1": "$OWN_BASE",
            "registry.example/task:1": "$OWN_TASK",
            "8443": "$OWN_PORT",
            "smk_…": "$(cat ci.token)",
        },
        has=f'{CACHE}\nln -s "$OWN_OVERLAY" overlay',
        keeps={
            ".venv/bin/python -m scripts.images ": "images",
            ".venv/bin/sandman keys new ": "ci.token",
        },
    ),
    "docs/operations.md": Reader(
        puts={"shop": "$OWN_NAMESPACE"},
        # As step 3 says, of the overlay that stands there. For real the quickstart does, of one that fits the test cluster.
        has="kubectl apply -k . --dry-run=server",
    ),
}


class Server(NamedTuple):
    """A command that goes on until somebody stops it: what comes after it is typed in another shell."""

    begins: str
    says: str
    """When it serves."""
    code: int
    """It ends so at Ctrl-C."""
    before: str = ":"

    def lines(self, command: str) -> str:
        """In bash, with the functions of `script`."""
        in_front = re.sub(r"\s*&?\s*(#.*)?$", "", command)
        return f"{self.before}\nserve {shlex.quote(in_front)} {shlex.quote(self.says)} {self.code}"


SERVERS = (
    # From then on this one is found, by its file in the reader's home, and no longer that of the tests.
    Server(r"(.* && )?(\.venv/bin/)?sandman serve --local", "Ctrl-C here", 0, "unset SANDMAN_LOCAL_STATE"),
    Server("sandman port-forward ", " -> ", 130),
    Server("kubectl .*port-forward ", "Forwarding from ", 0),
)  # fmt: skip


class Asking(NamedTuple):
    """A command that wants a terminal, and somebody at it."""

    begins: str
    prompt: str
    answer: str
    """In bash."""

    def lines(self, command: str) -> str:
        """In bash, with the functions of `script`."""
        return f"at_a_terminal {shlex.quote(self.prompt)} {self.answer} {shlex.quote(command)}"


ASKING = (
    Asking("sandman login ", "Token: ", '"$OWN_TOKEN"'),
    Asking("sandman shell ", r"[#$] ", "exit"),
)
