"""A caller of the load against a server that answers as it is told: repeats, keys, streams, and what is counted."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trustme

from loadtest.caller import CONTENT, Ask, Box, Caller
from loadtest.record import Record
from loadtest.session import BrokenError, Session

BOX = {
    "id": "box-1",
    "tier": "warm",
    "timings": {"queued_ms": 1.0, "claim_ms": 2.0, "ready_ms": 3.0},
}
BREAK = "break"
CAPACITY = (
    429,
    {"reason": "capacity", "detail": "none free", "retryable": True, "retry_after": 1.0},
)
DENIED = (403, {"reason": "image_denied", "detail": "not that one"})


class Server(ThreadingHTTPServer):
    """Answers in the order of `answers`; what it was asked is in `asked`."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked, self.connections = [], [], 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        super().setup()
        self.server.connections += 1

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = json.loads(body) if self.headers.get("Content-Type") == "application/json" else body
        self.server.asked.append((self.command, self.path, dict(self.headers), asked))
        told = self.server.answers.pop(0) if self.server.answers else (200, {})
        if told == BREAK:
            self.close_connection = True
            return
        status, document, *headers = told
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data if status != 204 else b"")

    do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815 - the names that the server looks for

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as one:
        threading.Thread(target=one.serve_forever, args=(0.01,), daemon=True).start()
        yield one
        one.shutdown()


@pytest.fixture
def bed(server):
    record, slept, told = Record(), [], []
    session = Session.with_key(
        f"http://127.0.0.1:{server.server_port}", ssl.create_default_context(), "k", None
    )
    caller = Caller(session, record, lambda *one: told.append(one), slept.append)
    yield caller, record, slept, told
    session.close()


ASK = Ask({"image": "x"}, 60.0)
BOX_1 = Box("box-1", "warm")


def test_a_sandbox_is_asked_for_once_with_its_key_and_counted_with_its_stages(server, bed):
    caller, record, slept, told = bed
    server.answers = [(201, BOX)]
    assert caller.create(ASK) == BOX_1
    ((method, path, headers, body),) = server.asked
    assert (method, path, headers["Authorization"]) == ("POST", "/v1/sandboxes", "Bearer k")
    assert headers["Idempotency-Key"]
    assert (body["image"], body["wait_s"]) == ("x", pytest.approx(60, abs=1))
    assert record.whole("create").count == 1
    assert sorted(record.stages) == ["claim", "queued", "ready"]
    assert record.handed
    assert slept == []
    assert [(call, error) for call, _, error in told] == [("create", None)]


def test_who_is_told_to_come_later_does_with_the_same_key(server, bed):
    caller, record, slept, _ = bed
    server.answers = [CAPACITY, BREAK, (202, {"state": "waiting", "place": 3}), (201, BOX)]
    assert caller.create(ASK) == BOX_1
    assert len({headers["Idempotency-Key"] for _, _, headers, _ in server.asked}) == 1
    assert slept[0] >= 1.0
    assert record.retries == {("create", "capacity"): 2, ("create", "unreachable"): 1}
    assert record.failures() == {}
    assert record.whole("create").count == 1


def test_the_header_tells_how_long_where_the_document_does_not(server, bed):
    caller, _, slept, _ = bed
    document = {"reason": "throttled", "detail": "slowly", "retryable": True}
    server.answers = [(429, document, ("Retry-After", "7")), (201, BOX)]
    caller.create(ASK)
    assert 7 <= slept[0] <= 7 * 1.25


def test_what_no_repetition_helps_is_an_error_at_once(server, bed):
    caller, record, slept, told = bed
    server.answers = [DENIED]
    assert caller.create(ASK) is None
    assert record.failures("create") == {"image_denied": 1}
    assert "not that one" in record.texts["image_denied"]
    assert (slept, len(server.asked)) == ([], 1)
    assert told[0][2].reason == "image_denied"


def test_patience_ends_with_what_the_caller_waits(server, bed):
    caller, record, _, _ = bed
    server.answers = [(429, {**CAPACITY[1], "retry_after": 61.0})]
    assert caller.create(ASK) is None
    assert record.failures() == {"capacity": 1}


def lines(*documents):
    return b"".join(json.dumps(one).encode() + b"\n" for one in documents)


def box(number):
    return {"index": number, "sandbox": {**BOX, "id": f"box-{number}"}}


