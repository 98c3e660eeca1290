"""Calls to daemons: what a cancellation leaves, and how long transports are kept."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import trio

from gateway import upstream
from tests.unit.gateway.test_upstream import call, reaching

pytestmark = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")


# --- cancelled ---


@pytest.mark.parametrize("at", ["connecting", "pausing", "head", "body", "upload"])
async def test_cancelled_there_no_transport_is_in_use(at):
    reached = trio.Event()

    async def script(call):
        if at == "body":
            await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort")
        reached.set()
        await trio.sleep_forever()

    async def endless():
        while True:
            yield b"x" * 65536

    async with reaching() as (daemon, way, instance), trio.open_nursery() as nursery:
        daemon.script = script
        if at == "pausing":
            way._port = 1
        if at == "connecting":
            way._use = lambda one: cut(nursery, type(way)._use(way, one))
        nursery.start_soon(call, way, instance, "/", endless() if at == "upload" else None)
        if at in {"head", "body", "upload"}:
            await reached.wait()
        if at == "upload":
            await trio.sleep(0.1)  # until the socket's buffers are full
        else:
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert at in {"connecting", "pausing"} or [e.users for e in way._open.values()] == [1]
        nursery.cancel_scope.cancel()


@contextlib.contextmanager
def cut(nursery, using):
    with using as transport:
        nursery.cancel_scope.cancel()
        yield transport


# --- transports ---


async def test_transports_of_pods_that_are_gone_are_closed_and_those_in_use_are_not():
    async with reaching() as (daemon, way, instance):
        other = dataclasses.replace(instance, uid="other")
        await call(way, instance)
        async with way.open(other, "GET", "/", [], None):
            await way.close_unused(lambda _uid: False)
            assert list(way._open) == ["other"]
        await way.close_unused(lambda _uid: True)
        assert list(way._open) == ["other"]
        await way.close_unused(lambda _uid: False)
        assert list(way._open) == []
        assert daemon.connections == 2


async def test_over_the_limit_those_unused_for_longest_are_closed(monkeypatch):
    monkeypatch.setattr(upstream, "TRANSPORTS_MAX", 2)
    async with reaching() as (_, way, instance):
        for uid in ("a", "b", "c", "a"):
            await call(way, dataclasses.replace(instance, uid=uid))
        await way.close_unused(lambda _uid: True)
        assert list(way._open) == ["c", "a"]


async def test_an_ipv6_address_is_dialled_in_brackets():
    try:
        listeners = await trio.open_tcp_listeners(0, host="::1")
    except OSError:
        pytest.skip("no IPv6 here")
    async with reaching() as (daemon, way, instance), trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, daemon._serve, listeners)
        way._port = listeners[0].socket.getsockname()[1]
        info = await way.info(dataclasses.replace(instance, address="::1"))
        assert info.boot_id == "b1"
        assert daemon.calls[0].headers[b"host"].startswith(b"[::1]:")
        nursery.cancel_scope.cancel()
