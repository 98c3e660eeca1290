"""What schemathesis is told besides the document: ids of things that there are, and how patient it may be.

It makes up everything; a sandbox, a command or a session that it has made up is not there, and all calls would end in
404. So most calls get the id of one that is. What would wait for minutes waits for tenths of a second.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import ssl
import tarfile
from typing import TYPE_CHECKING

import httpx
import schemathesis

if TYPE_CHECKING:
    from schemathesis import Case, CheckContext, HookContext, Response, SerializationContext

ENV_URL, ENV_TOKEN, ENV_CA = "SANDMAN_TEST_URL", "SANDMAN_TEST_TOKEN", "SANDMAN_TEST_CA"

PATIENCE_S = 0.2
OF_SANDBOXES = "/v1/sandboxes/{id}"
PATHS = ("/tmp/f", "/tmp/a", "/tmp", "/etc/passwd", "/nowhere/x", "/proc/self/status", "/tmp/a/b")
ARGVS = (["true"], ["cat"], ["sh", "-c", "echo out; echo err >&2; exit 3"], ["seq", "3000"], ["no"])
NAMES = {"exec_id": ("live", "term", "ended"), "name": ("default",)}
SHORT = ("wait_s", "timeout_s", "grace_s", "startup_timeout_s", "for_s")
"""Members and parameters that have a call wait."""
COUNT_MAX = 3


class World:
    """One sandbox with commands and a session in it; made anew when it was released."""

    def __init__(self) -> None:
        self._http = httpx.Client(
            base_url=os.environ[ENV_URL],
            headers={"Authorization": f"Bearer {os.environ[ENV_TOKEN]}"},
            verify=ssl.create_default_context(cafile=os.environ[ENV_CA]),
            timeout=60,
        )
        self._id = ""
        self.turns = itertools.count()

    def id(self) -> str:
        """Of a sandbox that lives."""
        if not self._id:
            self._id = self._post("/v1/sandboxes", {"lease": {"max_s": 3600}})["id"]
            below = f"/v1/sandboxes/{self._id}"
            for exec_id, argv in (("live", ["sleep", "600"]), ("ended", ["echo", "x"])):
                self._post(
                    f"{below}/processes", {"argv": argv, "exec_id": exec_id, "detached": True}
                )
            body = {"argv": ["cat"], "exec_id": "term", "detached": True, "terminal": {}}
            self._post(f"{below}/processes", body)
            self._post(f"{below}/sessions", {"name": "default"})
            self._post(f"{below}/files/mkdir", {"path": "/tmp/a", "parents": True})
            self._http.put(
                f"{below}/files", params={"path": "/tmp/f"}, content=b"x"
            ).raise_for_status()
        return self._id

    def _post(self, path: str, body: dict[str, object]) -> dict[str, str]:
        answer = self._http.post(path, json=body)
        answer.raise_for_status()
        return answer.json()

    def look(self) -> None:
        """It may have been released, or its first command may have ended."""
        if self._id and self._http.get(f"/v1/sandboxes/{self._id}").status_code != 200:
            self._id = ""

    def release_others(self) -> None:
        """What calls have made: there is room for a few."""
        for one in self._http.get("/v1/sandboxes").json()["sandboxes"]:
            if one["id"] != self._id:
                self._http.delete(f"/v1/sandboxes/{one['id']}")
        for one in self._http.get("/v1/reservations").json()["reservations"]:
            self._http.delete(f"/v1/reservations/{one['id']}")


_worlds: list[World] = []


def world() -> World:
    """Made at the first call: schemathesis imports this before it knows of any."""
    if not _worlds:
        _worlds.append(World())
    return _worlds[0]


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, object]) -> None:
    """Something real in the place of something made up, and no long waits."""
    turn = next(world().turns)
    _point(case, turn)
    if isinstance(case.query, dict):
        _hurry(case.query)
        if "path" in case.query and turn % 3:
            case.query["path"] = PATHS[turn % len(PATHS)]
    if isinstance(case.body, dict):
        _hurry(case.body)
        if isinstance(case.body.get("argv"), list) and turn % 3:
            case.body["argv"] = ARGVS[turn % len(ARGVS)]
        if {"argv", "shell", "command"} & set(case.body):
            case.body.setdefault("timeout_s", PATIENCE_S)
        if case.path == "/v1/sandboxes":
            case.body.setdefault("wait_s", PATIENCE_S)


def _point(case: Case, turn: int) -> None:
    parameters = case.path_parameters
    if not isinstance(parameters, dict) or not case.path.startswith(OF_SANDBOXES):
        return
    releases = case.path == OF_SANDBOXES and case.method == "DELETE"
    if turn % 8 != 0 or (releases and turn % 40 == 0):
        parameters["id"] = world().id()
    for name, choices in NAMES.items():
        if name in parameters and turn % 4:
            parameters[name] = choices[turn % len(choices)]
    if case.path.endswith("/output"):
        # That of one that runs goes on for as long as it does.
        parameters["exec_id"] = "ended"


def _hurry(members: dict[str, object]) -> None:
    for name in SHORT:
        value = members.get(name)
        with contextlib.suppress(TypeError, ValueError):  # then it is refused anyway
            if not isinstance(value, bool) and float(value) > PATIENCE_S:
                members[name] = str(PATIENCE_S) if isinstance(value, str) else PATIENCE_S
    count = members.get("count")
    if isinstance(count, int) and not isinstance(count, bool):
        members["count"] = min(count, COUNT_MAX)


@schemathesis.hook
def after_call(context: HookContext, case: Case, response: Response) -> None:
    """Keep things as they were."""
    if response.status_code in {404, 410, 503} or case.method == "DELETE":
        world().look()
    if case.path in {"/v1/sandboxes", "/v1/reservations"} and case.method == "POST":
        world().release_others()


@schemathesis.serializer("application/x-tar")
def tar(context: SerializationContext, value: object) -> bytes:
    """What was made up, as a file in a tar; now and then it is none."""
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    if len(data) % 4 == 3:
        return data
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as archive:
        member = tarfile.TarInfo("made-up")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return whole.getvalue()


@schemathesis.check
def no_fault(context: CheckContext, response: Response, case: Case) -> bool | None:
    """No answer of 500 and above but 503, and that for what passes."""
    if response.status_code >= 500:
        assert response.status_code == 503, f"{response.status_code}: {response.text}"
        if case.method != "HEAD":
            told = response.json()
            assert told["reason"] in {"unreachable", "port_closed"}, told
            assert told["retryable"], told
    return None
