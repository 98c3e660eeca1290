"""Base images of the test cluster and images built on them, in the local registry.

Recipes are packed once and kept in the cache under a hash of the recipe; the registry has each under the tag `1` and
under that hash, so that a second `up` sees at once that nothing is to do.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.bed import oci, roots
from tests.cluster.bed.shell import run, say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.cluster.bed.model import Bed

PREFIX = "sandman-test"


@dataclass(frozen=True, slots=True)
class Layer:
    """How one layer is made; `recipe` changes whenever the result should."""

    name: str
    make: Callable[[Path], None]
    recipe: str


@dataclass(frozen=True, slots=True)
class Image:
    """Layers and the image's own settings."""

    name: str
    layers: tuple[Layer, ...]
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Hash of the recipe."""
        recipe = json.dumps(
            [self.settings, [layer.recipe for layer in self.layers]], sort_keys=True
        )
        return hashlib.sha256(recipe.encode()).hexdigest()[:16]


_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEBIAN = Layer("debian", roots.make_debian, f"debian 1 {' '.join(roots.DEBIAN_PACKAGES)}")
_SHELL: dict[str, object] = {"Env": [_PATH], "Cmd": ["/bin/sh"]}
_AGENT: dict[str, object] = {
    "User": f"{roots.USER_ID}:{roots.USER_ID}",
    "WorkingDir": "/home/agent",
}

IMAGES = (
    Image("debian", (DEBIAN,), _SHELL),
    Image("python", (DEBIAN,), {"Env": [_PATH], "Cmd": ["/usr/bin/python3"]}),
    Image("nonroot", (DEBIAN, Layer("agent", roots.make_agent_user, "agent 1")), _SHELL | _AGENT),
    Image("busybox", (Layer("busybox", roots.make_busybox, "busybox 1"),), _SHELL),
    Image("empty", (Layer("empty", roots.make_empty, "empty 1"),)),
)
PAUSE = Image("pause", (Layer("pause", roots.make_pause, "pause 1"),), {"Entrypoint": ["/pause"]})


def reference(bed: Bed, name: str) -> str:
    """What a pod writes to have one of the base images."""
    return f"{bed.registry}/{PREFIX}/{name}:1"


def publish(bed: Bed, wanted: Sequence[Image] = IMAGES) -> None:
    """Put every base image, or these, into the registry that is not there yet."""
    for image in wanted:
        if not _is_published(bed, image):
            layout = _layout(bed, image)
            say(f"pushing {reference(bed, image.name)}")
            for tag in ("1", image.key):
                target = f"docker://{bed.registry}/{PREFIX}/{image.name}:{tag}"
                run(["skopeo", "copy", "--dest-tls-verify=false", f"oci:{layout}:1", target])


def pause_archive(bed: Bed) -> Path:
    """The pause image as a file for containerd: no pod, and so no pull, can start without it."""
    archive = _directory(bed) / f"pause-{PAUSE.key}.tar"
    if not archive.exists():
        oci.write_archive(_layout(bed, PAUSE), archive)
    return archive


def build_image(
    bed: Bed,
    name: str,
    context: Path,
    containerfile: Path,
    build_args: Mapping[str, str] | None = None,
) -> str:
    """Build a Containerfile with buildah and push it; returns the reference, tagged by content unless `name` has a tag."""
    arguments = [f"--build-arg={key}={value}" for key, value in (build_args or {}).items()]
    with tempfile.NamedTemporaryFile(prefix="sandman-iid-") as iid:
        # Pulled anew: the base's tag may have moved since the last build.
        flags = ["--isolation", "chroot", "--tls-verify=false", "--layers", "--pull-always"]
        options = [*flags, "--iidfile", iid.name, "--quiet"]
        run([*_buildah(bed), "bud", *options, *arguments, "-f", containerfile, context])
        image = Path(iid.name).read_text().strip()
    # A tag by content: pods that ask IfNotPresent never run an older build under the same name.
    tagged = name if ":" in name else f"{name}:{image.removeprefix('sha256:')[:16]}"
    target = f"{bed.registry}/{tagged}"
    run([*_buildah(bed), "push", "--quiet", "--tls-verify=false", image, f"docker://{target}"])
    return target


def buildah_root(bed: Bed) -> Path:
    """buildah's own store, apart from any other on the machine; kept, for its layers make builds fast."""
    return bed.cache / "buildah"


def _buildah(bed: Bed) -> list[str]:
    places = ["--root", str(buildah_root(bed)), "--runroot", str(bed.state / "buildah")]
    return ["buildah", *places, "--storage-driver", "overlay"]


def _directory(bed: Bed) -> Path:
    directory = bed.cache / "images"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _is_published(bed: Bed, image: Image) -> bool:
    address = f"http://{bed.registry}/v2/{PREFIX}/{image.name}/manifests/{image.key}"
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(address, method="HEAD", headers=accept), timeout=10
        ):
            return True
    except urllib.error.HTTPError:
        return False


def _layout(bed: Bed, image: Image) -> Path:
    layout = _directory(bed) / f"{image.name}-{image.key}"
    if not layout.exists():
        layers = [packed(bed, layer) for layer in image.layers]
        oci.write_layout(layout, layers, image.settings, f"localhost/{image.name}:1")
    return layout


def packed(bed: Bed, layer: Layer) -> oci.Layer:
    """The packed layer, from the cache or made now; its diff id lies beside it."""
    key = hashlib.sha256(layer.recipe.encode()).hexdigest()[:16]
    archive = _directory(bed) / f"layer-{layer.name}-{key}.tar.gz"
    note = archive.with_suffix(".diff-id")
    if not note.exists():
        say(f"making the {layer.name} layer")
        root = Path(tempfile.mkdtemp(prefix="root-", dir=_directory(bed)))
        try:
            root.chmod(0o755)
            layer.make(root)
            note.write_text(oci.pack_layer(root, archive).diff_id)
        finally:
            shutil.rmtree(root)
    return oci.Layer(archive, note.read_text())
