"""Builds Sandman's images and pushes them to a registry: `python -m scripts.images --help`.

A tag is the hash of all that went into the image, so that a pod that asks for it IfNotPresent never
runs another build, and an image that the registry has need not be built again. Builds need no
network: wheels are downloaded before, by the hashes of requirements.lock. SOURCE_DATE_EPOCH is the time of all
that is in them, 1970 when it is not set. Each image but the empty one carries a document of what is in it
(scripts/sbom.py).
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daemon.runtime import image as daemon_image
from daemon.runtime import interpreter, shell
from scripts import page, sbom

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / "build" / "wheels"
LOCK = ROOT / "requirements.lock"
# Chroot isolation and plain overlay work where the builder is itself a container.
BUILDAH = ("buildah", "--storage-driver", "overlay")
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
RECIPE = "2"
"""Change it when this file builds differently from the same inputs."""


class BuildError(Exception):
    """An image could not be made; the text is for the person who asked."""


@dataclass(frozen=True, slots=True)
class Image:
    """One image: where its Containerfile is and what of the repository it holds."""

    name: str
    directory: str
    sources: tuple[str, ...] = ()


DEPENDENCIES = Image("dependencies", "scripts", ("scripts/rootfs.py",))
"""What the services stand on; not published, but its layer is, as a part of each of them."""
SERVICES = (
    Image("gateway", "gateway", ("gateway", "sandman")),
    Image("webhook", "webhook", ("webhook", "sandman")),
)
PAGES = "gateway"
"""The image that has the page."""
PLACEHOLDER = Image("placeholder", "manifests/placeholder")
# It has a build of its own, for it holds a Python of its own.
DAEMON = Image("daemon", "daemon", ("daemon", "sandman"))
IMAGES = (*SERVICES, PLACEHOLDER, DAEMON)


@dataclass(frozen=True, slots=True)
class Target:
    """Where images go, and what the services' images stand on."""

    registry: str
    base: str
    prefix: str = "sandman"
    python: str = THIS_PYTHON

    def reference(self, image: Image, tag: str) -> str:
        """The name under which pods ask for it."""
        return f"{self.registry}/{self.prefix}/{image.name}:{tag}"


def publish(target: Target, images: Iterable[Image] = IMAGES) -> dict[str, str]:
    """Build and push what the registry lacks; the reference of each image by its name.

    Raises:
        BuildError: a program failed; its last words are in the text.
    """
    wanted, references = list(images), {}
    if any(image.name == PAGES for image in wanted):
        try:
            page.fetch()
        except page.PageError as error:
            raise BuildError(str(error)) from None
    for image in wanted:
        reference = target.reference(image, tag_of(image, target))
        if not _is_published(reference):
            _say(f"building {reference}")
            _make(image, target, reference)
        references[image.name] = reference
    return references


