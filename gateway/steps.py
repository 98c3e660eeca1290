"""Steps that prepare a sandbox before it is handed over: parsed, bounded, and named by a hash. Pure.

A step is a command, a file or a tree. They run one after the other, by the daemon's own calls, as the
pod's user unless a step says otherwise, and before the request's `env`, `workdir` and `user` hold: what
a step leaves must be the same whether it ran an hour ahead or for this very request.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING
from urllib.parse import quote
from weakref import WeakValueDictionary

from sandman import names, wire
from sandman.errors import BadRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

STEPS_MAX = 32
"""Steps of one request: what takes more is one script."""
STEPS_MAX_BYTES = 160 * 1024
"""All steps as JSON: a reservation keeps them in an annotation, and an object may have 256 KiB of those."""
PATH_MAX = 4096
"""Characters of a path: Linux takes no longer one."""
OUTPUT_LIMIT = 16 * 1024
"""Bytes kept of what a step writes, head and tail halves: its end is told when it fails."""
NOT_IN_A_STEP = ("detached", "attached_grace_s", "exec_id", "stdin_open", "terminal")
"""Options of a command that need somebody who stays with it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """One call of a daemon that carries a step out."""

    method: str
    path: str
    media_type: str
    body: bytes


@dataclasses.dataclass(frozen=True)
class Steps:
    """All steps of a preparation, in order. Two with the same `text` are the same."""

    text: str
    """Canonical JSON, as it is kept and hashed."""
    calls: tuple[Call, ...]

    def __bool__(self) -> bool:
        return bool(self.calls)

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


NO_STEPS = Steps("[]", ())
# A burst brings the same steps with each of its requests: they are kept once.
_known: WeakValueDictionary[str, Steps] = WeakValueDictionary()


def parse(value: object, field: str = "prepare") -> Steps:
    """The steps in a request's body.

    Args:
        value: the member as it came; None for none.
        field: its name, for errors.

    Raises:
        BadRequestError: names the field at fault.
    """
    if value is None or value == []:
        return NO_STEPS
    if not isinstance(value, list) or len(value) > STEPS_MAX:
        raise BadRequestError(f"{field} must be a list of at most {STEPS_MAX} steps", field=field)
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    if len(text) > STEPS_MAX_BYTES:
        raise BadRequestError(f"{field} is over {STEPS_MAX_BYTES} bytes as JSON", field=field)
    known = _known.get(text)
    if known is None:
        calls = tuple(_call(step, f"{field}[{at}]") for at, step in enumerate(value))
        known = _known[text] = Steps(text, calls)
    return known


def prepared_hash(tenant: str, image: str, steps: Steps) -> str:
    """What a prepared placeholder is good for: requests of this tenant, image and steps. Also without
    steps: then it is one whose image is there already."""
    whole = json.dumps([tenant, image, steps.text])
    return hashlib.sha256(whole.encode()).hexdigest()[:40]


def _call(step: object, field: str) -> Call:
    kinds = {"exec": _exec, "file": _file, "archive": _archive}
    if not isinstance(step, dict) or len(step) != 1 or next(iter(step)) not in kinds:
        raise BadRequestError(f"{field} must have exactly one of {', '.join(kinds)}", field=field)
    [(kind, body)] = step.items()
    if not isinstance(body, dict):
        raise BadRequestError(f"{field}.{kind} must be an object", field=f"{field}.{kind}")
    return kinds[kind](body, f"{field}.{kind}")


def _exec(body: Mapping[str, object], field: str) -> Call:
    try:
        spec = wire.ExecSpec.from_json(body)
    except BadRequestError as error:
        raise BadRequestError(f"{field}: {error.detail}", field=f"{field}.{error.field}") from error
    for name in NOT_IN_A_STEP:
        if body.get(name) is not None:
            raise BadRequestError(f"{field}.{name} is not for a step", field=f"{field}.{name}")
    # One stream: what is told of a step that failed is its last words, in the order they were said.
    spec = spec._replace(merge_stderr=True, output_limit=OUTPUT_LIMIT)
    return Call("POST", "/v1/exec", names.MEDIA_JSON, json.dumps(spec.to_json()).encode())


def _file(body: Mapping[str, object], field: str) -> Call:
    reader = wire.Fields(body, f"{field}.")
    query = _path(reader)
    data = reader.data("content")
    if data is None:
        raise reader.fail("content", "given, as text or as content_b64")
    query += f"&mode={quote(reader.text('mode') or '', safe='')}" if reader.has("mode") else ""
    query += _user(reader)
    reader.finish()
    return Call("PUT", f"/v1/files?{query}", names.MEDIA_BYTES, data)


def _archive(body: Mapping[str, object], field: str) -> Call:
    reader = wire.Fields(body, f"{field}.")
    query = _path(reader)
    data = reader.data("tar")
    if data is None:
        raise reader.fail("tar_b64", "given: a tar, gzipped or not, as base64")
    query += _user(reader)
    reader.finish()
    return Call("PUT", f"/v1/archive?{query}", names.MEDIA_TAR, data)


def _path(reader: wire.Fields) -> str:
    path = reader.text("path")
    if not path or not path.startswith("/") or len(path) > PATH_MAX:
        raise reader.fail("path", f"an absolute path of {PATH_MAX} characters at most")
    return f"path={quote(path.encode('utf-8', 'surrogateescape'), safe='')}"


def _user(reader: wire.Fields) -> str:
    user = reader.text_or_int("user")
    if user is None:
        return ""
    return f"&user={quote(str(user).encode('utf-8', 'surrogateescape'), safe='')}"
