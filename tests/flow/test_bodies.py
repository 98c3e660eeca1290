"""Bodies both ways through the real gateway: long, early answered, unread, cut."""

from __future__ import annotations

import contextlib

import httpx
import pytest
import trio

from sandman import names
from tests.fakes.daemons import answer, claims

# httpx leaves the generators of a body that is not read to its end to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
MIB = 1024 * 1024
REFUSAL = b'{"reason":"too_large","detail":"enough"}'


async def chunks(count: int, size: int = 64 * 1024):
    for _ in range(count):
        yield bytes(size)


async def refuse_early(call) -> None:
    """As the real daemon does: answer, end its side, read on for a while, close."""
    await call.send(answer(REFUSAL, b"Connection: close", b"Content-Type: application/problem+json",
                           status=b"413 Too Large"))  # fmt: skip
    await call.stream.send_eof()
    with trio.move_on_after(0.2):
        while await call.stream.receive_some():
            pass


async def test_an_upload_that_the_daemon_refuses_early_gets_the_daemons_answer(odd_bed):
    made = await odd_bed.allocate()
    odd_bed.daemon.script = claims(refuse_early)
    for content in (chunks(128), bytes(8 * MIB)):
        put = await odd_bed.client.put(
            f"/v1/sandboxes/{made['id']}/files?path=/x", content=content,
            headers=odd_bed.as_("acme"),
        )  # fmt: skip
        assert (put.status_code, put.json()["detail"]) == (413, "enough")


async def test_the_real_daemons_early_refusal_of_a_long_upload_arrives(bed, tmp_path):
    made = await bed.allocate()
    put = await bed.client.put(
        f"/v1/sandboxes/{made['id']}/files", params={"path": str(tmp_path)},
        content=chunks(128), headers=bed.as_("acme"),
    )  # fmt: skip
    assert (put.status_code, put.json()["reason"]) == (409, "is_a_directory")
    after = await bed.client.get(f"/v1/sandboxes/{made['id']}/info", headers=bed.as_("acme"))
    assert after.status_code == 200


async def test_variables_with_which_no_command_would_start_are_the_callers_to_mend(bed):
    body = {"env": {"LONG": "x" * 200_000}}
    refused = await bed.client.post("/v1/sandboxes", json=body, headers=bed.as_("acme"))
    found = refused.json()
    assert (refused.status_code, found["reason"], found["field"]) == (
        400,
        "bad_request",
        "env.LONG",
    )


async def test_what_occurs_twice_or_is_not_known_is_refused_by_name_all_the_way(bed):
    made = await bed.allocate()
    base = f"/v1/sandboxes/{made['id']}"
    key = {**bed.as_("acme"), "Content-Type": "application/json"}
    for path, body, field in (
        ("/v1/sandboxes", b'{"image": "a", "env": {"A": "1", "A": "2"}}', "A"),
        (f"{base}/exec", b'{"argv": ["true"], "cwd": "/", "cwd": "/tmp"}', "cwd"),
        (f"{base}/exec?wait=1", b'{"argv": ["true"]}', "wait"),
        (f"{base}/exec", b'{"argv": ["true"], "login": true}', "login"),
        (f"{base}/processes?detached=1", b'{"argv": ["true"]}', "detached"),
    ):
        refused = await bed.client.post(path, content=body, headers=key)
        assert (refused.status_code, refused.json()["field"]) == (400, field)
    query = await bed.client.get(f"{base}/processes?wait=1", headers=key)
    assert (query.status_code, query.json()["field"]) == (400, "wait")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/v1/sandboxes", 413), ("PUT", "/v1/nope", 404), ("PUT", "/v1/sandboxes", 405),
     ("PUT", "/v1/sandboxes/p-00000000/files", 404)],
)  # fmt: skip
async def test_what_the_gateway_itself_refuses_early_is_told_and_not_broken_off(
    odd_bed, method, path, status
):
    for content in (chunks(128), bytes(8 * MIB)):
        refused = await odd_bed.client.request(
            method, path, content=content, headers=odd_bed.as_("acme")
        )
        assert refused.status_code == status
    nobody = await odd_bed.client.request(method, path, content=chunks(32))
    assert nobody.status_code in {401, 404, 405}


async def test_an_upload_that_never_ends_is_read_for_a_while_only(odd_bed, monkeypatch):
    monkeypatch.setattr("gateway.app.LINGER_S", 0.2)
    async with odd_bed.raw() as stream:
        await stream.send_all(odd_bed.head("PUT", "/v1/nope", b"Content-Length: 99999999999"))
        with trio.fail_after(3):
            said = b""
            while more := await read(stream):
                said += more
    assert said.startswith(b"HTTP/1.1 404")
    assert b"not_found" in said


async def read(stream) -> bytes:
    """The next bytes; none at the end, however that comes."""
    try:
        return await stream.receive_some(65536)
    except trio.BrokenResourceError:
        return b""


async def read_until(stream, mark: bytes) -> bytes:
    said = b""
    with trio.fail_after(5):
        while mark not in said:
            more = await read(stream)
            assert more, said
            said += more
    return said


