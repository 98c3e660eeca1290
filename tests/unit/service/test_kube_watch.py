"""Watches: whatever is missed, repeated, cut or refused, the reader ends up with what the server has."""

from __future__ import annotations

import json
import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandman.service import kube
from sandman.service.kube import watch
from sandman.service.kube.watch import Driver, ListRequest, WatchRequest
from tests.unit.service.fake_api import pod
from tests.unit.service.fake_store import Page, Reader, Store, line

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
