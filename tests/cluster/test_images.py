"""What runs as gateway, webhook and daemon: an interpreter and nothing to misuse beside it, and what it says of itself."""

from __future__ import annotations

import base64
import json
import posixpath
from typing import TYPE_CHECKING, NamedTuple

import pytest

from daemon.runtime import interpreter
from sandman import names
from scripts import images, page, sbom
from tests.cluster.bed import BedError, kubectl

if TYPE_CHECKING:
    from tests.cluster.deployed import Deployed

NO_BUSINESS_HERE = {
    *("sh", "bash", "dash", "ash", "zsh", "busybox", "toybox", "env", "cat", "cp", "chmod", "ls", "ps", "su", "sudo"),
    *("apt", "apt-get", "dpkg", "apk", "rpm", "pip", "pip3", "curl", "wget", "nc", "perl", "git", "ldd", "ldconfig"),
}  # fmt: skip


class File(NamedTuple):
    mode: int
    owner: int
    is_link: bool
    content: bytes


def unpacked(sandman: Deployed, name: str) -> dict[str, File]:
    """All files of the image that is installed, by name."""
    reference = sandman.installation.images[name]
    return {
        member.name.lstrip("./"): File(member.mode, member.uid, member.issym(), content)
        for member, content in sbom.files_of(reference, is_local=True)
        if not member.isdir()
    }


@pytest.mark.parametrize("name", ["gateway", "webhook"])
def test_a_services_image_has_no_shell_no_package_manager_and_no_program_but_python(
    sandman: Deployed, name: str
) -> None:
    files = unpacked(sandman, name)
    assert {path for path in files if posixpath.basename(path) in NO_BUSINESS_HERE} == set()
    assert not any(path.endswith(("/pip/__init__.py", "/ensurepip/__init__.py")) for path in files)
    programs = {
        path
        for path, file in files.items()
        if file.mode & 0o111 and file.content and not file.is_link
    }
    python = {path for path in programs if posixpath.basename(path).startswith("python3.")}
    loader = {path for path in programs if posixpath.basename(path).startswith("ld-")}
    assert (len(python), len(loader)) == (1, 1)
    assert programs == python | loader
    # Nobody gets another's rights, and who runs there owns nothing.
    assert {path for path, file in files.items() if file.mode & 0o6000 or file.owner} == set()
    assert {path for path, file in files.items() if file.mode & 0o022 and not file.is_link} == set()

    document = json.loads(files[sbom.SERVICES_PLACE].content)
    assert document["metadata"]["component"]["name"] == f"sandman-{name}"
    told = {part["purl"].split("@")[0]: part for part in document["components"]}
    installed = {
        path.split("/")[-2].split("-")[0].lower().replace("_", "-")
        for path in files
        if path.endswith(".dist-info/METADATA")
    }
    assert {
        purl.removeprefix("pkg:pypi/") for purl in told if purl.startswith("pkg:pypi/")
    } == installed
    assert "cryptography" in installed
    locked = images.LOCK.read_text()
    npm = {base64.b64decode(one.integrity.removeprefix("sha512-")) for one in page.PACKAGES}
    has_page = any(path.endswith("page/vendor/xterm.mjs") for path in files)
    assert has_page is (name == "gateway")
    assert sum(purl.startswith("pkg:npm/") for purl in told) == (len(npm) if has_page else 0)
    for part in document["components"]:
        for digest in part.get("hashes", []):
            if part["purl"].startswith("pkg:npm/"):
                assert bytes.fromhex(digest["content"]) in npm, part["name"]
            else:
                assert f"sha256:{digest['content']}" in locked, part["name"]
    packages = {purl.rsplit("/", 1)[1] for purl in told if purl.startswith("pkg:deb/")}
    assert {"libc6", "zlib1g"} <= packages
    assert any(package.startswith("libssl3") for package in packages)


def test_the_daemons_image_is_its_interpreter_its_library_and_a_word_of_both(
    sandman: Deployed,
) -> None:
    files = unpacked(sandman, "daemon")
    assert {path.split("/")[0] for path in files} == {"bin", "lib", "app", "licenses"}
    assert [path for path in files if path.startswith("bin/")] == ["bin/python3"]
    assert {path for path, file in files.items() if file.mode & 0o6222} == set()
    document = json.loads(files[sbom.DAEMON_PLACE].content)
    parts = {part["name"]: part for part in document["components"]}
    made_of = interpreter.manifest_of(interpreter.build())
    assert {name: part["version"] for name, part in parts.items()} == {
        "musl": made_of["musl"],
        **{source["package"]: source["version"] for source in made_of["sources"]},  # type: ignore[attr-defined]
    }


@pytest.mark.parametrize("name", ["gateway", "webhook"])
def test_who_may_exec_into_a_service_finds_no_shell(sandman: Deployed, name: str) -> None:
    target = ["-n", names.SYSTEM_NAMESPACE, f"deployment/sandman-{name}", "--"]
    with pytest.raises(BedError, match=r'exec: "/bin/sh": stat /bin/sh: no such file or directory'):
        kubectl(sandman.bed, "exec", *target, "/bin/sh", "-c", "true")
    program = "import os; print(os.getuid(), os.access('/srv', os.W_OK), os.statvfs('/').f_flag & os.ST_RDONLY)"
    assert kubectl(sandman.bed, "exec", *target, "python", "-c", program).split() == [
        "65532",
        "False",
        "1",
    ]
