"""A session at a real daemon, as a caller sees it."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandman import sessions

if TYPE_CHECKING:
    from tests.unit.daemon.harness import Daemon

KINDS = ("bash", "dash", "busybox")


def shell_of(kind: str, tmp_path: Path) -> str:
    """The path of a shell of this kind; busybox under the name by which it is one."""
    found = shutil.which(kind)
    if found is None:
        pytest.skip(f"no {kind} on this machine")
    if kind != "busybox":
        return found
    link = tmp_path / "sh"
    if not link.is_symlink():
        link.symlink_to(found)
    return str(link)


class Shell:
    """One session."""

    def __init__(self, daemon: Daemon, name: str | None = None, **spec: object) -> None:
        self.daemon = daemon
        self.name = name or uuid.uuid4().hex[:8]
        body = {"name": self.name, "rc": False, "startup_timeout_s": 20, **spec}
        answer = daemon.client.post("/v1/sessions", json=body)
        assert answer.status_code == 200, answer.text
        self.info = sessions.SessionInfo.from_json(answer.json())

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def post(self, verb: str, params: object = None, **body: object):
        path = f"/v1/sessions/{self.name}/{verb}"
        return self.daemon.client.post(path, json=body, params=params)

    def _ask(self, verb: str, **body: object) -> sessions.SessionResult:
        answer = self.post(verb, **body)
        assert answer.status_code == 200, answer.text
        return sessions.SessionResult.from_json(answer.json())

    def run(self, command: str, **body: object) -> sessions.SessionResult:
        return self._ask("run", command=command, **body)

    def input(self, data: str = "", **body: object) -> sessions.SessionResult:
        return self._ask("input", data=data, **body)

    def interrupt(self, **body: object) -> sessions.SessionResult:
        return self._ask("interrupt", **body)

    def out(self, command: str, **body: object) -> str:
        result = self.run(command, **body)
        assert result.exit_code == 0, result
        return result.output_text

    def told(self) -> sessions.SessionInfo:
        answer = self.daemon.client.get(f"/v1/sessions/{self.name}")
        assert answer.status_code == 200, answer.text
        return sessions.SessionInfo.from_json(answer.json())

    def close(self) -> None:
        answer = self.daemon.client.delete(f"/v1/sessions/{self.name}")
        assert answer.status_code == 204


def alive(pid: int) -> bool:
    """Whether the process lives, zombies apart."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
