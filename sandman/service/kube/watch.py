"""What a watch means, without I/O: pages and bytes in, changes and the next request out.

    LISTING ──last page──▶ WATCHING ──end of stream, failure──▶ WATCHING (from the last version)
       ▲                      │
       └──── 410, nonsense ───┘

The driver remembers every object that it told of. So a repeated list, after whatever was missed,
becomes the same kind of changes as a watch: deletions too, which a plain list cannot tell. Versions
are opaque strings. The changes of one object are in order; a reader that applies them all has what
the server has.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from sandman.service.kube import errors, objects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandman.service.kube.resources import Resource

K = TypeVar("K", bound=objects.KubeObject)

WATCH_TIMEOUT_S = 290
"""Seconds after which the server ends a watch: below five minutes, where common proxies cut it."""
MAX_LINE_BYTES = 16 * 1024 * 1024
"""Longest event. An object is at most 3 MB at the server; more is a broken stream."""


@dataclasses.dataclass(frozen=True, slots=True)
class Added(Generic[K]):
    """An object that was not known before."""

    object: K


@dataclasses.dataclass(frozen=True, slots=True)
class Modified(Generic[K]):
    """A known object in another version."""

    object: K


@dataclasses.dataclass(frozen=True, slots=True)
class Deleted(Generic[K]):
    """An object that is gone, or no longer selected; in its last state that is known."""

    object: K


@dataclasses.dataclass(frozen=True, slots=True)
class Synced:
    """All that a list held has been told; sent after each list, the first and every later one."""


Change = Added[K] | Modified[K] | Deleted[K] | Synced


@dataclasses.dataclass(frozen=True, slots=True)
class ListRequest:
    """Ask for a page; `continue_` is "" for the first."""

    continue_: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class WatchRequest:
    """Watch from a version on."""

    resource_version: str

    def params(self) -> dict[str, str]:
        """The query's part of it."""
        return {
            "resourceVersion": self.resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_TIMEOUT_S),
        }


class _Line(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct, frozen=True):
    metadata: objects.ObjectMeta


class Driver(Generic[K]):
    """The state of one watch. See the module.

    Args:
        resource: the kind that is watched; typed, since its metadata is read.
    """

    def __init__(self, resource: Resource[K]) -> None:
        self._objects = msgspec.json.Decoder(resource.type)
        self._lines = msgspec.json.Decoder(_Line)
        self._known: dict[tuple[str, str], K] = {}
        self._version: str | None = None
        self._continue = ""
        self._seen: set[tuple[str, str]] = set()
        self._buffer = bytearray()

    def __repr__(self) -> str:
        state = "listing" if self._version is None else f"watching from {self._version}"
        return f"<Driver {state}, {len(self._known)} known>"

    def __len__(self) -> int:
        return len(self._known)

    def next_request(self) -> ListRequest | WatchRequest:
        """What to ask the server now."""
        if self._version is None:
            return ListRequest(self._continue)
        return WatchRequest(self._version)

    # --- lists -----------------------------------------------------------------------------------

    def receive_page(self, page: objects.ListOf[K]) -> list[Change[K]]:
        """The changes that a page brings; the last page brings deletions and Synced too."""
        changes = [change for item in page.items or () for change in self._listed(item)]
        self._continue = page.metadata.continue_
        if not self._continue:
            changes += self._end_of_list(page.metadata.resource_version)
        return changes

    def _listed(self, item: K) -> Iterator[Change[K]]:
        self._seen.add(_key(item))
        known = self._known.get(_key(item))
        if known is None or _identity(known) != _identity(item):
            yield from self._upsert(item)

    def _end_of_list(self, version: str) -> Iterator[Change[K]]:
        for key in [key for key in self._known if key not in self._seen]:
            yield Deleted(self._known.pop(key))
        self._seen.clear()
        self._buffer.clear()
        self._version = version
        yield Synced()

    # --- watches ---------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> Iterator[Change[K]]:
        """The changes that these bytes of a watch complete, at any split. Take them to the end.

        A generator, so that what came before a fault in the same bytes is told before it is raised.

        Raises:
            GoneError: the version is too old.
            UnavailableError: the stream makes no sense; the next request is a list.
            KubeError: the server ends the watch with another error.
        """
        *lines, rest = (self._buffer + data).split(b"\n")
        self._buffer = rest
        try:
            for line in lines:
                if line.strip():
                    yield from self._line(line)
        except msgspec.MsgspecError as error:
            self.restart()
            raise errors.UnavailableError(f"the watch makes no sense: {error}") from error
        if len(rest) > MAX_LINE_BYTES:
            self.restart()
            raise errors.UnavailableError(f"an event is longer than {MAX_LINE_BYTES} bytes")

    def _line(self, line: bytearray) -> Iterator[Change[K]]:
        event = self._lines.decode(line)
        if event.type == "ERROR":
            raise errors.from_status(msgspec.json.decode(event.object, type=objects.Status))
        if event.type == "BOOKMARK":
            self._version = msgspec.json.decode(
                event.object, type=_Bookmark
            ).metadata.resource_version
            return
        item = self._objects.decode(event.object)
        if event.type == "DELETED":
            yield from self._remove(item)
        else:
            yield from self._upsert(item)
        self._version = item.metadata.resource_version

    def receive_end(self) -> None:
        """The stream of a watch ended or broke; the next one goes on from the last version."""
        self._buffer.clear()

    def restart(self) -> None:
        """List again, from the first page on. What is known stays known, to be compared."""
        self._version = None
        self._continue = ""
        self._seen.clear()
        self._buffer.clear()

    def receive_failure(self, error: errors.KubeError) -> None:
        """A request failed, or a stream told of an error."""
        self.receive_end()
        # A list that failed in the middle starts over too: its token may be what is wrong.
        if isinstance(error, errors.GoneError) or self._version is None:
            self.restart()

    # --- what is known ---------------------------------------------------------------------------

    def _upsert(self, item: K) -> Iterator[Change[K]]:
        known = self._known.get(_key(item))
        self._known[_key(item)] = item
        if known is None:
            yield Added(item)
        elif known.metadata.uid == item.metadata.uid:
            yield Modified(item)
        else:
            # The name was taken anew while nobody looked.
            yield Deleted(known)
            yield Added(item)

    def _remove(self, item: K) -> Iterator[Change[K]]:
        if self._known.pop(_key(item), None) is not None:
            yield Deleted(item)


def _identity(item: Any) -> tuple[str, str]:  # noqa: ANN401
    return item.metadata.uid, item.metadata.resource_version


def _key(item: Any) -> tuple[str, str]:  # noqa: ANN401 - mypy loses the bound of K here
    return item.metadata.namespace, item.metadata.name
