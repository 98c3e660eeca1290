"""What the page has of others is what was pinned; and it is in the archive of local mode."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from scripts import page, wheel

ROOT = Path(__file__).parents[2]


def packed(**files: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as whole:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            whole.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def package(archive: bytes, **files: str) -> page.Package:
    digest = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    inside = {f"package/{name}": to for name, to in files.items()}
    return page.Package("@some/thing", "1.2.3", f"sha512-{digest}", inside)


def test_of_the_pinned_archive_the_named_files_are_taken():
    archive = packed(one=b"1", two=b"2", three=b"3")
    assert page.unpack(package(archive, one="a", three="b"), archive) == {"a": b"1", "b": b"3"}


def test_another_archive_is_refused_before_it_is_opened():
    wanted = package(packed(one=b"1"), one="a")
    for other in (packed(one=b"2"), b"no archive", b""):
        with pytest.raises(page.PageError, match="is another package: sha512-"):
            page.unpack(wanted, other)


def test_what_lies_there_is_looked_at_anew(tmp_path, monkeypatch):
    archive = packed(one=b"1")
    asked = []
    monkeypatch.setattr(page, "PACKAGES", (package(archive, one="a"),))
    monkeypatch.setattr(page, "download", lambda one: asked.append(one.name) or archive)
    vendor = tmp_path / "vendor"
    for _ in range(2):
        page.fetch(vendor)
    assert (asked, (vendor / "a").read_bytes()) == (["@some/thing"], b"1")
    (vendor / "a").write_bytes(b"changed")
    assert not page.is_there(vendor)
    page.fetch(vendor)
    assert (len(asked), (vendor / "a").read_bytes()) == (2, b"1")
    other = packed(one=b"2")
    monkeypatch.setattr(page, "PACKAGES", (package(other, one="a"),))
    assert not page.is_there(vendor)


def test_who_has_no_npm_hears_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(page.PageError, match=r"npm could not fetch @xterm/xterm@[0-9.]+: "):
        page.download(page.PACKAGES[0])
    monkeypatch.setattr(page, "is_there", lambda _target: False)
    assert page.main() == 1
    assert capsys.readouterr().err.startswith("error: npm could not fetch")


def test_each_package_is_pinned_with_its_license():
    for one in page.PACKAGES:
        assert len(base64.b64decode(one.integrity.removeprefix("sha512-"))) == 64
        assert any(name.endswith(".LICENSE") for name in one.files.values())


def test_the_archive_of_local_mode_serves_the_page(tmp_path):
    archive = tmp_path / "_local.pyz"
    wheel.write(ROOT, archive)
    own = {f"gateway/page/{path.name}" for path in (ROOT / "gateway/page").glob("*.*")}
    assert own <= set(zipfile.ZipFile(archive).namelist())
    code = "from gateway.routes import page; print(page.__file__, *sorted(page.load()))"
    path = os.pathsep.join((str(archive), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    place, *names = done.stdout.split()
    assert place.startswith(str(archive))
    assert {"index.html", "main.js", "page.css", "icon.svg"} <= set(names)
