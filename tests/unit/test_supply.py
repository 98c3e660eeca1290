"""What is told of the images' parts: versions, hashes, patches; the same text for the same parts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cyclonedx.model.bom import Bom

from daemon.runtime import image, sources
from daemon.runtime.shell import BuildError
from scripts import images, page, sbom

ROOT = Path(__file__).parents[2]
FIX = "3.13.5-2+deb13u5"
MANIFEST = {
    "python": "3.13.5",
    "target": "x86_64-linux-musl",
    "sources": [
        {
            "package": "python3.13",
            "version": FIX,
            "skipped": [],
            "files": {"python3.13_3.13.5.orig.tar.xz": "a1" * 32, "python3.13.dsc": "b2" * 32},
            "patches": ["CVE-2026-0001.patch", "multiarch.diff"],
        },
        {"package": "zlib", "version": "1:1.3", "skipped": ["1:1.4"], "files": {"z.dsc": "c3" * 32}, "patches": []},
    ],
    "musl": "1.2.3-1",
    "compiler": "gcc 12",
    "recipe": "0123",
}  # fmt: skip
STATUS = """\
Package: libssl3
Status: install ok installed
Architecture: amd64
Source: openssl
Version: 3.0.20-1~deb12u2
Description: Secure Sockets Layer toolkit
 This package is part of the OpenSSL project's implementation.