def tag_of(image: Image, target: Target) -> str:
    """Hash of everything that the image is made of."""
    digest = hashlib.sha256(f"{RECIPE} {daemon_image.epoch()} {image}".encode())
    if image in SERVICES:
        digest.update(tag_of(DEPENDENCIES, target).encode())
    if image is DEPENDENCIES:
        digest.update(f"{target.python} {_pinned(target.base)}".encode())
        digest.update(LOCK.read_bytes())
    if image is DAEMON:
        # Debian's fixes change the interpreter without a change of ours.
        digest.update(json.dumps(_interpreter(), sort_keys=True).encode())
    if image is not PLACEHOLDER:
        digest.update(Path(sbom.__file__).read_bytes())
    for path in _files(image):
        content = path.read_bytes()
        digest.update(f"\0{path.relative_to(ROOT)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]


def _files(image: Image) -> Iterator[Path]:
    yield ROOT / image.directory / "Containerfile"
    for source in image.sources:
        place = ROOT / source
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file() and "__pycache__" not in path.parts and path.name != "Containerfile":
                yield path


def _make(image: Image, target: Target, reference: str) -> None:
    with tempfile.TemporaryDirectory(prefix="sandman-sbom-") as scratch:
        document = Path(scratch) / sbom.NAME
        if image is DAEMON:
            document.write_text(sbom.of_daemon(_interpreter(), daemon_image.epoch()))
            tag = f"localhost/{target.prefix}-daemon"
            options = [f"--tag={tag}", f"--push-to={reference}", f"--document={document}"]
            _run([sys.executable, "-m", "daemon.runtime", "image", *options])
            return
        base = None
        if image in SERVICES:
            base = _dependencies(target)
            document.write_text(_describe(image, base, target))
        made = _build(image, base, [document] if image in SERVICES else [])
    # By id and not by a local tag, which another build may move in between.
    _run([*BUILDAH, "push", "--quiet", _tls(reference), made, f"docker://{reference}"])


def _interpreter() -> dict[str, Any]:
    """What the daemon's interpreter was made of; it is built now unless it is cached."""
    try:
        return interpreter.manifest_of(interpreter.build())
    except shell.BuildError as error:
        raise BuildError(str(error)) from None


def _describe(image: Image, dependencies: str, target: Target) -> str:
    """The document of a service, of what the image of its dependencies says of itself."""
    container = _run([*BUILDAH, "from", "--pull-never", dependencies]).strip()
    try:
        root = Path(_run([*BUILDAH, "mount", container]).strip())
        packages = page.PACKAGES if image.name == PAGES else ()
        base, epoch = _pinned(target.base), daemon_image.epoch()
        return sbom.of_service(image.name, root, base, epoch, packages)
    finally:
        _run([*BUILDAH, "rm", container])


def _dependencies(target: Target) -> str:
    """The local image with the dependencies, built now unless it is there."""
    name = f"localhost/{target.prefix}-dependencies:{tag_of(DEPENDENCIES, target)}"
    try:
        _run([*BUILDAH, "inspect", "--type=image", name])
    except BuildError:
        _say(f"building {name}")
        wheels(target.python)
        _run([*BUILDAH, "tag", _build(DEPENDENCIES, _pinned(target.base)), name])
    return name


def _build(image: Image, base: str | None, documents: Iterable[Path] = ()) -> str:
    """Build one image; its id. Documents lie at the top of its context."""
    with tempfile.TemporaryDirectory(prefix="sandman-image-") as scratch:
        context, iid = Path(scratch) / "context", Path(scratch) / "iid"
        _stage(image, context, documents)
        # Of one time, and as one layer, the same files give the same layer.
        options = ["--isolation=chroot", "--layers=false", "--quiet"]
        options.append(f"--timestamp={daemon_image.epoch()}")
        # With its base in the one layer: buildah cannot build upon an image that was itself built upon a
        # base without a history (an optional part), as images packed by hand are.
        options += ["--squash"] * (image is DEPENDENCIES)
        if base is not None:
            options += [_tls(base), f"--build-arg=BASE={base}"]
        containerfile = context / image.directory / "Containerfile"
        _run([*BUILDAH, "bud", *options, f"--iidfile={iid}", f"--file={containerfile}", context])
        return iid.read_text().strip()


def _stage(image: Image, context: Path, documents: Iterable[Path]) -> None:
    """A context with the image's own files only, laid out as the repository is."""
    context.mkdir()
    for document in documents:
        shutil.copy(document, context)
    for path in _files(image):
        copy = context / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    if image is DEPENDENCIES:
        shutil.copy(LOCK, context)
        shutil.copytree(WHEELS, context / "build" / "wheels", copy_function=_link)
    # Whoever builds may have a strict umask; the image's user is another one and must read it.
    for path in context.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def wheels(python: str) -> Path:
    """The directory with the locked wheels, downloaded now unless they are there."""
    stamp = WHEELS / ".stamp"
    wanted = f"{python} {hashlib.sha256(LOCK.read_bytes()).hexdigest()}"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(WHEELS, ignore_errors=True)
        WHEELS.mkdir(parents=True)
        _say(f"downloading the wheels of {LOCK.name}")
        # Wheels only: a source distribution runs code of its own when it is built.
        options = [
            "--only-binary=:all:",
            f"--python-version={python}",
            "--no-deps",
            "--require-hashes",
        ]
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "download", *options, f"--dest={WHEELS}", f"--requirement={LOCK}"])
        stamp.write_text(wanted)
    return WHEELS


def _link(source: str, copy: str) -> None:
    try:
        os.link(source, copy)
    except OSError:  # another file system
        shutil.copy(source, copy)


@functools.cache
def _pinned(base: str) -> str:
    """The base by the digest that its name has now: what is built upon is what was looked at."""
    command = ["skopeo", "inspect", _tls(base), "--format={{.Name}}@{{.Digest}}"]
    return _run([*command, f"docker://{base}"]).strip()


def _is_published(reference: str) -> bool:
    try:
        _run(["skopeo", "inspect", "--raw", _tls(reference), f"docker://{reference}"])
    except BuildError:
        return False  # when the registry does not answer, the push will say so
    return True


def _tls(reference: str) -> str:
    """A registry on this machine usually speaks plain HTTP; no other is allowed to."""
    is_local = re.match(r"(127\.\d+\.\d+\.\d+|localhost|\[::1\])(:\d+)?/", reference)
    return f"--tls-verify={'false' if is_local else 'true'}"


def _run(command: Sequence[str | Path]) -> str:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(  # noqa: S603 - words of this file and of who runs it
            words, cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise BuildError(f"{words[0]} is not installed") from None
    if done.returncode != 0:
        said = "\n".join(f"{done.stdout}\n{done.stderr}".strip().splitlines()[-30:])
        raise BuildError(f"{' '.join(words)}: exit code {done.returncode}\n{said}")
    return done.stdout


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; prints one `name reference` a line."""
    parser = argparse.ArgumentParser(prog="python -m scripts.images", description=__doc__)
    parser.add_argument("--registry", required=True, help="host and port, perhaps a path")
    parser.add_argument("--base", required=True, help="image with Python, for gateway and webhook")
    parser.add_argument("--prefix", default="sandman", help="what comes before each image's name")
    parser.add_argument("--python", default=THIS_PYTHON, help="version of Python in the base")
    parser.add_argument("--only", nargs="*", choices=[image.name for image in IMAGES])
    options = parser.parse_args(arguments)
    target = Target(options.registry, options.base, options.prefix, options.python)
    wanted = [image for image in IMAGES if options.only is None or image.name in options.only]
    try:
        references = publish(target, wanted)
    except BuildError as error:
        _say(f"error: {error}")
        return 1
    for name, reference in references.items():
        print(name, reference)
    return 0


if __name__ == "__main__":
    sys.exit(main())
