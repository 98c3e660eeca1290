"""Files, trees and servers in a sandbox."""

from __future__ import annotations

from typing import Unpack

from gateway.openapi import problems
from gateway.openapi import schema as s
from gateway.openapi.commands import USER
from gateway.openapi.operation import NOTHING, Answer, More, Operation, Parameter, told
from sandman import names
from sandman.errors import PortClosedError

_AT = "/v1/sandboxes/{id}"
PORT_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")

_MODE = s.text("octal", pattern=r"^0*[0-7]{1,4}$", maxLength=5)
ENTRY = s.answer(
    {
        "path": s.text(),
        "type": s.text("file, directory, symlink, fifo, device or socket"),
        "size": s.whole("bytes"),
        "mode": s.text("octal"),
        "uid": s.whole(),
        "gid": s.whole(),
        "mtime": s.number("seconds since 1970"),
    },
    {"target": s.text("of a symlink"), "error": s.text("why it could not be looked into")},
)
WRITTEN = s.answer({
    "path": s.text(),
    "size": s.whole("bytes"),
    "sha256": s.text("hex"),
    "mode": s.text("octal"),
})  # fmt: skip
UNPACKED = s.answer({
    "path": s.text(),
    "members": s.whole(),
    "bytes": s.whole(),
    "skipped": s.listed(s.listed(s.text(), "name and why")),
    "skipped_count": s.whole(),
})  # fmt: skip
MOVE = s.body(
    {"replace": s.flag(), "user": USER},
    {"from": s.text(minLength=1), "to": s.text(minLength=1)},
)
DIRECTORY = s.body(
    {"parents": s.flag("make those above it, too"), "mode": _MODE, "user": USER},
    {"path": s.text(minLength=1)},
)
INFO = s.answer({
    "boot_id": s.text(),
    "version": s.text("of its daemon"),
    "claim_id": s.maybe(s.text()),
    "uptime_s": s.number(),
    "workdir": s.text(),
    "uid": s.whole(),
    "gid": s.whole(),
    "running": s.whole("commands"),
    "used_s": s.maybe(s.number("seconds ago")),
    "renewed_s": s.maybe(s.number("seconds ago")),
    "idle_s": s.maybe(s.number("for so many seconds")),
})  # fmt: skip

SCHEMAS = {
    "Entry": ENTRY,
    "Written": WRITTEN,
    "Unpacked": UNPACKED,
    "Move": MOVE,
    "NewDirectory": DIRECTORY,
    "Info": INFO,
}

_BYTES = {names.MEDIA_BYTES: s.text(format="binary")}
_TAR = {names.MEDIA_TAR: s.text(format="binary")}
_PATH = (
    Parameter(
        "path", s.text(minLength=1), "absolute, or from the working directory", required=True
    ),
    Parameter("user", s.text(minLength=1), "as whom; name or uid"),
)
_SWITCH = s.one_of(("0", "1"))
_MOST = Parameter("max_bytes", s.whole(), "more is 413")
_FILE = {"Sandman_Mode": "octal"}


def _do(
    method: str, tail: str, summary: str, answers: dict[int, Answer], **more: Unpack[More]
) -> Operation:
    given: More = {"reasons": problems.PATHS, "tag": "files", **more}
    return Operation(method=method, path=f"{_AT}/{tail}", summary=summary, answers=answers, **given)


def _to_port(method: str, tail: str) -> Operation:
    return Operation(
        method=method,
        path=f"{_AT}/ports/{{port}}{tail}",
        tag="ports",
        summary="whatever the server that listens there answers",
        answers={0: Answer("the server's own answer, its status with it")},
        reasons=problems.DAEMON | {PortClosedError},
        body={"*/*": {}} if method in {"POST", "PUT", "PATCH"} else {},
    )


OPERATIONS = (
    _do("GET", "info", "what its daemon says of itself", {200: told(s.ref("Info"))},
        tag="sandboxes", reasons=problems.DAEMON),
    _do(
        "GET", "files", "a file's bytes",
        {200: Answer("the file", _BYTES), 206: Answer("the part that Range asked for", _BYTES),
         416: Answer("it has no such part", {names.MEDIA_PROBLEM: s.ref("Problem")})},
        parameters=(*_PATH, _MOST, Parameter("Range", s.text(), "bytes=a-b", "header")),
    ),
    _do(
        "HEAD", "files", "the same without the body",
        {200: Answer("there is such a file"), 206: Answer("and it has that part"), 416: Answer("it has no such part")},
        parameters=(*_PATH, _MOST),
    ),
    _do(
        "PUT", "files", "write a file, whole or not at all", {200: told(s.ref("Written"))}, body=_BYTES,
        parameters=(*_PATH, Parameter("mode", _MODE), Parameter("sha256", s.text(pattern="^[0-9a-fA-F]{64}$"))),
    ),
    _do("DELETE", "files", "remove it", {204: NOTHING}, parameters=(*_PATH, Parameter("recursive", _SWITCH))),
    _do("GET", "files/stat", "what is there", {200: told(s.ref("Entry"))},
        parameters=(*_PATH, Parameter("follow", _SWITCH, "what a link leads to"))),
    _do("GET", "files/list", "what is in a directory",
        {200: told(s.answer({"entries": s.listed(s.ref("Entry"))}))},
        parameters=(*_PATH, Parameter("depth", s.whole("", 1, 64)))),
    _do("POST", "files/move", "give it another name", {200: told(s.ref("Entry"))},
        body={names.MEDIA_JSON: s.ref("Move")}, needs_body=True),
    _do("POST", "files/mkdir", "make a directory", {200: told(s.ref("Entry"))},
        body={names.MEDIA_JSON: s.ref("NewDirectory")}, needs_body=True),
    _do("GET", "archive", "a directory as one tar", {200: Answer("the tar", _TAR)}, parameters=_PATH),
    _do("PUT", "archive", "unpack a tar", {200: told(s.ref("Unpacked"))}, body=_TAR, needs_body=True, parameters=_PATH),
    *(_to_port(method, tail) for tail in ("", "/{path}") for method in PORT_METHODS),
)  # fmt: skip
