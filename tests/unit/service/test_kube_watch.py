"""Watches: whatever is missed, repeated, cut or refused, the reader ends up with what the server has."""

from __future__ import annotations

import contextlib
import itertools
import json
import random

import msgspec
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from sandman.service import kube
from sandman.service.kube import objects, reflector, watch
from sandman.service.kube.watch import Driver, ListRequest, WatchRequest
from tests.unit.service.fake_api import Answer, pod, serving, status

Page = objects.ListOf[kube.Pod]


# --- a server in memory: history, compaction, pages ----------------------------------------------


class Store:
    """What etcd and the watch cache are to a client: objects, a history, a compaction."""

    def __init__(self) -> None:
        self.version = 1
        self.objects: dict[str, dict] = {}
        self.history: list[tuple[int, str, dict]] = []
        self.compacted = 0
        self._uids = 0

    def change(self, name: str, what: str) -> None:
        self.version += 1
        if what == "delete" and name in self.objects:
            gone = self.objects.pop(name)
            self._log("DELETED", pod(name, version=self.version, uid=gone["metadata"]["uid"]))
        elif what == "put":
            known = self.objects.get(name)
            if known is None:
                self._uids += 1
            uid = known["metadata"]["uid"] if known else f"u{self._uids}"
            self.objects[name] = pod(name, version=self.version, uid=uid)
            self._log("MODIFIED" if known else "ADDED", self.objects[name])

    def _log(self, kind: str, item: dict) -> None:
        self.history.append((self.version, kind, item))

    def page(self, request: ListRequest, size: int, snapshots: dict[str, tuple]) -> Page:
        """A page of a consistent snapshot, as the server serves them."""
        version, items = snapshots.get(
            request.continue_, (self.version, list(self.objects.values()))
        )
        token = ""
        if len(items) > size:
            token = f"t{len(snapshots)}"
            snapshots[token] = (version, items[size:])
        body = {
            "metadata": {"resourceVersion": str(version), "continue": token},
            "items": items[:size],
        }
        return msgspec.json.decode(json.dumps(body), type=Page)

    def events_after(self, version: int) -> bytes:
        if version < self.compacted:
            return line("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
        lines = [line(kind, item) for at, kind, item in self.history if at > version]
        return b"".join(lines) + line(
            "BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}}
        )

    def names(self) -> dict[str, tuple[str, str]]:
        return {
            name: (item["metadata"]["uid"], item["metadata"]["resourceVersion"])
            for name, item in self.objects.items()
        }


def line(kind: str, item: dict) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


class Reader:
    """Applies changes, and checks that they make sense."""

    def __init__(self) -> None:
        self.have: dict[str, tuple[str, str]] = {}
        self.syncs = 0

    def apply(self, change: kube.Change[kube.Pod]) -> None:
        if isinstance(change, kube.Synced):
            self.syncs += 1
            return
        meta = change.object.metadata
        value = (meta.uid, meta.resource_version)
        match change:
            case kube.Added():
                assert meta.name not in self.have
                self.have[meta.name] = value
            case kube.Modified():
                assert self.have[meta.name][0] == meta.uid
                self.have[meta.name] = value
            case kube.Deleted():
                assert self.have.pop(meta.name)[0] == meta.uid


# --- the driver ----------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abcdef")),
        st.tuples(st.just("delete"), st.sampled_from("abcdef")),
        st.tuples(st.just("talk"), st.integers(0, 2**32)),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("fail"), st.none()),
        st.tuples(st.just("garble"), st.none()),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(steps=STEPS, size=st.integers(1, 4))
def test_the_reader_ends_up_with_what_the_server_has(steps, size):
    store, reader, driver = Store(), Reader(), Driver(kube.PODS)
    snapshots: dict[str, tuple] = {}
    for what, detail in steps:
        if what in {"put", "delete"}:
            store.change(detail, what)
        elif what == "compact":
            store.compacted = store.version
            snapshots.clear()
        elif what == "fail":
            driver.receive_failure(kube.UnavailableError("cut"))
        elif what == "garble" and isinstance(driver.next_request(), WatchRequest):
            with pytest.raises(kube.UnavailableError):
                list(driver.receive_data(b'{"type":"ADDED","object":{"metadata":7}}\n'))
        elif what == "talk":
            talk(store, reader, driver, size, snapshots, random.Random(detail))
    for _ in range(40):
        talk(store, reader, driver, size, snapshots, None)
    assert reader.have == store.names()
    assert reader.syncs >= 1
    assert len(driver) == len(store.objects)


