"""Fetches what the gateway's page has of others: `python -m scripts.page`, or `make page`.

xterm is taken from its npm package, by version and by the package's SHA-512, and laid beside the page's own files, where
nothing of it is committed. Images and wheels have it from there. npm fetches, and runs nothing: packages are unpacked
here, and of them these files alone. The standard library is all that this needs, for wheels are built without more.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

VENDOR = Path(__file__).resolve().parent.parent / "gateway" / "page" / "vendor"
STAMP = "PACKAGES.json"
"""Which packages lie there, and each file's SHA-256."""
FETCH_S = 120.0
"""Seconds for one package, a slow mirror's first look included."""


class Package(NamedTuple):
    """One of npm's, pinned. `integrity` as npm's own lock files have it; `files` by their name in the package."""

    name: str
    version: str
    integrity: str
    files: dict[str, str]


PACKAGES = (
    Package(
        "@xterm/xterm",
        "6.0.0",
        "sha512-TQwDdQGtwwDt+2cgKDLn0IRaSxYu1tSUjgKarSDkUM0ZNiSRXFpjxEsvc/Zgc5kq5omJ+V0a8/kIM2WD3sMOYg==",
        {
            "package/lib/xterm.mjs": "xterm.mjs",
            "package/css/xterm.css": "xterm.css",
            "package/LICENSE": "xterm.LICENSE",
        },
    ),
    Package(
        "@xterm/addon-fit",
        "0.11.0",
        "sha512-jYcgT6xtVYhnhgxh3QgYDnnNMYTcf8ElbxxFzX0IZo+vabQqSPAjC3c1wJrKB5E19VwQei89QCiZZP86DCPF7g==",
        {
            "package/lib/addon-fit.mjs": "addon-fit.mjs",
            "package/LICENSE": "addon-fit.LICENSE",
        },
    ),
)


class PageError(Exception):
    """A package could not be had, or is not what it should be; the text is for the person who asked."""


def fetch(target: Path = VENDOR) -> None:
    """Put the packages' files there, unless they are there.

    Raises:
        PageError: npm is not installed, has no such package, or gave another.
    """
    if is_there(target):
        return
    files: dict[str, bytes] = {}
    for package in PACKAGES:
        files |= unpack(package, download(package))
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name, content in files.items():
        (target / name).write_bytes(content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    (target / STAMP).write_text(json.dumps({"packages": _pins(), "files": digests}, indent=1))


def is_there(target: Path = VENDOR) -> bool:
    """Whether the files of just these packages lie there, as they were unpacked."""
    try:
        told = json.loads((target / STAMP).read_text())
        return bool(told["packages"] == _pins()) and all(
            hmac.compare_digest(hashlib.sha256((target / name).read_bytes()).hexdigest(), digest)
            for name, digest in told["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _pins() -> dict[str, str]:
    return {f"{one.name}@{one.version}": one.integrity for one in PACKAGES}


def download(package: Package) -> bytes:
    """The package's archive, as npm gives it.

    Raises:
        PageError: npm is not installed, or has it not.
    """
    with tempfile.TemporaryDirectory(prefix="sandman-npm-") as place:
        wanted = f"{package.name}@{package.version}"
        command = ["npm", "pack", wanted, f"--pack-destination={place}", "--ignore-scripts"]
        try:
            done = subprocess.run(  # noqa: S603 - words of this file
                command, cwd=place, capture_output=True, text=True, check=False, timeout=FETCH_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PageError(f"npm could not fetch {wanted}: {error}") from None
        archives = list(Path(place).glob("*.tgz"))
        if done.returncode != 0 or len(archives) != 1:
            raise PageError(f"npm could not fetch {wanted}:\n{done.stderr.strip()[-2000:]}")
        return archives[0].read_bytes()


def unpack(package: Package, archive: bytes) -> dict[str, bytes]:
    """The wanted files of an archive, by their new names.

    Raises:
        PageError: it is not the archive that was pinned.
    """
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if not hmac.compare_digest(found, package.integrity):
        raise PageError(f"{package.name}@{package.version} is another package: {found}")
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as packed:
        for inside, name in package.files.items():
            member = packed.extractfile(inside)
            if member is None:
                raise PageError(f"{package.name}: {inside} is no file")
            files[name] = member.read()
    return files


def main() -> int:
    """The command line."""
    try:
        fetch()
    except PageError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
