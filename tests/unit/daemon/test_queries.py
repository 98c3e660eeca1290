"""Parameters of queries: each call takes its own, and refuses all else by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from daemon import application, config, init, lease, queries, routes, state
from sandman import terminal
from sandman.errors import BadRequestError
from tests.unit.daemon.harness import ROOT, problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.daemon.harness import Daemon

TABLE = {
    "POST /v1/claim": [],
    "POST /v1/renew": [],
    "POST /v1/probe": [],
    "POST /v1/evidence": [],
    "GET /v1/info": [],
    "POST /v1/exec": [],
    "GET /v1/processes": [],
    "POST /v1/processes": [],
    "GET /v1/processes/{}": ["wait_s"],
    "DELETE /v1/processes/{}": [],
    "GET /v1/processes/{}/output": ["stdout", "stderr"],
    "POST /v1/processes/{}/stdin": ["offset", "close"],
    "POST /v1/processes/{}/signal": [],
    "GET /v1/processes/{}/terminal": ["stdout", "exclusive"],
    "POST /v1/processes/{}/resize": [],
    "GET /v1/sessions": [],
    "POST /v1/sessions": [],
    "GET /v1/sessions/{}": [],
    "DELETE /v1/sessions/{}": ["key"],
    "POST /v1/sessions/{}/run": ["wait_s"],
    "POST /v1/sessions/{}/input": ["wait_s"],
    "POST /v1/sessions/{}/interrupt": ["wait_s"],
    "GET /v1/files": ["path", "user", "max_bytes"],
    "HEAD /v1/files": ["path", "user", "max_bytes"],
    "PUT /v1/files": ["path", "user", "mode", "sha256"],
    "DELETE /v1/files": ["path", "user", "recursive"],
    "GET /v1/files/stat": ["path", "user", "follow"],
    "GET /v1/files/list": ["path", "user", "depth"],
    "POST /v1/files/move": [],
    "POST /v1/files/mkdir": [],
    "GET /v1/archive": ["path", "user"],
    "PUT /v1/archive": ["path", "user"],
}
"""What each call takes."""


def test_this_is_all_that_there_is() -> None:
    sandbox = state.Sandbox({b"HOME": b"/"})
    watch = lease.Watch(lambda: None)
    built = application.build(config.Config("0" * 64), init.Reaper(), sandbox, watch)
    found = {
        f"{method} {path}": route.parameters
        for path, methods in built._table.items()
        for method, route in methods.items()
    }
    assert found.pop(f"{routes.ANY} {routes.PORTS}") is None  # those are the server's
    assert {call: list(known or ()) for call, known in found.items()} == TABLE


@pytest.fixture(scope="module")
def places(daemon: Daemon) -> Iterator[None]:
    """A command with open input, and a session, for the paths with a name."""
    start = {"argv": ["cat"], "exec_id": "queried", "detached": True, "stdin_open": True}
    assert daemon.client.post("/v1/processes", json=start).status_code == 200
    assert daemon.client.post("/v1/sessions", json={"name": "queried"}).status_code == 200
    yield
    assert daemon.client.delete("/v1/processes/queried").status_code == 204
    assert daemon.client.delete("/v1/sessions/queried").status_code == 204


@pytest.mark.parametrize("call", TABLE)
@pytest.mark.usefixtures("places")
def test_a_parameter_that_nobody_knows_or_twice(daemon: Daemon, call: str) -> None:
    method, _, path = call.partition(" ")
    path = path.format("queried")
    for query, field in (("sdtout=1", "sdtout"), ("a=1&a=1", "a"), ("a=%f", "a"), ("%=a", "query")):
        answer = daemon.client.request(method, f"{path}?{query}")
        if method == "HEAD":
            assert answer.status_code == 400
            continue
        found = problem(answer)
        assert (found["reason"], found["field"]) == ("bad_request", field)


@pytest.mark.parametrize(
    ("call", "name", "values"),
    [
        (
            "GET /v1/processes/{}",
            "wait_s",
            ["", "x", "-1", "301", "nan", "inf", "1_0", " 1", "1.1.1"],
        ),
        ("GET /v1/processes/{}/output", "stdout", ["", "x", "-1", "1.0", "9" * 19, "\u0663"]),
        ("GET /v1/processes/{}/output", "stderr", ["+1"]),
        ("POST /v1/processes/{}/stdin", "close", ["2", "", "true"]),
        ("POST /v1/processes/{}/stdin", "offset", ["x"]),
        ("DELETE /v1/sessions/{}", "key", ["", "a b", "..", "\u00e4"]),
        ("POST /v1/sessions/{}/run", "wait_s", ["x"]),
        ("GET /v1/files", "max_bytes", ["-1"]),
        ("PUT /v1/files", "mode", ["9"]),
        ("DELETE /v1/files", "recursive", ["yes"]),
        ("GET /v1/files/stat", "follow", ["2"]),
        ("GET /v1/files/list", "depth", ["0", "65"]),
        ("GET /v1/archive", "path", ["", "\0"]),
    ],
)
@pytest.mark.usefixtures("places")
def test_a_value_that_is_none(daemon: Daemon, call: str, name: str, values: list[str]) -> None:
    method, _, path = call.partition(" ")
    path = path.format("queried")
    for value in values:
        params = {"path": "/nowhere", name: value} if "path" in TABLE[call] else {name: value}
        found = problem(daemon.client.request(method, path, params=params))
        assert (found["reason"], found["field"]) == ("bad_request", name), value


def test_a_number_of_seconds() -> None:
    for text, wanted in ((b"0", 0.0), (b"1.50", 1.5), (b"3e-05", 3e-05), (b"300", 300.0)):
        assert queries.seconds({"s": text}, "s", 300) == wanted
    assert queries.seconds({}, "s", 300) is None
    with pytest.raises(BadRequestError, match="s must be 0 to 300 seconds"):
        queries.seconds({"s": b"300.1"}, "s", 300)


def test_a_terminals_query_is_read_like_any_other(daemon: Daemon) -> None:
    start = {"argv": ["cat"], "exec_id": "typed", "detached": True, "terminal": {}}
    assert daemon.client.post("/v1/processes", json=start).status_code == 200
    headers = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": terminal.SUBPROTOCOL,
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    for name in ("exclusive", "stdout"):
        path = f"/v1/processes/typed/terminal?{name}=x"
        assert problem(daemon.client.get(path, headers=headers))["field"] == name
    assert daemon.client.delete("/v1/processes/typed").status_code == 204


@pytest.mark.parametrize("call", [call for call, known in TABLE.items() if known])
def test_each_parameter_is_documented(call: str) -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    for name in TABLE[call]:
        assert f"{name}=" in text
