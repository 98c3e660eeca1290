"""Calls at random for every route, from right to wrong by degrees."""

from __future__ import annotations

import io
import json
import tarfile
from collections import deque
from random import Random
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote_from_bytes

from sandman import names, wire
from tests.fuzz.bodies import NAMES, VALUES
from tests.unit.daemon.harness import TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable

PATHS = (
    b"/work/a", b"/work/b", b"/work/d", b"/work/d/e", b"/work/d/e/f", b"a", b"../tmp/x", b"/work", b"/",
    b"/proc/self/status", b"/proc/1/environ", b"/proc/self/fd/0", b"/dev/null", b"/dev/zero", b"/work/fifo",
    b"/usr/bin/env", b"/etc/passwd", b"/nowhere/x", b"/work/" + b"n" * 255, b"/work/" + b"n" * 256,
    b"/work/\xff\n", b"//work//a", b"/work/a/b", b"/work/.", b"/work/d/..", b"/" + b"x/" * 2100, b"/work/\x00", b"",
)  # fmt: skip
COMMANDS: tuple[object, ...] = (
    ["true"], ["false"], ["echo", "a", "\udcff"], ["cat"], ["sleep", "0.05"], ["sh", "-c", "exit 7"],
    ["sh", "-c", "kill -9 $$"], ["sh", "-c", "(sleep 0.1 &) ; echo x >&2"], ["nowhere"], ["/etc/passwd"],
    ["seq", "20000"], ["head", "-c", "300000", "/dev/zero"], ["/"], ["a\0"], [""], [], "true", [1],
    ["true", "x" * 200_000], ["true", *["y"] * 3000], ["sleep", "30"],
)  # fmt: skip
IDS = ("a", "b", "c", "x.y_z-1", "...", "a" * 64, "a" * 65, "", "é", "a/b", "%41")
USERS: tuple[object, ...] = (
    "root",
    "ann",
    "nobody-here",
    0,
    1000,
    65534,
    2**32 - 1,
    2**32,
    10**30,
    "0",
    "",
)
TAILS = ("?x=1", "&path=a", "%", "&a=%zz", "/", "?")
HEADERS = (
    *(("Range", value) for value in ("bytes=0-", "bytes=-5", "bytes=9-1", "x", "bytes=" + "9" * 40)),
    *(("Content-Type", value) for value in ("text/plain", names.MEDIA_FRAMES, "", "\xff")),
    ("Accept", names.MEDIA_FRAMES), ("Expect", "100-continue"), ("Connection", "close"),
    ("X-Long", "x" * 20_000), (names.HEADER_BOOT_ID, "another"), ("Authorization", "Bearer wrong"),
)  # fmt: skip
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "get")


class Dice(Random):
    """Chance, and the names that commands got lately."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.names = deque(IDS[:4], maxlen=12)

    def new_name(self) -> str:
        """Seldom one that was used before."""
        if self.random() < 0.8:
            self.names.append(f"n{self.getrandbits(40):x}")
        return self.choice(self.names)


class Ask(NamedTuple):
    """One request. `patience_s`: then the caller goes away, which is no fault of the daemon's."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    chunked: bool = False
    patience_s: float | None = None


def some(random: Dice) -> Ask:
    """One call."""
    ask = random.choice(KINDS)(random)
    return ask if random.random() < 0.8 else spoiled(ask, random)


def spoiled(ask: Ask, random: Dice) -> Ask:
    """The same with something wrong at it."""
    return random.choice((
        lambda: ask._replace(method=random.choice(METHODS)),
        lambda: ask._replace(target=ask.target + random.choice(TAILS)),
        lambda: ask._replace(body=mangled(ask.body, random)),
        lambda: ask._replace(body=random.randbytes(random.randrange(2000))),
        lambda: ask._replace(headers=(*ask.headers, random.choice(HEADERS))),
        lambda: ask._replace(chunked=True),
    ))()  # fmt: skip


def mangled(body: bytes, random: Random) -> bytes:
    """The same with a few bytes changed, or cut."""
    changed = bytearray(body)
    for _ in range(random.randrange(1, 4)):
        if changed:
            changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(
        changed[: random.randrange(len(changed) + 1)] if random.random() < 0.3 else changed
    )


# --- commands ---


def spec(random: Dice) -> dict[str, object]:
    """A command's members."""
    body: dict[str, object] = {"argv": random.choice(COMMANDS), "timeout_s": 0.5}
    odds = {
        "cwd": PATHS, "user": USERS, "exec_id": IDS, "stdin": ("", "in\n", "x" * 100_000),
        "env": ({}, {"A": "b"}, {"PATH": "/nowhere"}, {"": "x"}, {"A": "\udcff"}),
        "env_mode": ("merge", "replace", "x"), "merge_stderr": (True, False),
        "output_limit": (0, 1, 10, 4096, 2**40), "timeout_s": (0.05, 0.3, -1, 1e-9, "1"),
        "attached_grace_s": (0.05, 301), "stdin_open": (True,), "detached": (True, False), "login": (True,),
        "terminal": ({}, {"rows": 9, "cols": 9}, {"rows": 0}, {"term": ""}, 1),
    }  # fmt: skip
    for name, values in odds.items():
        if random.random() < 0.12:
            value = random.choice(values)  # type: ignore[arg-type]
            body[name] = (
                value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
            )
    if random.random() < 0.1:
        body["shell"] = random.choice(("echo $0", "exit 3", "cat", "("))
        del body["argv"]
    if random.random() < 0.1:
        body[random.choice(NAMES)] = random.choice(VALUES)
    return body


