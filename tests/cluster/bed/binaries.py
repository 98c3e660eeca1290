"""Builds the cluster's binaries from Go modules into the cache, each once per recipe.

A stamp beside each binary holds the recipe it was built by, so that a new version (or new flags) rebuilds that
binary and no other.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.bed import model
from tests.cluster.bed.shell import run, say

if TYPE_CHECKING:
    from tests.cluster.bed.model import Bed

MODULES = Path(__file__).parent / "go"

_STRIP = "-s -w"
_MAJOR, _MINOR, _ = model.KUBERNETES_VERSION.removeprefix("v").split(".")
# Without these the components report v0.0.0, and clients that ask for the version take the wrong turn.
_KUBERNETES_FLAGS = " ".join(
    [
        _STRIP,
        f"-X k8s.io/component-base/version.gitVersion={model.KUBERNETES_VERSION}",
        f"-X k8s.io/component-base/version.gitMajor={_MAJOR}",
        f"-X k8s.io/component-base/version.gitMinor={_MINOR}",
    ]
)

_CONTAINERD = "github.com/containerd/containerd/v2"
# Without it nodes report `2.2.9+unknown`, and who parses the runtime's version must see a real one.
_CONTAINERD_FLAGS = (
    f"{_STRIP} -X {_CONTAINERD}/version.Version={model.CONTAINERD_VERSION.removeprefix('v')}"
)


@dataclass(frozen=True, slots=True)
class Binary:
    """One program: the package it is built from, at a version, in a module of ours or by itself."""

    name: str
    package: str
    version: str
    # A directory below go/, for packages whose own go.mod forbids `go install`.
    module: str | None = None
    ldflags: str = _STRIP
    # Needs C: linked to the machine's libc, which all others must not be.
    tags: str | None = None
    # Below the binaries' directory, for what must not be found by its name alone.
    directory: str = "."

    @property
    def recipe(self) -> str:
        """Everything that, when changed, asks for a new build."""
        return f"{self.package}@{self.version} {self.ldflags}" + (
            f" {self.tags}" if self.tags else ""
        )


def _kubernetes(name: str) -> Binary:
    package = f"k8s.io/kubernetes/cmd/{name}"
    return Binary(name, package, model.KUBERNETES_VERSION, "kubernetes", _KUBERNETES_FLAGS)


def _containerd(name: str) -> Binary:
    package = f"{_CONTAINERD}/cmd/{name}"
    return Binary(name, package, model.CONTAINERD_VERSION, ldflags=_CONTAINERD_FLAGS)


BINARIES = (
    Binary("etcd", "go.etcd.io/etcd/server/v3", model.ETCD_VERSION, "etcd"),
    *map(_kubernetes, ("kube-apiserver", "kube-controller-manager", "kube-scheduler")),
    *map(_kubernetes, ("kubelet", "kube-proxy", "kubectl")),
    *map(_containerd, ("containerd", "containerd-shim-runc-v2", "ctr")),
    # Debian's knows no user namespaces of pods; it is what starts all pods but those that ask for this one.
    Binary(
        "runc",
        "github.com/opencontainers/runc",
        model.RUNC_VERSION,
        tags="seccomp",
        directory=model.NEW_RUNC.parent.name,
    ),
    Binary(
        "kube-router",
        "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
        model.KUBE_ROUTER_VERSION,
    ),
)
KWOK = Binary("kwok", "sigs.k8s.io/kwok/cmd/kwok", model.KWOK_VERSION)


def build(bed: Bed, *, with_kwok: bool = False) -> dict[str, float]:
    """Build what the cache lacks; returns the seconds each took."""
    bed.bin.mkdir(parents=True, exist_ok=True)
    wanted = (*BINARIES, KWOK) if with_kwok else BINARIES
    taken = {binary.name: _build(bed, binary) for binary in wanted if not is_built(bed, binary)}
    if KWOK.name in taken:
        _keep_stages(bed)
    return taken


def kwok_stages(bed: Bed) -> Path:
    """KWOK's own stage files, without which it exits: they come with its source, not inside it."""
    return bed.cache / "share" / "kwok-stages"


def is_built(bed: Bed, binary: Binary) -> bool:
    """True when the cached binary was made by the recipe of today."""
    stamp = _stamp(bed, binary)
    program = bed.bin / binary.directory / binary.name
    return program.exists() and stamp.exists() and stamp.read_text() == binary.recipe


def _stamp(bed: Bed, binary: Binary) -> Path:
    return bed.bin / binary.directory / f".{binary.name}.recipe"


def _build(bed: Bed, binary: Binary) -> float:
    say(f"building {binary.name} {binary.version}")
    began = time.monotonic()
    if binary.module is None:
        _install(bed, binary)
    else:
        _build_in_module(bed, binary, _prepare_module(bed, binary.module))
    _stamp(bed, binary).write_text(binary.recipe)
    return time.monotonic() - began


def _prepare_module(bed: Bed, name: str) -> Path:
    """Copy a module of ours out of the repository and let Go complete it there: checksums never land in the tree."""
    target = bed.cache / "build" / name
    source = MODULES / name
    if (target / "go.sum").exists() and _same(source, target):
        return target
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    for file in source.iterdir():
        shutil.copy(
            file, target / f".{file.name}.source"
        )  # `go mod tidy` rewrites go.mod: compare with this copy.
    run(["go", "mod", "tidy"], cwd=target, env=_environment())
    return target


def _same(source: Path, target: Path) -> bool:
    copies = {file: target / f".{file.name}.source" for file in source.iterdir()}
    return all(
        copy.exists() and copy.read_text() == file.read_text() for file, copy in copies.items()
    )


def _build_in_module(bed: Bed, binary: Binary, module: Path) -> None:
    flags = ["-trimpath", "-ldflags", binary.ldflags, "-o", str(bed.bin / binary.name)]
    run(["go", "build", *flags, binary.package], cwd=module, env=_environment())


def _install(bed: Bed, binary: Binary) -> None:
    environment = _environment() | {"GOBIN": str(bed.bin / binary.directory)}
    flags = ["-trimpath", "-ldflags", binary.ldflags]
    if binary.tags is not None:
        environment["CGO_ENABLED"] = "1"
        flags += ["-tags", binary.tags]
    run(
        ["go", "install", *flags, f"{binary.package}@{binary.version}"],
        cwd=bed.cache,
        env=environment,
    )


def _environment() -> dict[str, str]:
    # Static: the shim and the kubelet must not depend on the machine's libc. GOWORK off: the caller may sit in a
    # workspace of his own.
    return dict(os.environ) | {"CGO_ENABLED": "0", "GOWORK": "off"}


def _keep_stages(bed: Bed) -> None:
    module = f"{KWOK.package.removesuffix('/cmd/kwok')}@{KWOK.version}"
    source = json.loads(run(["go", "mod", "download", "-json", module], cwd=bed.cache))["Dir"]
    shutil.rmtree(kwok_stages(bed), ignore_errors=True)
    # Contents only: files of Go's module cache are read-only.
    copy = shutil.copyfile
    shutil.copytree(Path(source) / "kustomize" / "stage", kwok_stages(bed), copy_function=copy)
    run(["chmod", "-R", "u+w", kwok_stages(bed)])
