"""A kubectl that keeps Secrets in a file as an API server does, for what the command line writes to them."""

from __future__ import annotations

import base64
import importlib
import json
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

from click.testing import CliRunner

from gateway import auth, callers, tokens
from sandman import names
from sandman.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

keys_cli = importlib.import_module("sandman.cli.keys")
"""By its name: the package has the group `keys` in its place."""

KUBECTL = """#!{python} -IS
# Secrets of one namespace and a list of pods, in a file. A patch needs the version that is there.
import json, sys
state = json.load(open({store!r}))
arguments = sys.argv[1:]
state["calls"].append(arguments)
def leave(text=""):
    json.dump(state, open({store!r}, "w"))
    sys.exit(text or 0)
if "pods" in arguments:
    sys.stdout.write(state["pods"])
    leave()
name = arguments[arguments.index("secret") + 1]
secret = state["secrets"].get(name)
if secret is None:
    leave(f'Error from server (NotFound): secrets "{{name}}" not found')
if "patch" in arguments:
    patch = json.load(open(arguments[arguments.index("--patch-file") + 1]))
    if state["others"]:
        state["others"] -= 1
        secret["metadata"]["resourceVersion"] += "x"
    if patch["metadata"]["resourceVersion"] != secret["metadata"]["resourceVersion"]:
        leave("Error from server (Conflict): Operation cannot be fulfilled")
    data = secret.setdefault("data", {{}})
    for key, value in patch["data"].items():
        data.pop(key, None) if value is None else data.__setitem__(key, value)
    secret["metadata"]["resourceVersion"] += "1"
print(json.dumps(secret))
leave()
"""


class Bed(SimpleNamespace):
    """A kubectl, and what is behind it."""

    def run(self, *arguments: str, code: int = 0) -> SimpleNamespace:
        done = CliRunner().invoke(main, [*arguments])
        assert done.exit_code == code, done.output
        return SimpleNamespace(out=done.stdout, err=done.stderr)

    @property
    def state(self) -> dict:
        return json.loads(self.store.read_text())

    def change(self, **values) -> None:
        self.store.write_text(json.dumps(self.state | values))

    def data(self, name: str = names.API_KEYS_SECRET) -> dict[str, bytes]:
        found = self.state["secrets"][name].get("data") or {}
        return {key: base64.b64decode(value) for key, value in found.items()}

    def put(self, name: str, data: dict[str, bytes]) -> None:
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        secrets = self.state["secrets"]
        secrets[name] = {"metadata": {"name": name, "resourceVersion": "1"}, "data": encoded}
        self.change(secrets=secrets)

    def who(self, token: str, now: float | None = None):
        """Whom the gateway takes this token for, by what is in the Secret."""
        api_keys, bad = tokens.parse_api_keys(self.data())
        assert bad == []
        keys = SimpleNamespace(
            api_keys=api_keys, sandbox_keys={}, current_key="", callers=callers.NOBODY
        )
        return auth.authenticate(f"Bearer {token}", keys, time.time() if now is None else now)


def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    """Both Secrets, empty, and a kubectl on the path."""
    store = tmp_path / "store.json"
    empty = {
        name: {"metadata": {"name": name, "resourceVersion": "1"}}
        for name in (names.API_KEYS_SECRET, names.KEYS_SECRET)
    }
    store.write_text(json.dumps({"secrets": empty, "pods": "", "calls": [], "others": 0}))
    script = tmp_path / "kubectl"
    script.write_text(KUBECTL.format(python=sys.executable, store=str(store)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Bed(store=store, folder=tmp_path)
