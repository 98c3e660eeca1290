"""The reflector: lists, watches, begins again; in virtual time and over real sockets."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import trio

from sandman.service import kube
from sandman.service.kube import reflector
from sandman.service.kube.watch import ListRequest
from tests.unit.service.fake_api import Answer, pod, serving, status
from tests.unit.service.fake_store import Reader, Store, line

# --- the reflector, in virtual time --------------------------------------------------------------


class Script:
    """Stands for `Kube`: lists answer from `store`; a watch plays what `watches` says, then stays."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.watches: list = []
        self.failures: list = []
        self.asked: list[tuple[float, str]] = []

    async def list_page(self, resource, selection, *, continue_, resource_version, limit):
        self.asked.append((trio.current_time(), "list"))
        await trio.sleep(0.01)
        if self.failures:
            raise self.failures.pop(0)
        return self.store.page(ListRequest(continue_), limit, {})

    @contextlib.asynccontextmanager
    async def open_watch(self, resource, selection, params):
        self.asked.append((trio.current_time(), "watch"))
        await trio.sleep(0.01)
        play = self.watches.pop(0) if self.watches else []
        if isinstance(play, kube.KubeError):
            raise play
        yield Stream(self.store, int(params["resourceVersion"]), list(play))


class Stream:
    def __init__(self, store: Store, version: int, play: list) -> None:
        self.store, self.version, self.play = store, version, play

    async def receive(self) -> bytes:
        while self.play:
            item = self.play.pop(0)
            if isinstance(item, kube.KubeError):
                raise item
            if isinstance(item, bytes):
                return item
            await trio.sleep(item)
        while True:  # a live watch
            data = b"".join(
                line(kind, what) for at, kind, what in self.store.history if at > self.version
            )
            self.version = self.store.version
            if data:
                return data
            await trio.sleep(0.1)


@contextlib.asynccontextmanager
async def reflecting(script: Script, reader: Reader, **options):
    made = kube.Reflector(script, kube.PODS, luck=lambda: 0.5, **options)
    send, receive = trio.open_memory_channel(0)

    async def read() -> None:
        async for change in receive:
            reader.apply(change)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run, send)
        nursery.start_soon(read)
        yield made
        nursery.cancel_scope.cancel()


async def test_tells_of_a_list_and_of_what_follows(autojump_clock):
    store, reader = Store(), Reader()
    store.change("a", "put")
    async with reflecting(Script(store), reader) as made:
        await made.synced.wait()
        assert reader.have == store.names()
        store.change("b", "put")
        store.change("a", "delete")
        await trio.sleep(1)
        assert reader.have == store.names()
        assert made.statistics() == {
            "lists": 1, "watches": 1, "changes": 4, "failures": 0, "known": 1, "last_error": "",
        }  # fmt: skip
        assert "watching from" in repr(made)


async def test_a_silent_watch_is_taken_for_dead(autojump_clock):
    store, reader = Store(), Reader()
    script = Script(store)
    script.watches = [[10_000.0]]
    async with reflecting(script, reader) as made:
        await made.synced.wait()
        store.change("a", "put")
        await trio.sleep(reflector.READ_DEADLINE_S + 1)
        assert reader.have == store.names()
        assert "silent" in made.statistics()["last_error"]
        assert made.statistics()["lists"] == 1


async def test_a_watch_that_is_not_answered_is_given_up(autojump_clock):
    class Mute(Script):
        @contextlib.asynccontextmanager
        async def open_watch(self, resource, selection, params):
            await trio.sleep_forever()
            yield

    async with reflecting(Mute(Store()), Reader()) as made:
        await trio.sleep(reflector.CONNECT_DEADLINE_S + 1)
        assert "no answer to a watch" in made.statistics()["last_error"]


async def test_an_old_version_lists_again_at_once_and_then_ever_slower(autojump_clock):
    """The loop that ended others: each watch is refused as too old, for ever."""
    store, reader = Store(), Reader()
    script = Script(store)
    script.watches = [kube.GoneError("too old") for _ in range(8)]
    async with reflecting(script, reader) as made:
        await trio.sleep(120)
        lists = [at for at, what in script.asked if what == "list"]
        gaps = [b - a for a, b in itertools.pairwise(lists)]
        assert gaps[0] < 0.1
        assert all(b > a - 0.01 for a, b in itertools.pairwise(gaps))
        assert gaps[-1] > 5
        assert made.statistics()["failures"] == 8
        store.change("a", "put")
        await trio.sleep(1)
        assert reader.have == store.names()


async def test_after_an_outage_an_old_version_lists_at_once(autojump_clock):
    """An API server that comes back knows no version of before: whoever waits then is blind for no reason."""
    script = Script(Store())
    script.watches = [*(kube.UnavailableError("away") for _ in range(5)), kube.GoneError("too old")]
    async with reflecting(script, Reader()):
        await trio.sleep(60)
    (told, _), (listed, what) = script.asked[6:8]
    assert what == "list"
    assert listed - told < 0.1


async def test_an_error_inside_of_a_stream(autojump_clock):
    store, reader = Store(), Reader()
    script = Script(store)
    gone = line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    script.watches = [[20.0, gone]]
    store.change("a", "put")
    async with reflecting(script, reader) as made:
        await made.synced.wait()
        store.change("a", "delete")
        await trio.sleep(21)
        assert reader.have == {}
        assert reader.syncs == 2