def execution(random: Dice) -> Ask:
    """Run a command."""
    headers = [("Accept", names.MEDIA_FRAMES)] if random.random() < 0.5 else []
    body = dumped(spec(random))
    if random.random() < 0.3:
        headers.append(("Content-Type", names.MEDIA_FRAMES))
        body = wire.encode_frame(wire.REQUEST, body)
        for _ in range(random.randrange(3)):
            body += wire.encode_frame(wire.STDIN, random.randbytes(random.randrange(9000)))
        body += wire.encode_frame(random.choice((wire.STDIN_CLOSE, wire.STDIN_CLOSE, wire.EXIT)))
    return Ask("POST", "/v1/exec", tuple(headers), body)


def start(random: Dice) -> Ask:
    """Start a command that is looked after later."""
    return Ask("POST", "/v1/processes", (), dumped({"exec_id": random.new_name(), **spec(random)}))


def process(random: Dice) -> Ask:
    """Something about a command that may be there."""
    place = "/v1/processes/" + random.choice((*random.names, *random.names, *IDS))
    offset = random.choice(("0", "1", "5", "99999999", "-1", "x", "9" * 18, "9" * 19))
    return random.choice((
        Ask("GET", "/v1/processes"),
        Ask("GET", place),
        Ask("GET", f"{place}?wait_s={random.choice(('0', '0.05', '1e9', 'nan', '-0', '', 'inf', '1_0'))}", patience_s=1),
        Ask("GET", f"{place}/output?stdout={offset}", patience_s=1),
        Ask("GET", f"{place}/output?stderr={offset}&stdout=0", patience_s=1),
        Ask("POST", f"{place}/stdin?offset={offset}", body=b"more\n"),
        Ask("POST", f"{place}/stdin?close={random.choice('01x')}", body=b"x" * random.randrange(3000)),
        Ask("POST", f"{place}/signal", body=dumped({"signal": random.choice(("TERM", "KILL", "sigstop", 9, 0, 65, -1, "x", 10**30)), "tree": random.choice((True, False))})),
        Ask("DELETE", place),
    ))  # fmt: skip


# --- sessions and terminals ---

SESSIONS = ("default", "s1", "s2", "...", "a b", "")
TYPED = (
    "true",
    "cd /work; pwd",
    "exit 3",
    "sleep 0.1 &",
    "cat",
    "(",
    "seq 5000",
    "kill -9 $$",
    "a\0",
    "",
)


def session(random: Dice) -> Ask:
    """Something about a shell that keeps its state. The caller leaves before the longest answers."""
    name = random.choice(SESSIONS)
    place = f"/v1/sessions/{quote_from_bytes(name.encode())}"
    if random.random() < 0.3:
        body: dict[str, object] = {"name": name, "startup_timeout_s": 2, **some_of(random, ROOMS)}
        return Ask("POST", "/v1/sessions", (), dumped(body), patience_s=10)
    if random.random() < 0.5:
        body = {"command": random.choice(TYPED), "timeout_s": 0.3, **some_of(random, LINES)}
        return Ask(
            "POST", f"{place}/run?wait_s={random.choice(('0.2', '1', 'x'))}", (), dumped(body)
        )
    return random.choice((
        Ask("GET", "/v1/sessions"),
        Ask("GET", place),
        Ask("DELETE", place),
        Ask("POST", f"{place}/input?wait_s=0.2", (), dumped({"data": "x\n", **some_of(random, LINES)})),
        Ask("POST", f"{place}/interrupt?wait_s=0.5", (), dumped({"grace_s": 0.2, **some_of(random, LINES)})),
        Ask("GET", f"/v1/processes/{random.choice(random.names)}/terminal?stdout=0"),
        Ask("POST", f"/v1/processes/{random.choice(random.names)}/resize", (), dumped(some_of(random, ROOMS))),
    ))  # fmt: skip


ROOMS: dict[str, tuple[object, ...]] = {
    "rows": (1, 24, 0, 70_000, "x"), "cols": (1, 80, -1), "columns": (80, 0), "shell": ("sh", "bash", "nowhere", 1),
    "cwd": ("/work", "/nowhere", "\udcff"), "env": ({}, {"A": "b"}, {"": ""}), "rc": (False,), "key": ("k", 1),
}  # fmt: skip
LINES: dict[str, tuple[object, ...]] = {
    "interactive": (True, 1), "expect": (["1"], [], [""] * 33, "x"), "on_timeout": ("leave", "x"),
    "output_limit": (0, 10, 2**40), "command_id": ("c1", "c2", "é"), "target": ("c1",), "data_b64": ("AA==", "A"),
}  # fmt: skip


