"""Whether a daemon still answers rightly; and, in the middle of an attack, rightly or not at all."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING

import httpx

from sandman import names
from tests.conformance import container
from tests.conformance.cells import PYTHON

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.cells import Box

OWN_DOING = {"unreachable", "no_space", "too_large", "path_denied", "outcome_unknown"}
"""What a call may end in when the sandbox's own processes leave no room for it."""
FAILED_START = {126, 127}
PATIENCE_S = 90.0
"""For a machine that is busy with other things, too."""


def client(box: Box, timeout_s: float = PATIENCE_S) -> httpx.Client:
    """A caller with a connection of its own."""
    return httpx.Client(
        base_url=box.container.url,
        headers={"Authorization": f"Bearer {container.TOKEN}"},
        timeout=timeout_s,
        verify=False,
    )


def boot_id(box: Box) -> str:
    """Which start of the daemon answers."""
    with client(box) as http:
        return str(http.get("/v1/info").json()["boot_id"])


def is_right(box: Box) -> None:
    """It answers, at once and exactly, whatever was done before."""
    with client(box) as http:
        word = uuid.uuid4().hex
        script = f"import sys; sys.stdout.write('{word}'); sys.stderr.write('e'); sys.exit(7)"
        found = run(http, [*PYTHON, script])
        assert found.status_code == 200, found.text
        body = found.json()
        assert (body["exit_code"], body["stdout"], body["stderr"]) == (7, word, "e")
        assert not body["timed_out"]
        assert not body["stdout_truncated"]
        path = f"{container.VOLUME}/{word}"
        put = http.put("/v1/files", params={"path": path}, content=word.encode())
        assert put.status_code == 200, put.text
        assert http.get("/v1/files", params={"path": path}).text == word
        assert http.delete("/v1/files", params={"path": path}).status_code == 204


def run(http: httpx.Client, argv: list[str], **more: object) -> httpx.Response:
    """One exec call."""
    return http.post("/v1/exec", json={"argv": argv, **more})


def not_wrong(box: Box, seconds: float, timeout_s: float = 5.0) -> int:
    """Ask for so long; each answer is right, or is none, or says that there is no room. How many were
    right."""
    right = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(httpx.TransportError), client(box, timeout_s) as http:
            right += _one(http)
    return right


def _one(http: httpx.Client) -> int:
    word = uuid.uuid4().hex
    return sum((_exec(http, word), _files(http, word)))


def _exec(http: httpx.Client, word: str) -> bool:
    found = run(http, [*PYTHON, f"import sys; sys.stdout.write('{word}'); sys.exit(7)"])
    body = found.json()
    if found.status_code != 200:
        assert body["reason"] in OWN_DOING, body
        assert body["reason"] == "outcome_unknown" or body["cause"] != "infrastructure", body
        return False
    if body["exit_code"] == 7:
        assert body["stdout"] == word, body
        return True
    # It was not started, or the sandbox's limits ended it on its way; nothing of it is made up.
    assert body["exit_code"] in FAILED_START or body["signal"] or body["stderr"], body
    assert body["stdout"] == "", body
    return False


def _files(http: httpx.Client, word: str) -> bool:
    path = {"path": f"{container.VOLUME}/{word}"}
    put = http.put("/v1/files", params=path, content=word.encode())
    if put.status_code != 200:
        assert put.json()["reason"] in OWN_DOING, put.text
        return False
    got = http.get("/v1/files", params=path)
    if got.status_code != 200:
        assert got.json()["reason"] in OWN_DOING, got.text
        return False
    assert got.text == word
    http.delete("/v1/files", params=path)
    return True


@contextlib.contextmanager
def attacked(box: Box, argv: list[str], **more: object) -> Iterator[str]:
    """A detached command that goes on while the block runs, and is ended with its tree after it."""
    name = f"attack-{uuid.uuid4().hex}"
    body = {"argv": argv, "detached": True, "exec_id": name, **more}
    with client(box) as http:
        answer = http.post("/v1/processes", json=body)
        assert answer.status_code == 200, answer.text
    try:
        yield name
    finally:
        until = time.monotonic() + PATIENCE_S
        while not _is_ended(box, name):
            assert time.monotonic() < until, "the attack could not be ended"
            time.sleep(0.2)


def _is_ended(box: Box, name: str) -> bool:
    with contextlib.suppress(httpx.TransportError), client(box, 5.0) as http:
        if http.delete(f"/v1/processes/{name}").status_code == 204:
            return bool(http.get(f"/v1/processes/{name}").json().get("state") == "ended")
    return False


def python(script: str) -> list[str]:
    """A script by the interpreter that every image has."""
    return [names.DAEMON_COMMAND[0], "-I", "-S", "-c", script]