async def test_a_server_that_ends_watches_at_once_is_asked_slowly(autojump_clock):
    script = Script(Store())
    script.watches = [[b""] for _ in range(100)]
    async with reflecting(script, Reader()) as made:
        await trio.sleep(60)
        assert made.statistics()["watches"] < 12
        assert "at once" in made.statistics()["last_error"]


async def test_a_watch_that_ends_in_time_is_no_failure(autojump_clock):
    script = Script(Store())
    script.watches = [[290.0 / 3, b"\n", 290.0 / 3, b"\n", 290.0 / 3, b""] for _ in range(3)]
    async with reflecting(script, Reader()) as made:
        await trio.sleep(950)
        assert made.statistics()["failures"] == 0
        assert made.statistics()["watches"] == 4


async def test_an_outage_is_survived(autojump_clock):
    store, reader = Store(), Reader()
    script = Script(store)
    script.failures = [
        kube.UnavailableError("down"), kube.ForbiddenError("not yet"),
        kube.ThrottledError("busy", retry_after=20),
    ]  # fmt: skip
    store.change("a", "put")
    async with reflecting(script, reader) as made:
        await made.synced.wait()
        assert trio.current_time() > 20
        assert reader.have == store.names()
        assert made.statistics()["failures"] == 3


async def test_who_may_not_look_yet_looks_again_as_often_as_was_said(autojump_clock):
    script, began = Script(Store()), trio.current_time()
    script.failures = [kube.ForbiddenError("not yet") for _ in range(100)]
    async with reflecting(script, Reader()) as made:
        made.most_s = 5.0
        await made.synced.wait()
    assert 100 * 2.5 < trio.current_time() - began < 100 * 5.1


async def test_ends_when_nobody_reads(autojump_clock):
    made = kube.Reflector(Script(Store()), kube.PODS)
    send, receive = trio.open_memory_channel(0)
    receive.close()
    with trio.fail_after(10):
        await made.run(send)


async def test_closes_the_channel_when_cancelled(autojump_clock):
    made = kube.Reflector(Script(Store()), kube.PODS)
    send, receive = trio.open_memory_channel(10)
    with trio.move_on_after(1):
        await made.run(send)
    assert [change async for change in receive] == [kube.Synced()]


# --- the reflector over real sockets -------------------------------------------------------------


async def test_over_http():
    lines = trio.open_memory_channel(0)

    async def gather():
        while True:
            yield await lines[1].receive()

    def handler(seen):
        if seen.params.get("watch"):
            return Answer(chunks=gather())
        return Answer(body={"metadata": {"resourceVersion": "5"}, "items": [pod("a")]})

    reader = Reader()
    async with serving() as (api, client):
        api.handler = handler
        made = kube.Reflector(
            client, kube.PODS, namespace="x", label_selector="l=v", from_cache=True
        )
        send, receive = trio.open_memory_channel(4)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run, send)
            with trio.fail_after(10):
                reader.apply(await receive.receive())
                reader.apply(await receive.receive())
                long = pod("b", big="x" * 200_000)
                data = line("ADDED", long)
                for at in range(0, len(data), 50_000):
                    await lines[0].send(data[at : at + 50_000])
                change = await receive.receive()
            assert change.object.metadata.label("big") == "x" * 200_000
            assert api.seen[0].params == {
                "labelSelector": "l=v", "limit": "500", "resourceVersion": "0",
            }  # fmt: skip
            assert api.seen[1].params["watch"] == "true"
            assert api.seen[1].headers["host"].startswith("127.0.0.1:")
            # The watch has a connection of its own, which a cancelled reader closes at once.
            assert api.connections == 2
            nursery.cancel_scope.cancel()
        with trio.fail_after(10):
            while api.open > 1:  # the fake notices when it sends
                await lines[0].send(b"\n")
                await trio.sleep(0.01)


async def test_streams_that_fail():
    async def nothing():
        return
        yield

    selection = kube.Selection(namespace="x")
    async with serving() as (api, client):
        api.answer_with(Answer(chunks=nothing(), cut=True))
        with pytest.raises(kube.UnavailableError, match="broke"):
            async with client.open_watch(kube.PODS, selection, {}) as stream:
                await stream.receive()
        api.answer_with(Answer(cut=True))
        with pytest.raises(kube.UnavailableError, match=r"without an answer|connection failed"):
            async with client.open_watch(kube.PODS, selection, {}):
                pass
        refusal = status(410, "Expired", "too old")
        refusal.headers["Retry-After"] = "3"
        api.answer_with(refusal)
        with pytest.raises(kube.GoneError, match="too old") as caught:
            async with client.open_watch(kube.PODS, selection, {}):
                pass
        assert caught.value.retry_after == 3
        api.answer_with(Answer(chunks=nothing()))
        async with client.open_watch(kube.PODS, selection, {}) as stream:
            assert await stream.receive() == b""
        async with kube.Kube(kube.Target("http://127.0.0.1:1")) as nowhere:
            with pytest.raises(kube.UnavailableError, match="cannot connect"):
                async with nowhere.open_watch(kube.PODS, selection, {}):
                    pass
