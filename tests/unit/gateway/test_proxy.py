"""The proxy's own decisions, and its awaits cut one by one; sockets are real, the cluster in memory."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import trio

from gateway import reach
from gateway.allocation import Allocation
from gateway.config import Settings
from gateway.daemons import LostError
from gateway.model import Ending, Instance
from gateway.proxy import Proxy, RequestBody, Target, has_body, request_headers
from gateway.registry import Registry
from gateway.roster import Roster
from gateway.upstream import Upstream
from sandman.errors import DeletedError, DiedError, EvictedError, OomError, UnreachableError
from tests.fakes.daemons import answer, says, scripted

pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")


class Keys:
    def __init__(self) -> None:
        self.daemon_keys = {"k1": b"k" * 32}


class Pods:
    """The API server, as far as the proxy asks it."""

    def __init__(self, instance: Instance) -> None:
        self.now: Instance | Exception | None = instance

    async def read(self, _namespace: str, _name: str) -> Instance | None:
        await trio.lowlevel.checkpoint()
        if isinstance(self.now, Exception):
            raise self.now
        return self.now


@contextlib.asynccontextmanager
async def proxied():
    async with scripted() as daemon:
        settings = Settings(daemon_port=daemon.port, loss_s=0.2)
        instance = Instance(
            namespace="ns", name="p", uid="00000001-u", version="1", pool="root", state="leased",
            tenant="acme", address="127.0.0.1", nonce="n", key_id="k1", claim_id="c1",
        )  # fmt: skip
        roster = Roster(Registry(keep_ended=10), Allocation(cold_max=1, claims_max=1))
        roster.registry.put(instance)
        upstream, pods = Upstream(Keys(), settings), Pods(instance)
        proxy = Proxy(roster, upstream, pods, settings)
        try:
            yield daemon, proxy, instance, pods
            assert not roster.registry._calls
            assert roster._changes == {}
            assert all(entry.users == 0 for entry in upstream._open.values())
        finally:
            with trio.move_on_after(1, shield=True):
                await upstream.aclose()


def in_time() -> float:
    return trio.current_time() + reach.REACH_S


def scope(method: str = "GET", *headers: tuple[bytes, bytes], version: str = "1.1") -> dict:
    return {"type": "http", "method": method, "headers": list(headers), "http_version": version}


async def forward(proxy: Proxy, instance: Instance, *, method="GET", receive=None, send=None):
    """One call; what was sent to the caller."""
    sent: list[dict] = []

    async def keep(message) -> None:
        await trio.lowlevel.checkpoint()
        sent.append(message)

    headers = [(b"transfer-encoding", b"chunked")] if receive else []
    target = Target(instance, "b1", in_time())
    call = proxy.forward(target, "/v1/files?path=/x")
    await call(scope(method, *headers), receive or trio.sleep_forever, send or keep)
    return sent


# --- cancelled at each await, by the caller's going away or by the sandbox's end ---


@pytest.mark.parametrize("cause", ["caller", "sandbox"])
@pytest.mark.parametrize("at", ["upload", "answer", "body", "send", "boot"])
async def test_cut_there_the_state_is_whole(at, cause):
    reached = trio.Event()

    async def script(call) -> None:
        if at in {"body", "send"}:
            await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhell")
        if at in {"answer", "body", "boot"}:
            reached.set()
        await trio.sleep_forever()

    async def hang(*_message) -> None:
        reached.set()
        await trio.sleep_forever()

    async with proxied() as (daemon, proxy, instance, _):
        daemon.script = script
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                if at == "boot":
                    await proxy.boot_id(instance, in_time())
                else:
                    receive = hang if at == "upload" else None
                    await forward(
                        proxy, instance, receive=receive, send=hang if at == "send" else None
                    )

            if cause == "sandbox" and at in {"upload", "answer"}:
                nursery.start_soon(expect, OomError, run)
            else:
                nursery.start_soon(run)
            await reached.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
            if cause == "sandbox" and at in {"upload", "answer"}:
                proxy._registry.remove(instance.uid, Ending("oom", "x"))
            else:
                nursery.cancel_scope.cancel()


async def expect(kind: type[Exception], run) -> None:
    with pytest.raises(kind):
        await run()


async def test_cancelled_while_it_finds_out_why_the_state_is_whole():
    async with proxied() as (daemon, proxy, instance, _):
        daemon.script = says(b"", stay=False)
        with trio.move_on_after(0.1) as cut:
            await forward(proxy, instance)
        assert cut.cancelled_caught


# --- which daemon start is the sandbox ---


@pytest.mark.parametrize(
    "info",
    [b'{"boot_id":"b1"}', b'{"boot_id":"b0"}', b'{"boot_id":"b0","claim_id":"c0"}'],
)
async def test_a_sandbox_in_the_making_is_starting_and_not_dead(info):
    """Another replica shakes hands with it just now; this one knows only what the pod tells."""
    async with proxied() as (daemon, proxy, instance, _):
        daemon.script = says(answer(info))
        with pytest.raises(UnreachableError, match="starting") as caught:
            await proxy.boot_id(dataclasses.replace(instance, previous_boot_id="b0"), in_time())
        assert caught.value.retry_after == 1.0
        assert not proxy.has_met(instance.uid)
        daemon.script = says(answer(b'{"boot_id":"b1","claim_id":"c1"}'))
        assert await proxy.boot_id(instance, in_time()) == "b1"
        assert proxy.has_met(instance.uid)


async def test_a_daemon_with_anothers_claim_is_not_the_sandbox():
    async with proxied() as (daemon, proxy, instance, _):
        daemon.script = says(answer(b'{"boot_id":"b1","claim_id":"c2"}'))
        with pytest.raises(DiedError):
            await proxy.boot_id(instance, in_time())


# --- why a sandbox went silent ---


@pytest.mark.parametrize(
    ("now", "error"),
    [
        (None, DeletedError),
        (Ending("evicted", "disk"), EvictedError),
        (UnreachableError("the API server is away"), UnreachableError),
        ("another pod", DeletedError),
        ("as it was", UnreachableError),
    ],
)
async def test_the_api_server_is_asked_when_the_watch_does_not_know(now, error):
    async with proxied() as (daemon, proxy, instance, pods):
        daemon.script = says(b"", stay=False)
        if isinstance(now, Ending):
            pods.now = dataclasses.replace(instance, ending=now)
        elif now == "another pod":
            pods.now = dataclasses.replace(instance, uid="00000002-u")
        elif now != "as it was":
            pods.now = now
        with pytest.raises(error):
            await forward(proxy, instance)


async def test_a_sandbox_that_ended_between_look_up_and_call_is_not_called():
    async with proxied() as (daemon, proxy, instance, _):
        proxy._registry.remove(instance.uid, Ending("oom", "x"))
        with pytest.raises(OomError):
            await forward(proxy, instance)
        assert daemon.calls == []


async def test_a_caller_that_goes_away_in_the_middle_of_its_body_is_not_a_result():
    async def gone() -> dict:
        await trio.lowlevel.checkpoint()
        return {"type": "http.disconnect"}

    async with proxied() as (_, proxy, instance, _pods):
        with pytest.raises(UnreachableError, match="caller went away"):
            await forward(proxy, instance, method="PUT", receive=gone)
    with pytest.raises(LostError):
        await anext(RequestBody(gone))


async def test_an_answer_reaches_the_caller_as_it_comes():
    async with proxied() as (daemon, proxy, instance, _):
        daemon.script = says(answer(b"hello", b"Content-Type: text/plain"))
        start, body, end = await forward(proxy, instance)
        assert (b"content-type", b"text/plain") in start["headers"]
        assert (body["body"], end["body"], end["more_body"]) == (b"hello", b"", False)


# --- headers ---


def test_a_length_beside_chunks_is_a_lie_and_stays_out():
    given = scope("PUT", (b"content-length", b"3"), (b"transfer-encoding", b"chunked"))
    assert dict(request_headers(given, "b1")) == {b"Sandman-Boot-Id": b"b1"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (scope("PUT"), False),
        (scope("PUT", (b"content-length", b"0")), False),
        (scope("PUT", (b"content-length", b"1")), True),
        (scope("GET", (b"transfer-encoding", b"chunked")), True),
        (scope("PUT", version="2"), True),
        (scope("GET", version="2"), False),
        (scope("PUT", (b"content-length", b"0"), version="2"), False),
    ],
)
def test_whether_there_is_a_body(given, expected):
    assert has_body(given) is expected