async def test_an_upload_that_waits_for_leave_is_given_it(bed, tmp_path):
    made = await bed.allocate()
    path = f"/v1/sandboxes/{made['id']}/files?path={tmp_path}/x"
    async with bed.raw() as stream:
        head = bed.head("PUT", path, b"Content-Length: 5", b"Expect: 100-continue")
        await stream.send_all(head)
        assert (await read_until(stream, b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        await stream.send_all(b"hello")
        assert (await read_until(stream, b"}")).startswith(b"HTTP/1.1 200")
    assert (tmp_path / "x").read_bytes() == b"hello"


async def test_an_upload_in_chunks_that_claims_a_length_is_refused(bed, tmp_path):
    """Another reader in front of us may go by the one or the other."""
    made = await bed.allocate()
    path = f"/v1/sandboxes/{made['id']}/files?path={tmp_path}/x"
    async with bed.raw() as stream:
        lines = b"Transfer-Encoding: chunked", b"Content-Length: 3"
        await stream.send_all(bed.head("PUT", path, *lines) + b"5\r\nhello\r\n0\r\n\r\n")
        said = await read_until(stream, b"}")
    assert said.startswith(b"HTTP/1.1 400"), said
    assert not (tmp_path / "x").exists()


async def test_an_upload_in_chunks_arrives_whole(bed, tmp_path):
    made = await bed.allocate()
    path = f"/v1/sandboxes/{made['id']}/files?path={tmp_path}/x"
    async with bed.raw() as stream:
        await stream.send_all(bed.head("PUT", path, b"Transfer-Encoding: chunked"))
        for piece in (b"5\r\nhello\r\n", b"6\r\n world\r\n", b"0\r\n\r\n"):
            await stream.send_all(piece)
        said = await read_until(stream, b"}")
    assert said.startswith(b"HTTP/1.1 200"), said
    assert (tmp_path / "x").read_bytes() == b"hello world"


async def test_an_empty_file_is_written_with_and_without_a_length(bed, tmp_path):
    made = await bed.allocate()
    for name, lines in (("a", (b"Content-Length: 0",)), ("b", (b"Transfer-Encoding: chunked",))):
        path = f"/v1/sandboxes/{made['id']}/files?path={tmp_path}/{name}"
        async with bed.raw() as stream:
            tail = b"0\r\n\r\n" if name == "b" else b""
            await stream.send_all(bed.head("PUT", path, *lines) + tail)
            assert (await read_until(stream, b"}")).startswith(b"HTTP/1.1 200")
        assert (tmp_path / name).read_bytes() == b""


async def test_head_and_delete_have_no_body_and_leave_the_connection_usable(bed, tmp_path):
    made = await bed.allocate()
    target = tmp_path / "x"
    target.write_bytes(b"hello")
    path = f"/v1/sandboxes/{made['id']}/files?path={target}"
    async with bed.raw() as stream:
        await stream.send_all(bed.head("HEAD", path))
        head = await read_until(stream, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert b"content-length: 5" in head.lower()
        assert head.endswith(b"\r\n\r\n")
        await stream.send_all(bed.head("GET", path))
        assert (await read_until(stream, b"hello")).startswith(b"HTTP/1.1 200")
        await stream.send_all(bed.head("DELETE", path))
        gone = await read_until(stream, b"\r\n\r\n")
        assert gone.startswith(b"HTTP/1.1 204")
        assert b"content-length" not in gone.lower()
        await stream.send_all(bed.head("HEAD", path))
        missing = await read_until(stream, b"\r\n\r\n")
        assert missing.startswith(b"HTTP/1.1 404")
        assert missing.endswith(b"\r\n\r\n")


async def test_a_client_that_stops_reading_stops_the_sandbox_and_not_the_gateway(odd_bed):
    made = await odd_bed.allocate()
    sent, closed = [0], trio.Event()

    async def endless(call) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            await call.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                await call.send(b"10000\r\n" + bytes(65536) + b"\r\n")
                sent[0] += 65536
        closed.set()

    odd_bed.daemon.script = claims(endless)
    async with odd_bed.raw() as stream:
        await stream.send_all(odd_bed.head("GET", f"/v1/sandboxes/{made['id']}/files?path=/x"))
        await read_until(stream, b"\r\n\r\n")
        before = -1
        with trio.fail_after(10):
            while before != sent[0]:
                before = sent[0]
                await trio.sleep(0.3)
        assert sent[0] < 24 * MIB  # what sockets hold; the gateway itself a few hundred KiB
        assert (await odd_bed.client.get("/healthz")).text == "ok"
    with trio.fail_after(5):
        await closed.wait()


async def test_a_file_cut_short_is_never_taken_for_whole(odd_bed):
    made = await odd_bed.allocate()

    async def cut(call) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")

    odd_bed.daemon.script = claims(cut)
    with pytest.raises(httpx.RemoteProtocolError):
        await odd_bed.client.get(
            f"/v1/sandboxes/{made['id']}/files?path=/x", headers=odd_bed.as_("acme")
        )
    # No fault of the gateway's, for which somebody would be called.
    assert 'reason="internal"' not in (await odd_bed.client.get("/metrics")).text


async def test_a_daemon_that_closes_each_connection_serves_one_call_after_the_other(odd_bed):
    made = await odd_bed.allocate()

    async def once(call) -> None:
        await call.send(answer(b"hello", b"Connection: close"))

    odd_bed.daemon.script = claims(once)
    for _ in range(3):
        got = await odd_bed.client.get(
            f"/v1/sandboxes/{made['id']}/files?path=/x", headers=odd_bed.as_("acme")
        )
        assert (got.status_code, got.content) == (200, b"hello")
        assert got.headers.get("connection") is None
    assert names.HEADER_BOOT_ID.lower().encode() in odd_bed.daemon.calls[-1].headers