def some_of(random: Random, odds: dict[str, tuple[object, ...]]) -> dict[str, object]:
    """A few of these members."""
    return {name: random.choice(values) for name, values in odds.items() if random.random() < 0.15}


# --- files ---


def file(random: Dice) -> Ask:
    """A file in or out, or away."""
    path, mode = (
        quote_from_bytes(random.choice(PATHS)),
        random.choice(("0644", "0", "7777", "8", "17777", "")),
    )
    user = random.choice(("root", "ann", "1000", "x", "99999999999999999999", ""))
    return random.choice((
        Ask("GET", f"/v1/files?path={path}"),
        Ask("HEAD", f"/v1/files?path={path}"),
        Ask("PUT", f"/v1/files?path={path}", body=random.randbytes(random.choice((0, 5, 70_000)))),
        Ask("PUT", f"/v1/files?path={path}&mode={mode}&user={user}", body=b"x"),
        Ask("PUT", f"/v1/files?path={path}&sha256={random.choice(('', 'x', '0' * 64))}", body=b"x"),
        Ask("DELETE", f"/v1/files?path={path}&recursive={random.choice('012')}"),
        Ask("GET", f"/v1/files/stat?path={path}&follow={random.choice('012')}"),
        Ask("GET", f"/v1/files/list?path={path}&depth={random.choice(('1', '3', '64', '65', '0', '-', '9' * 30))}"),
    ))  # fmt: skip


def directory(random: Dice) -> Ask:
    """A change that carries no bytes."""
    one, two = (random.choice(PATHS).decode("utf-8", "surrogateescape") for _ in range(2))
    if random.random() < 0.5:
        body = {"from": one, "to": two, "replace": random.random() < 0.5}
        return Ask("POST", "/v1/files/move", (), dumped(body))
    body = {
        "path": one,
        "parents": random.random() < 0.5,
        "mode": random.choice(("0755", "0", "x", None, 7)),
    }
    return Ask("POST", "/v1/files/mkdir", (), dumped(body))


def archive(random: Dice) -> Ask:
    """A directory in or out."""
    place = "/v1/archive?path=" + quote_from_bytes(random.choice(PATHS))
    if random.random() < 0.3 and "usr" not in place:
        return Ask("GET", "/v1/archive?path=/work", patience_s=5)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=random.choice(("w", "w:gz"))) as tar:
        for name in random.choices(("a", "d/b", "../c", "/tmp/q", "l/x"), k=3):
            info = tarfile.TarInfo(name)
            info.type = random.choice(
                (
                    tarfile.REGTYPE,
                    tarfile.DIRTYPE,
                    tarfile.SYMTYPE,
                    tarfile.LNKTYPE,
                    tarfile.FIFOTYPE,
                )
            )
            info.linkname = random.choice(("a", "..", "/tmp"))
            tar.addfile(info)
    body = out.getvalue()
    body = mangled(body, random) if random.random() < 0.4 else body
    return Ask("PUT", place, body=body, patience_s=5)  # spoiled, it may be a GET of all there is


# --- the rest ---


def other(random: Dice) -> Ask:
    """Handshake, health, and paths that are none."""
    claim = {
        "claim_id": random.choice("ab"),
        "workdir": "/work",
        random.choice(NAMES): random.choice(VALUES),
    }
    return random.choice((
        Ask("GET", "/healthz"), Ask("GET", "/v1/info"), Ask("POST", "/v1/claim", body=dumped(claim)),
        Ask("GET", "/v1/" + "".join(random.choices("/ab.%20?&=", k=8))), Ask("GET", "//v1/info"),
        Ask("POST", "/v1/exec", body=b"[" * random.choice((10, 5000, 200_000))),
        Ask("POST", "/v1/exec", body=b'{"argv": ["true"], "output_limit": ' + b"9" * random.choice((20, 5000)) + b"}"),
    ))  # fmt: skip


def dumped(body: object) -> bytes:
    """As JSON; lone surrogates are escaped."""
    return json.dumps(body).encode()


KINDS: tuple[Callable[[Dice], Ask], ...] = (
    execution, execution, start, process, process, session, session, file, file, directory, archive, other,
)  # fmt: skip


def encode(ask: Ask) -> bytes:
    """The request's bytes."""
    headers = [("Host", "x"), *ask.headers]
    if not any(name == "Authorization" for name, _ in ask.headers):
        headers.append(("Authorization", f"Bearer {TOKEN}"))
    if ask.chunked:
        headers.append(("Transfer-Encoding", "chunked"))
        body = (
            b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in (ask.body[:7], ask.body[7:]) if p)
            + b"0\r\n\r\n"
        )
    else:
        headers.append(("Content-Length", str(len(ask.body))))
        body = ask.body
    lines = [
        f"{ask.method} {ask.target} HTTP/1.1",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body
