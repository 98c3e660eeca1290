"""Commands: what goes in, what comes out, what is never done twice."""

from __future__ import annotations

import io

import pytest

from sandman import errors, wire
from sandman.client import Client, CommandError, Limits, Stderr, Stdout
from tests.unit.client.backends import on_backends
from tests.unit.client.fake_gateway import TOKEN, FakeGateway, answer, drop, frames, problem

EXIT = (wire.EXIT, wire.ExecResult(0).to_json(streams=False))
STARTED = (wire.STARTED, {"exec_id": "e1", "boot_id": "b1"})


@on_backends
async def test_bytes_come_through_exactly(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox(image="i") as box:
        result = await box.exec(["printf", r" a\r\nb\000\377\n\n"])
        assert result.stdout == b" a\r\nb\0\xff\n\n"
        assert result.stderr == b""
        assert result.stdout_bytes == 9
        assert result.ok


@on_backends
async def test_a_character_split_over_chunks_is_whole(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        both = "ü".encode()
        halves = [(wire.STDOUT, both[:1]), (wire.STDOUT, both[1:])]
        gateway.plan("POST", frames(STARTED, *halves, EXIT))
        assert (await box.run("x")).stdout_text == "ü"


@on_backends
async def test_a_frame_split_at_any_byte_is_whole(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        data = wire.encode_frame(wire.STDOUT, b"abc") + wire.encode_frame(
            EXIT[0], b'{"exit_code":4}'
        )
        gateway.plan("POST", frames(*[data[i : i + 1] for i in range(len(data))]))
        result = await box.run("x")
        assert (result.stdout, result.exit_code) == (b"abc", 4)


@on_backends
async def test_failures_are_results(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        assert (await box.run("echo no >&2; exit 3")).exit_code == 3
        assert (await box.run("kill -9 $$")).signal == 9
        missing = await box.exec(["no-such-program"])
        assert (missing.exit_code, missing.start_error) == (127, "not_found")
        late = await box.run("echo early; sleep 30", timeout_s=0.3)
        assert (late.timed_out, late.stdout, late.ok) == (True, b"early\n", False)


@on_backends
async def test_check_raises_with_the_result(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        assert (await box.exec(["true"], check=True)).ok
        with pytest.raises(CommandError, match=r"exit code 3; it said:\nno\b") as caught:
            await box.run("echo no >&2; exit 3", check=True)
        assert caught.value.result.exit_code == 3
        assert caught.value.sandbox == box.id
        with pytest.raises(CommandError, match="sleep 30 was ended at its time limit"):
            await box.exec(["sleep", "30"], check=True, timeout_s=0.2)
        with pytest.raises(CommandError, match="nope did not start: not found"):
            await box.exec(["nope"], check=True)
        with pytest.raises(CommandError, match="killed by signal 15"):
            await box.run("kill $$", check=True)


@on_backends
async def test_options_travel(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        gateway.plan("POST", frames(STARTED, EXIT))
        await box.exec(
            ["a", "\udcff"], cwd="/w", env={"A": "1"}, env_mode="replace", user=7, stdin="in",
            timeout_s=5, merge_stderr=True, output_limit=9, exec_id="mine",
        )  # fmt: skip
        assert gateway.requests[-1].json() == {
            "argv": ["a", "\udcff"], "cwd": "/w", "env": {"A": "1"}, "env_mode": "replace", "user": 7,
            "stdin_b64": "aW4=", "timeout_s": 5, "merge_stderr": True, "output_limit": 9,
            "exec_id": "mine", "attached_grace_s": 15.0,
        }  # fmt: skip
        gateway.plan("POST", frames(STARTED, EXIT))
        async with box.stream(shell="a b", login=True) as stream:
            await stream.wait()
        assert gateway.requests[-1].json() == {"shell": "a b", "login": True}


@on_backends
async def test_wrong_arguments_are_refused_here(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        with pytest.raises(TypeError, match="use run"):
            await box.exec("ls -l")
        with pytest.raises(TypeError, match="nonsense"):
            await box.exec(["ls"], nonsense=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="either argv or shell"):
            async with box.stream(["a"], shell="b"):
                pass
        with pytest.raises(TypeError, match="cannot send a int"):
            await box.exec(["cat"], stdin=5)  # type: ignore[arg-type]
        assert gateway.calls("POST /v1/sandboxes/") == []


@on_backends
async def test_output_beyond_the_limit_keeps_head_and_tail(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        script = "head -c 300000 /dev/zero | tr '\\0' a; printf END; printf 1234 >&2"
        result = await box.run(script, output_limit=10)
        assert (result.stdout, result.stdout_bytes) == (b"aaaaaaaEND", 300003)
        assert (result.stdout_truncated, result.stderr_truncated) == (True, False)
        exact = await box.run("printf 1234", output_limit=4)
        assert (exact.stdout, exact.stdout_truncated) == (b"1234", False)


@on_backends
async def test_small_stdin_travels_inline(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        for given in ("häl\n$`", b"\0\xff\r\n", bytearray(b"x"), b""):
            expected = given.encode() if isinstance(given, str) else bytes(given)
            assert (await box.exec(["cat"], stdin=given)).stdout == expected
            assert "stdin_b64" in gateway.requests[-1].json()
        assert (await box.exec(["cat"])).stdout == b""


@on_backends
async def test_large_stdin_is_streamed(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        large = bytes(range(256)) * 4096 + b"end"
        file = io.BytesIO(b"skipped" + large)
        file.seek(7)
        pieces = [large[:5], b"", large[5:]]
        for given in (large, file, pieces, iter(pieces)):
            result = await box.exec(["cat"], stdin=given)
            assert result.stdout == large
            assert gateway.requests[-1].headers["transfer-encoding"] == "chunked"
        with pytest.raises(TypeError, match="binary mode"):
            await box.exec(["cat"], stdin=io.StringIO("text"))  # type: ignore[arg-type]
        assert (await box.exec(["cat"], stdin=[])).stdout == b""


@on_backends
async def test_streaming_yields_events_then_the_result(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        seen = []
        async with box.stream(["sh", "-c", "echo a; sleep 0.2; echo b >&2; exit 5"]) as stream:
            with pytest.raises(RuntimeError, match="has not ended"):
                _ = stream.result
            while (event := await anext(stream, None)) is not None:
                seen.append(event)
        assert seen == [Stdout(b"a\n"), Stderr(b"b\n")]
        assert (stream.result.exit_code, stream.exec_id) == (5, "e1")
        async with box.stream(shell="echo dropped; exit 6") as stream:
            assert (await stream.wait()).exit_code == 6


@on_backends
async def test_leaving_a_stream_kills_the_command(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client:
        async with client.sandbox() as box:
            async with box.stream(shell="echo a; sleep 30") as stream:
                async for event in stream:
                    assert event == Stdout(b"a\n")
                    break
            assert (await box.exec(["true"])).ok
        assert gateway.settled()


@on_backends
async def test_one_connection_serves_command_after_command(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        for _ in range(5):
            await box.exec(["true"])
        assert gateway.connections == 1


@on_backends
async def test_keepalives_hold_a_silent_command(gateway: FakeGateway, monkeypatch) -> None:
    monkeypatch.setattr("sandman._async.sandbox.EXEC_SILENCE_S", 0.4)
    gateway.keepalive_s = 0.1
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        assert (await box.run("sleep 1; echo done")).stdout == b"done\n"


@on_backends
async def test_silence_without_keepalives_is_an_unknown_outcome(
    gateway: FakeGateway, monkeypatch
) -> None:
    monkeypatch.setattr("sandman._async.sandbox.EXEC_SILENCE_S", 0.3)
    async with Client(gateway.url, TOKEN) as client:
        async with client.sandbox() as box:
            with pytest.raises(errors.OutcomeUnknownError, match="fell silent") as caught:
                async with box.stream(shell="sleep 30") as stream:
                    await stream.wait()
            assert caught.value.sandbox == box.id
            assert not caught.value.retryable
        assert gateway.settled()
    assert len(gateway.calls("POST /v1/sandboxes/")) == 1


BROKEN = {
    "nothing": frames(end=False),
    "cut after output": frames(STARTED, (wire.STDOUT, b"x"), end=False),
    "ended without EXIT": frames(STARTED, (wire.STDOUT, b"x")),
    "cut in a frame": frames(b"\x05\x00\x00"),
    "no frames": frames(b"<html>gateway timeout</html>"),
    "unreadable EXIT": frames((wire.EXIT, b"nonsense")),
    "EXIT without code": frames((wire.EXIT, {"signal": 3})),
    "unreadable ERROR": frames((wire.ERROR, b"nonsense")),
    "other content type": answer(200, b"<html>", content_type="text/html"),
    "hang-up": drop,
    "proxy 502": answer(502, b"bad gateway"),
    "proxy 504": answer(504),
}


@pytest.mark.parametrize("case", BROKEN)
@on_backends
async def test_no_result_is_never_a_result(gateway: FakeGateway, case: str) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        gateway.plan("POST", BROKEN[case])
        with pytest.raises(errors.OutcomeUnknownError, match="may or may not") as caught:
            async with box.stream(["true"]) as stream:
                await stream.wait()
        assert caught.value.sandbox == box.id
        assert len(gateway.calls("POST /v1/sandboxes/")) == 1
        assert (await box.exec(["true"])).ok


@pytest.mark.parametrize("case", BROKEN)
@on_backends
async def test_53_without_a_result_exec_comes_back_to_the_same_command(
    gateway: FakeGateway, case: str
) -> None:
    told: list[str] = []
    async with (
        Client(gateway.url, TOKEN, on_retry=lambda r: told.append(r.call)) as client,
        client.sandbox() as box,
    ):
        gateway.plan("POST /v1/sandboxes/", BROKEN[case])
        gateway.plan(f"GET /v1/sandboxes/{box.id}/processes/", frames((wire.STDOUT, b"rest"), EXIT))
        result = await box.run("printf rest")
        assert result.stdout.endswith(b"rest")
        names = [r.json()["exec_id"] for r in gateway.requests if r.target.endswith("/exec")]
        assert len(set(names)) == 1
        assert all("?stdout=" in r.target for r in gateway.requests if "/processes/" in r.target)
        assert len(told) == 1


@pytest.mark.parametrize("rest", ["cut again", "forgotten", "abandoned"])
@on_backends
async def test_53_a_command_that_cannot_be_found_again_is_of_unknown_outcome(
    gateway: FakeGateway, rest: str
) -> None:
    limits = Limits(retry_s=0.3)
    async with Client(gateway.url, TOKEN, limits=limits) as client, client.sandbox() as box:
        left = (wire.EXIT, wire.ExecResult(143, abandoned=True).to_json(streams=False))
        action = {
            "cut again": frames(STARTED, end=False),
            "forgotten": problem(errors.NotFoundError("no command")),
            "abandoned": frames(STARTED, left),
        }[rest]
        gateway.plan("POST /v1/sandboxes/", frames(STARTED, (wire.STDOUT, b"x"), end=False))
        gateway.plan("GET", *[action] * 9)
        with pytest.raises(errors.OutcomeUnknownError) as caught:
            await box.exec(["true"])
        assert caught.value.sandbox == box.id
        assert len(gateway.calls("POST /v1/sandboxes/")) == 1


@on_backends
async def test_53_a_streamed_input_is_not_sent_again(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        gateway.plan("POST /v1/sandboxes/", drop)
        gateway.plan("GET", frames(STARTED, EXIT))
        assert (await box.exec(["cat"], stdin=[b"x" * 300_000])).ok
        gateway.plan("POST /v1/sandboxes/", drop)
        with pytest.raises(errors.OutcomeUnknownError):
            await box.exec(["cat"], stdin=[b"x" * 300_000])
        assert len(gateway.calls("POST /v1/sandboxes/")) == 2


@on_backends
async def test_20_what_was_lost_on_the_way_back_is_marked(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        gateway.plan("POST /v1/sandboxes/", frames(STARTED, (wire.STDOUT, b"ab"), end=False))
        gap = (wire.GAP, {"stream": "stdout", "from": 2, "to": 7})
        gateway.plan("GET", frames(gap, (wire.STDOUT, b"z"), end=False), frames(EXIT))
        result = await box.exec(["true"])
        assert (result.stdout, result.stdout_truncated) == (b"abz", True)
        assert gateway.requests[-1].query == {"stdout": "8", "stderr": "0"}


@on_backends
async def test_an_error_after_output_comes_after_the_output(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        lost = errors.OomError("memory ran out").problem()
        gateway.plan("POST", frames(STARTED, (wire.STDOUT, b"x"), (wire.ERROR, lost)))
        async with box.stream(["true"]) as stream:
            assert await anext(stream) == Stdout(b"x")
            with pytest.raises(errors.OomError, match="memory ran out") as caught:
                await anext(stream)
        assert (caught.value.cause, caught.value.sandbox) == ("sandbox", box.id)


@on_backends
async def test_a_connection_that_breaks_after_the_result_does_not_matter(
    gateway: FakeGateway,
) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        gateway.plan("POST", frames(STARTED, EXIT, 0.1, end=False))
        assert (await box.exec(["true"])).ok


@on_backends
async def test_typed_refusals_are_not_repeated(gateway: FakeGateway) -> None:
    async with Client(gateway.url, TOKEN) as client, client.sandbox() as box:
        for error in (
            errors.UserUnsupportedError("y"),
            errors.DiedError("z"),
        ):
            gateway.plan("POST", problem(error))
            with pytest.raises(type(error)):
                await box.exec(["true"])
        assert len(gateway.calls("POST /v1/sandboxes/")) == 2


@on_backends
async def test_a_command_that_was_not_sent_is_tried_again() -> None:
    told: list[str] = []
    closed, limits = "http://127.0.0.1:1", Limits(retry_s=0.5)
    async with Client(
        closed, TOKEN, limits=limits, on_retry=lambda r: told.append(r.call)
    ) as client:
        box = client.attach("box-1")
        with pytest.raises(errors.UnreachableError, match="SANDMAN_URL") as caught:
            await box.exec(["true"])
    assert told
    assert set(told) == {"POST /v1/sandboxes/box-1/exec"}
    assert caught.value.facts["attempts"] == len(told) + 1
