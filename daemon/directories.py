"""`/v1/files/…`: what there is, and changes that carry no bytes."""

# ruff: noqa: PTH104, PTH112
# pathlib costs 5 ms at each pod's start.

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from daemon import config, entries, files, identity, paths, queries
from daemon.documents import dump
from daemon.exchange import Response
from daemon.state import encode
from sandman import names, wire
from sandman.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daemon.exchange import Exchange
    from daemon.state import Sandbox
    from daemon.users import User


class Directories:
    """The handlers of `files/stat`, `list`, `move` and `mkdir`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def stat(self, exchange: Exchange) -> None:
        """Tell what is at a path."""
        asked = paths.take(exchange, self._sandbox)
        follow = queries.flag(exchange.query, "follow")
        with asked.acting():
            document = entries.describe(asked.path, follow=follow)
        _answer(exchange, document)

    def list(self, exchange: Exchange) -> None:
        """Tell what is in a directory."""
        asked = paths.take(exchange, self._sandbox)
        depth = queries.count(exchange.query, "depth", entries.MAX_DEPTH)
        with asked.acting():
            documents = [dump(document) for document in entries.listing(asked.path, depth)]
        body = b'{"entries": [' + b",\n".join(documents) + b"]}"
        exchange.respond(Response(200, body, names.MEDIA_JSON))

    def move(self, exchange: Exchange) -> None:
        """Give something another name."""
        fields = self._fields(exchange)
        source, target = self._named(fields, "from"), self._named(fields, "to")
        replace = fields.flag("replace")
        user = self._user(fields)
        fields.finish()
        with identity.Acting(user, target):
            _move(source, target, replace=replace)
            document = entries.describe(target)
        _answer(exchange, document)

    def mkdir(self, exchange: Exchange) -> None:
        """Make a directory."""
        fields = self._fields(exchange)
        path = self._named(fields, "path")
        parents = fields.flag("parents")
        text = fields.text("mode")
        mode = paths.mode(None if text is None else encode(text))
        user = self._user(fields)
        fields.finish()
        with identity.Acting(user, path):
            _make(path, 0o755 if mode is None else mode, parents=parents)
            document = entries.describe(path)
        _answer(exchange, document)

    def _user(self, fields: wire.Fields) -> User | None:
        return identity.choose(fields.text_or_int("user"), self._sandbox.user)

    def _fields(self, exchange: Exchange) -> wire.Fields:
        body: Mapping[str, object] = wire.load_object(exchange.read_body(config.MAX_HEAD_BYTES))
        return wire.Fields(body)

    def _named(self, fields: wire.Fields, name: str) -> bytes:
        path = fields.text(name)
        if not path:
            raise fields.fail(name, "a path")
        return self._sandbox.absolute(encode(path))


def _move(source: bytes, target: bytes, *, replace: bool) -> None:
    # Not atomic: there is no rename in Python that refuses to replace. Who needs that sends one such
    # call at a time.
    if not replace and os.path.lexists(target):
        raise ConflictError(f"{paths.text(target)}: exists, and `replace` is not set", field="to")
    try:
        os.rename(source, target)
    except OSError as error:
        is_there = os.path.lexists(source)
        failure = files.translate(error, target if is_there else source)
        failure.field = "to" if is_there else "from"
        raise failure from None


def _make(path: bytes, mode: int, *, parents: bool) -> None:
    if parents:
        made = files.make_directories(path, mode)
        if not made and not os.path.isdir(path):
            raise FileExistsError(17, "is no directory")
    elif not files.make_directory(path, mode):
        raise FileExistsError(17, "exists already")


def _answer(exchange: Exchange, document: Mapping[str, object]) -> None:
    exchange.respond(Response(200, dump(document), names.MEDIA_JSON))
