"""Tars from a hostile sender: nothing outside of the directory changes, and errors are ours.

Two forms. Raw blocks, whose checksums are set right here, since no fuzzer would guess them; and
members put together from names that lead astray.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

from sandman import tar
from sandman.descent import Policy
from sandman.errors import SandmanError
from sandman.unpack import Unpacker, UnpackError
from tests.fuzz.choices import Choices, pieces
from tests.unit.daemon.harness import names_in

SECRET = b"nobody's but mine"
MAX_BYTES = 64 * 1024
PARTS = (b"a", b"b", b"in", b"out", b"up", b"..", b".", b"", b"link", b"x" * 120, b"\xff", b"loop", b"\0")  # fmt: skip
LINKS = (
    b"a",
    b"..",
    b"../..",
    b"/",
    b"in/../..",
    b"../outside",
    b"up",
    b"",
    b"b/c",
    b"\0",
    b"loop",
)
KINDS = (tar.FILE, tar.DIRECTORY, tar.SYMLINK, tar.HARDLINK, tar.FIFO, tar.CHARACTER, b"S", b"7")
SIZES = (0, 1, 511, 512, 513, 3000)
POLICIES = (
    Policy(),
    Policy(trusts_links=False, mode_mask=0o777, max_bytes=MAX_BYTES),
    Policy(is_new=True),
)


def check(data: bytes) -> None:
    """Read at two splits, then unpack under each policy."""
    archive = built(data[1:]) if data[:1] == b"+" else mended(data)
    assert read([archive]) == read(pieces(archive))
    scratch = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory()))
    try:
        for number, policy in enumerate(POLICIES):
            unpack(archive, scratch / str(number), policy)
    finally:
        _remove(scratch)


def memory() -> str | None:
    """A directory in memory, where there is one: thousands of archives a second."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# --- archives ---


def mended(data: bytes) -> bytes:
    """The same blocks with right checksums, where a block can be a member's head."""
    blocks = bytearray(data)
    for start in range(0, len(blocks) - tar.BLOCK + 1, tar.BLOCK):
        block = blocks[start : start + tar.BLOCK]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            blocks[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    return bytes(blocks)


def built(data: bytes) -> bytes:
    """Members as these bytes decide them."""
    choices = Choices(data)
    parts: list[bytes] = []
    while not choices.is_spent and len(parts) < 60:
        parts += member(choices)
    return b"".join(parts) + (b"" if choices.one_in(8) else tar.END)


def member(choices: Choices) -> list[bytes]:
    """One member with its data, which may be of another length than is said."""
    kind = choices.of(KINDS)
    size = choices.of(SIZES) if kind in {tar.FILE, b"7"} else 0
    head = tar.Member(
        name=b"/".join(choices.of(PARTS) for _ in range(1 + choices.number(4))),
        kind=kind,
        size=size,
        mode=choices.of((0o644, 0o755, 0, 0o7777)),
        mtime_ns=choices.of((0, 1, -1, 10**18, -(10**18))),
        link=b"/".join(choices.of(LINKS) for _ in range(1 + choices.number(2))),
        records=records(choices),
    )
    return [tar.encode(head), bytes(size + tar.padding(size))]


def records(choices: Choices) -> dict[str, bytes]:
    """Pax records, mostly none."""
    if not choices.one_in(4):
        return {}
    key = choices.of(("path", "linkpath", "size", "mtime", tar.SKIPPED, tar.SKIPPED_COUNT, "GNU.sparse.map"))  # fmt: skip
    return {key: choices.take(choices.number(40))}


# --- reading ---


def read(cut: list[bytes]) -> list[object]:
    """Members and data, pieces of data joined; last, how it ended."""
    reader = tar.Reader()
    found: list[object] = []
    try:
        for piece in cut:
            for item in reader.feed(piece):
                if isinstance(item, tar.Member):
                    found += [item, b""]
                else:
                    assert item, "an empty piece"
                    found[-1] += bytes(item)  # type: ignore[operator]
    except SandmanError as error:
        return [*found, str(error)]
    return [*found, reader.is_done, reader.position]


# --- unpacking ---


def unpack(archive: bytes, place: Path, policy: Policy) -> None:
    """Unpack beside what is not to be touched."""
    prepare(place, links=policy.trusts_links)
    before = outside(place)
    try:
        with Unpacker(place / "top", policy) as unpacker:
            for piece in pieces(archive):
                unpacker.feed(piece)
            unpacker.finish()
            assert unpacker.skips.count >= len(unpacker.skips.told)
    except SandmanError as error:
        if error.status >= 500:
            raise
    except UnpackError as error:
        if error.error.errno is None:
            raise
    assert outside(place) == before, "something outside of the directory changed"
    if not policy.trusts_links:
        for path in links_below(place / "top"):
            real = Path(os.path.realpath(path))
            assert real == place / "top" or place / "top" in real.parents, f"{path} leads to {real}"


def prepare(place: Path, *, links: bool) -> None:
    """A directory, with links in and out of it where they are trusted, and what is outside."""
    top = place / "top"
    (top / "in").mkdir(parents=True)
    (place / "outside").mkdir()
    (place / "outside" / "secret").write_bytes(SECRET)
    if not links:
        return
    (top / "out").symlink_to(place / "outside")
    (top / "up").symlink_to("..")
    (top / "loop").symlink_to("loop")
    (top / "link").symlink_to("in")


def outside(place: Path) -> list[tuple[object, ...]]:
    """All beside the directory, and what it was before the tar came."""
    found: list[tuple[object, ...]] = [("place", names_in(place), place.stat().st_mode)]
    for path in [place / "outside", *sorted((place / "outside").rglob("*"))]:
        info = path.lstat()
        content = path.read_bytes() if path.is_file() else names_in(path)
        found.append((path, info.st_mode, info.st_uid, info.st_nlink, info.st_mtime_ns, content))
    return found


def links_below(top: Path) -> list[Path]:
    """All symbolic links in it but those that lead around in a circle."""
    found = [Path(base, name) for base, dirs, files in os.walk(top) for name in [*dirs, *files]]
    return [path for path in found if path.is_symlink() and not _is_circle(path)]


def _is_circle(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _remove(scratch: Path) -> None:
    """All of it, also below directories that forbid it."""
    for base, directories, _ in os.walk(scratch):
        for name in directories:
            path = Path(base, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(scratch)