"""


@pytest.fixture
def dependencies(tmp_path: Path) -> Path:
    """What the image of the dependencies says of itself."""
    status, venv = tmp_path / sbom.STATUS, tmp_path / "opt" / "sandman"
    for directory in (status, venv / "bin", tmp_path / "etc"):
        directory.mkdir(parents=True)
    (status / "libssl3-amd64").write_text(STATUS)
    (venv / "bin" / "python").symlink_to("/usr/bin/python3.11")
    (venv / sbom.WHEELS_LIST).write_text(f"{'d4' * 32}  markdown_it_py-4.3.0-py3-none-any.whl\n")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.13.5\n")
    (tmp_path / "etc" / "os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    return tmp_path


def components(text: str) -> dict[str, dict]:
    return {part["name"]: part for part in json.loads(text)["components"]}


def test_the_static_interpreter_is_told_with_debians_patches_and_every_file_by_its_hash() -> None:
    found = components(sbom.of_daemon(MANIFEST, 0))
    python = found["python3.13"]
    assert python["purl"] == "pkg:deb/debian/python3.13@3.13.5-2%2Bdeb13u5?arch=source"
    assert [patch["diff"]["url"] for patch in python["pedigree"]["patches"]] == [
        "debian/patches/CVE-2026-0001.patch",
        "debian/patches/multiarch.diff",
    ]
    hashes = {file["url"]: file["hashes"] for file in python["externalReferences"]}
    assert hashes == {
        name: [{"alg": "SHA-256", "content": digest}]
        for name, digest in MANIFEST["sources"][0]["files"].items()  # type: ignore[index]
    }
    assert found["zlib"]["properties"] == [{"name": "sandman:skipped", "value": "1:1.4"}]
    assert found["musl"]["version"] == "1.2.3-1"


def test_a_service_is_told_with_its_wheels_and_the_packages_of_its_base(dependencies: Path) -> None:
    base = "registry.example/python@sha256:00"
    text = sbom.of_service("gateway", dependencies, base, 0, page.PACKAGES)
    found = components(text)
    assert set(found) == {"libssl3", "markdown-it-py", "python", "@xterm/xterm", "@xterm/addon-fit"}
    xterm = found["@xterm/xterm"]
    assert xterm["purl"] == f"pkg:npm/%40xterm/xterm@{xterm['version']}"
    [digest] = xterm["hashes"]
    assert (digest["alg"], len(digest["content"])) == ("SHA-512", 128)
    # Of a base whose Python is no package of Debian's.
    assert found["python"]["purl"] == "pkg:generic/python@3.13.5"
    assert (
        found["libssl3"]["purl"]
        == "pkg:deb/debian/libssl3@3.0.20-1~deb12u2?arch=amd64&distro=debian-12"
    )
    assert found["libssl3"]["properties"] == [{"name": "sandman:source", "value": "openssl"}]
    assert found["markdown-it-py"]["purl"] == "pkg:pypi/markdown-it-py@4.3.0"
    assert found["markdown-it-py"]["hashes"] == [{"alg": "SHA-256", "content": "d4" * 32}]
    metadata = json.loads(text)["metadata"]
    assert metadata["component"]["name"] == "sandman-gateway"
    assert {"name": "sandman:base", "value": "registry.example/python@sha256:00"} in metadata[
        "properties"
    ]


def test_an_interpreter_of_debians_is_not_told_twice(dependencies: Path) -> None:
    python = STATUS.replace("libssl3", "python3.11-minimal").replace("Source: openssl\n", "")
    (dependencies / sbom.STATUS / "python3.11-minimal").write_text(python)
    found = components(sbom.of_service("gateway", dependencies, "base", 0))
    assert set(found) == {"libssl3", "markdown-it-py", "python3.11-minimal"}
    assert found["python3.11-minimal"]["properties"][0]["value"] == "python3.11-minimal"


def test_a_document_is_read_by_who_reads_cyclonedx(dependencies: Path) -> None:
    for text in (sbom.of_daemon(MANIFEST, 0), sbom.of_service("webhook", dependencies, "base", 0)):
        bom = Bom.from_json(json.loads(text))  # type: ignore[attr-defined]
        assert json.loads(text)["specVersion"] == "1.6"
        assert len(bom.components) == len(json.loads(text)["components"])
        (whole,) = (one for one in bom.dependencies if one.ref == bom.metadata.component.bom_ref)
        assert {one.ref for one in whole.dependencies} == {one.bom_ref for one in bom.components}


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_same_parts_give_the_same_bytes_whatever_the_order_of_sets(seed: str) -> None:
    program = "import json, sys; from scripts import sbom; print(sbom.of_daemon(json.load(sys.stdin), 7), end='')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, env={"PYTHONHASHSEED": seed}, input=json.dumps(MANIFEST), text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert done.stdout == sbom.of_daemon(MANIFEST, 7)


def test_another_fix_of_debians_is_another_document() -> None:
    later = json.loads(json.dumps(MANIFEST).replace(FIX, "3.13.5-2+deb13u6"))
    serials = {json.loads(sbom.of_daemon(one, 0))["serialNumber"] for one in (MANIFEST, later)}
    assert len(serials) == 2


def test_a_source_package_is_recorded_with_the_hashes_that_the_signed_lists_lead_to(
    tmp_path: Path,
) -> None:
    dsc = tmp_path / "zlib.dsc"
    dsc.write_text(
        "Source: zlib\nChecksums-Sha1:\n 0000 5 zlib.tar.gz\nChecksums-Sha256:\n"
        f" {'a1' * 32} 5 zlib.tar.gz\n {'b2' * 32} 6 zlib.debian.tar.xz\nFiles:\n 00 5 zlib.tar.gz\n"
    )
    digest = subprocess.run(
        ["sha256sum", dsc], capture_output=True, text=True, check=True
    ).stdout.split()[0]
    wanted = {"zlib.dsc": digest, "zlib.tar.gz": "a1" * 32, "zlib.debian.tar.xz": "b2" * 32}
    assert sources.files_of(dsc) == wanted
    (tmp_path / "debian" / "patches").mkdir(parents=True)
    (tmp_path / "debian" / "patches" / "series").write_text("# first\none.patch\n\ntwo.patch -p0\n")
    unpacked = sources.Unpacked("zlib", "1:1.3", ("1:1.4",), tmp_path, wanted)
    assert unpacked.record() == {
        "package": "zlib",
        "version": "1:1.3",
        "skipped": ["1:1.4"],
        "files": wanted,
        "patches": ["one.patch", "two.patch"],
    }


def test_a_source_package_without_patches_has_none_and_one_without_hashes_is_refused(
    tmp_path: Path,
) -> None:
    assert sources.patches_of(tmp_path) == []
    dsc = tmp_path / "old.dsc"
    dsc.write_text("Source: old\nFiles:\n 00 5 old.tar.gz\n")
    with pytest.raises(BuildError, match=r"old\.dsc names no SHA-256"):
        sources.files_of(dsc)


def test_the_time_of_an_image_is_none_or_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert image.epoch() == 0
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert image.epoch() == 1_700_000_000


def test_the_images_install_what_was_locked_and_nothing_by_name_alone() -> None:
    recipe = (ROOT / "scripts" / "Containerfile").read_text()
    (install,) = re.findall(r"pip install [^&]*", recipe)
    for option in ("--no-index", "--require-hashes", "--requirement /build/requirements.lock"):
        assert option in install
    for service in images.SERVICES:
        text = (ROOT / service.directory / "Containerfile").read_text()
        assert "pip" not in text
        assert text.rstrip().splitlines()[-2] == "USER 65532:65532"
