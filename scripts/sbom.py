"""What is in an image, as CycloneDX: `python -m scripts.sbom REFERENCE` prints what an image of Sandman's carries.

scripts/images.py puts the document into the image that it describes, so that both have one digest, nobody has to find
it, and no registry need know more than images. Of the same inputs it is the same bytes: it tells no time of its own.
"""

from __future__ import annotations

import argparse
import base64
import email
import json
import subprocess
import sys
import tarfile
import tempfile
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import (
    Component,
    ComponentType,
    Diff,
    Patch,
    PatchClassification,
    Pedigree,
)
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from sandman.version import __version__
from scripts.rootfs import STATUS, WHEELS_LIST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from scripts.page import Package

NAME = "sbom.cdx.json"
SERVICES_PLACE = f"srv/{NAME}"
DAEMON_PLACE = f"licenses/{NAME}"
"""Where it lies in the images of gateway and webhook, and in the daemon's."""
# Serial numbers are drawn from the content below this one, which is nobody else's.
_NAMESPACE = uuid.UUID("6f0d4b0e-5a0a-4e0c-9a53-6d2f7c1b8e11")


def of_service(
    name: str, root: Path, base: str, epoch: int, packages: Iterable[Package] = ()
) -> str:
    """The document of an image upon the dependencies that are unpacked at `root`; `base` names what they were made from,
    `packages` are npm's that it holds."""
    release = _key_values((root / "etc" / "os-release").read_text())
    debian = [_debian_binary(path, release) for path in sorted((root / STATUS).iterdir())]
    (venv,) = (root / "opt").iterdir()
    wheels = [_wheel(*line.split()) for line in (venv / WHEELS_LIST).read_text().splitlines()]
    if not any(part.name.startswith("python3") for part in debian):
        version = _key_values((venv / "pyvenv.cfg").read_text())["version"]
        purl = PackageURL("generic", None, "python", version)
        debian.append(Component(name="python", version=version, bom_ref="python", purl=purl))
    settings = {"base": base, "interpreter": str((venv / "bin" / "python").readlink())}
    parts = [*debian, *wheels, *(_npm(package) for package in packages)]
    return _document(name, parts, settings, epoch)


def of_daemon(manifest: Mapping[str, Any], epoch: int) -> str:
    """The document of the daemon's image; `manifest` is the static interpreter's RUNTIME.json."""
    musl = Component(
        name="musl",
        version=manifest["musl"],
        bom_ref="deb:musl",
        purl=PackageURL("deb", "debian", "musl", manifest["musl"], {"arch": "source"}),
    )
    parts = [_debian_source(source) for source in manifest["sources"]]
    settings = {key: manifest[key] for key in ("python", "target", "compiler", "recipe")}
    return _document("daemon", [*parts, musl], settings, epoch)


def _document(
    name: str, parts: Iterable[Component], settings: Mapping[str, str], epoch: int
) -> str:
    root = Component(
        name=f"sandman-{name}", version=__version__, type=ComponentType.CONTAINER, bom_ref=name
    )
    metadata = BomMetaData(
        component=root,
        timestamp=datetime.fromtimestamp(epoch, UTC),
        properties=[
            Property(name=f"sandman:{key}", value=value) for key, value in settings.items()
        ],
    )
    bom = Bom(components=parts, metadata=metadata, serial_number=uuid.UUID(int=0))
    bom.register_dependency(root, bom.components)
    content = JsonV1Dot6(bom).output_as_string(indent=1)
    bom.serial_number = uuid.uuid5(_NAMESPACE, content)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _wheel(sha256: str, file: str) -> Component:
    name, version = file.split("-")[:2]
    name = name.lower().replace("_", "-")
    return Component(
        name=name,
        version=version,
        bom_ref=f"pypi:{name}",
        purl=PackageURL("pypi", None, name, version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256)],
        properties=[Property(name="sandman:file", value=file)],
    )


def _npm(package: Package) -> Component:
    digest = base64.b64decode(package.integrity.removeprefix("sha512-")).hex()
    namespace, _, name = package.name.rpartition("/")
    return Component(
        name=package.name,
        version=package.version,
        bom_ref=f"npm:{package.name}",
        purl=PackageURL("npm", namespace or None, name, package.version),
        hashes=[HashType(alg=HashAlgorithm.SHA_512, content=digest)],
        properties=[
            Property(name="sandman:file", value=file) for file in sorted(package.files.values())
        ],
    )


def _debian_binary(status: Path, release: Mapping[str, str]) -> Component:
    fields = email.message_from_string(status.read_text())
    name, version, source = (
        fields["Package"],
        fields["Version"],
        fields.get("Source", fields["Package"]),
    )
    qualifiers = {
        "arch": fields["Architecture"],
        "distro": f"{release['ID']}-{release['VERSION_ID']}",
    }
    return Component(
        name=name,
        version=version,
        bom_ref=f"deb:{name}",
        purl=PackageURL("deb", release["ID"], name, version, qualifiers),
        properties=[Property(name="sandman:source", value=source)],
    )


def _debian_source(source: Mapping[str, Any]) -> Component:
    """A source package with its files by SHA-256, Debian's patches, and newer versions that could not be had."""
    name, version = source["package"], source["version"]
    files = [
        ExternalReference(
            type=ExternalReferenceType.SOURCE_DISTRIBUTION,
            url=XsUri(file),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        )
        for file, digest in source["files"].items()
    ]
    patches = [
        Patch(type=PatchClassification.UNOFFICIAL, diff=Diff(url=XsUri(f"debian/patches/{patch}")))
        for patch in source["patches"]
    ]
    return Component(
        name=name,
        version=version,
        bom_ref=f"deb-source:{name}",
        purl=PackageURL("deb", "debian", name, version, {"arch": "source"}),
        external_references=files,
        pedigree=Pedigree(patches=patches) if patches else None,
        properties=[Property(name="sandman:skipped", value=newer) for newer in source["skipped"]],
    )


def _key_values(text: str) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip().strip('"') for key, value in pairs}


def files_of(reference: str, *, is_local: bool) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """All files of an image in a registry, layer by layer, the lowest first.

    Raises:
        subprocess.CalledProcessError: skopeo could not fetch it.
    """
    with tempfile.TemporaryDirectory(prefix="sandman-image-") as scratch:
        verify = f"--src-tls-verify={'false' if is_local else 'true'}"
        command = ["skopeo", "copy", "--quiet", verify, f"docker://{reference}", f"dir:{scratch}"]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603 - a reference of who runs this
        manifest = json.loads(Path(scratch, "manifest.json").read_text())
        for layer in manifest["layers"]:
            with tarfile.open(Path(scratch, layer["digest"].removeprefix("sha256:"))) as archive:
                for member in archive:
                    file = archive.extractfile(member) if member.isfile() else None
                    yield member, file.read() if file else b""


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.sbom", description=__doc__)
    parser.add_argument("reference", help="an image of gateway, webhook or daemon in a registry")
    parser.add_argument("--plain-http", action="store_true", help="the registry speaks no TLS")
    options = parser.parse_args()
    for member, content in files_of(options.reference, is_local=options.plain_http):
        if member.name.lstrip("./") in {SERVICES_PLACE, DAEMON_PLACE}:
            sys.stdout.write(content.decode())
            return 0
    sys.stderr.write(f"{options.reference} carries no {NAME}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