def test_several_come_by_one_call_and_a_stream_that_breaks_goes_on_with_its_key(server, bed):
    caller, record, _, _ = bed
    problem = {"reason": "image_pull", "detail": "throttled"}
    server.answers = [
        (200, lines(box(0), {"progress": {"ready": 1}}, box(2))),
        (200, lines(box(0), box(2), box(1), {"index": 3, "error": problem}, {"summary": {}})),
    ]
    assert [one.id for one in caller.create_many(ASK, 4)] == ["box-0", "box-2", "box-1"]
    assert len({headers["Idempotency-Key"] for _, _, headers, _ in server.asked}) == 1
    assert [body["count"] for *_, body in server.asked] == [4, 4]
    assert record.whole("create").count == 3
    assert record.failures() == {"image_pull": 1}
    assert record.doubles == 0


def test_a_call_for_several_that_is_refused_is_as_many_errors(server, bed):
    caller, record, _, _ = bed
    server.answers = [DENIED]
    assert list(caller.create_many(ASK, 3)) == []
    assert record.failures() == {"image_denied": 3}


def test_commands_have_an_id_with_which_they_are_asked_again(server, bed):
    caller, record, _, _ = bed
    server.answers = [BREAK, (200, {"exit_code": 0}), (200, {"exit_code": 1})]
    assert caller.exec(BOX_1, ["true"])
    assert not caller.exec(BOX_1, ["true"])
    ids = [body["exec_id"] for *_, body in server.asked]
    assert ids[0] == ids[1] != ids[2]
    assert record.retries == {("exec", "unreachable"): 1}
    assert record.failures() == {"exit_code": 1}


def test_a_file_that_comes_back_otherwise_is_an_error(server, bed):
    caller, record, _, _ = bed
    server.answers = [(200, {}), (200, CONTENT), (200, b"other")]
    assert caller.put(BOX_1)
    assert caller.get(BOX_1)
    assert not caller.get(BOX_1)
    assert server.asked[0][:2] == ("PUT", "/v1/sandboxes/box-1/files?path=%2Ftmp%2Fload")
    assert server.asked[0][3] == CONTENT
    assert record.failures() == {"content": 1}


def test_runs_are_kept_listed_and_released(server, bed):
    caller, record, _, _ = bed
    server.answers = [
        (200, {}),
        (200, {"released": 5}),
        (200, {"sandboxes": [BOX]}),
        (204, {}),
        DENIED,
        DENIED,
    ]
    assert caller.heartbeat("r", 60)
    assert caller.release_run("r") == 5
    assert caller.held("r") == 1
    caller.release(BOX_1)
    assert caller.release_run("r") is None
    assert caller.held("r") is None
    assert [f"{method} {path}" for method, path, _, _ in server.asked[:4]] == [
        "POST /v1/runs/r/heartbeat", "DELETE /v1/runs/r", "GET /v1/sandboxes?run=r", "DELETE /v1/sandboxes/box-1",
    ]  # fmt: skip
    assert server.asked[0][3] == {"ttl_s": 60}
    assert record.whole("release").count == 1


def test_one_connection_serves_all_calls_until_it_breaks(server, bed):
    caller, *_ = bed
    caller.arrive()
    for _ in range(3):
        caller.release(BOX_1)
    assert server.connections == 1
    server.answers = [BREAK]
    caller.release(BOX_1)
    assert server.connections == 2


def test_a_proxys_page_is_no_answer(server, bed):
    caller, record, *_ = bed
    server.answers = [(500, b"<html>")]
    caller.release(BOX_1)
    assert record.failures() == {"internal": 1}


def test_a_silent_server_is_not_waited_for_for_ever(bed):
    # Nobody accepts there: the connection stays in the kernel's queue.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        session = Session(url, ssl.create_default_context(), {})
        with pytest.raises(BrokenError, match="no answer in time"):
            session.call("GET", "/", silence_s=0.05)
        session.close()


def test_a_server_that_nobody_vouches_for_is_not_talked_to(tmp_path):
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("gateway.test").configure_cert(context)
    with Server() as one:
        one.socket = context.wrap_socket(one.socket, server_side=True)
        threading.Thread(target=one.serve_forever, args=(0.01,), daemon=True).start()
        url = f"https://127.0.0.1:{one.server_port}"
        trust = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
        for context, name in ((ssl.create_default_context(), "gateway.test"), (trust, None)):
            stranger = Session(url, context, {}, name)
            with pytest.raises(BrokenError, match="certificate verify failed"):
                stranger.call("GET", "/")
        session = Session(url, trust, {}, "gateway.test")
        assert session.call("GET", "/").status == 200
        session.close()
        one.shutdown()