def talk(store, reader, driver, size, snapshots, luck) -> None:
    """One request and its answer, the answer of a watch perhaps cut at any byte."""
    request = driver.next_request()
    if isinstance(request, ListRequest):
        if request.continue_ and request.continue_ not in snapshots:
            driver.receive_failure(kube.GoneError("token too old"))
            return
        for change in driver.receive_page(store.page(request, size, snapshots)):
            reader.apply(change)
        return
    data = store.events_after(int(request.resource_version))
    if luck is not None:
        data = data[: luck.randint(0, len(data))]
    try:
        for piece in pieces(data, luck):
            for change in driver.receive_data(piece):
                reader.apply(change)
        driver.receive_end()
    except kube.KubeError as error:
        driver.receive_failure(error)


def pieces(data: bytes, luck) -> list[bytes]:
    if luck is None or not data:
        return [data]
    cuts = sorted(luck.randint(0, len(data)) for _ in range(luck.randint(0, 4)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def decode(items: list[dict], version: str = "5", continue_: str = "") -> Page:
    body = {"metadata": {"resourceVersion": version, "continue": continue_}, "items": items}
    return msgspec.json.decode(json.dumps(body), type=Page)


def test_requests_follow_the_state():
    driver = Driver(kube.PODS)
    assert driver.next_request() == ListRequest("")
    driver.receive_page(decode([pod("a")], continue_="t"))
    assert driver.next_request() == ListRequest("t")
    assert "listing" in repr(driver)
    driver.receive_page(decode([pod("b")]))
    assert driver.next_request() == WatchRequest("5")
    assert driver.next_request().params() == {
        "resourceVersion": "5", "allowWatchBookmarks": "true", "timeoutSeconds": "290",
    }  # fmt: skip
    list(driver.receive_data(line("BOOKMARK", {"metadata": {"resourceVersion": "opaque!"}})))
    driver.receive_failure(kube.UnavailableError("cut"))
    assert driver.next_request() == WatchRequest("opaque!")
    driver.receive_failure(kube.GoneError("too old"))
    assert driver.next_request() == ListRequest("")


def test_what_came_before_a_fault_is_told():
    driver = Driver(kube.PODS)
    driver.receive_page(decode([]))
    changes = driver.receive_data(
        line("ADDED", pod("a")) + line("ERROR", {"code": 410, "message": "x"})
    )
    assert isinstance(next(changes), kube.Added)
    with pytest.raises(kube.GoneError):
        next(changes)


def test_a_name_that_was_taken_anew_is_two_changes():
    driver = Driver(kube.PODS)
    driver.receive_page(decode([pod("a", uid="1")]))
    driver.restart()
    gone, new, _ = driver.receive_page(decode([pod("a", version=9, uid="2")]))
    assert isinstance(gone, kube.Deleted)
    assert gone.object.metadata.uid == "1"
    assert isinstance(new, kube.Added)


def test_an_unchanged_list_tells_nothing_but_that():
    driver = Driver(kube.PODS)
    driver.receive_page(decode([pod("a")]))
    driver.restart()
    assert driver.receive_page(decode([pod("a")])) == [kube.Synced()]


def test_deletions_of_the_unknown_and_empty_lines_are_nothing():
    driver = Driver(kube.PODS)
    driver.receive_page(decode([]))
    assert list(driver.receive_data(line("DELETED", pod("z")) + b"\n\n")) == []


def test_an_endless_line_is_a_fault(monkeypatch):
    monkeypatch.setattr(watch, "MAX_LINE_BYTES", 100)
    driver = Driver(kube.PODS)
    driver.receive_page(decode([]))
    with pytest.raises(kube.UnavailableError, match="longer"):
        list(driver.receive_data(b"x" * 101))
    assert driver.next_request() == ListRequest("")


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
