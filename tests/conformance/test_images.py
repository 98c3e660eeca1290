"""The daemon's image: whoever builds it of the same sources gets the same digest, whatever the machine's mood."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from daemon.runtime import interpreter
from scripts import sbom

pytestmark = pytest.mark.usefixtures("machine")

ROOT = Path(__file__).parents[2]
BUILDAH = ("buildah", "--storage-driver", "overlay")
EPOCH = "1700000000"


def build(place: Path, **environment: str) -> dict[str, Any]:
    """Build the image in a process of its own, as `make images` does; what the layout says, by digests."""
    place.mkdir()
    document = place / sbom.NAME
    document.write_text(sbom.of_daemon(interpreter.manifest_of(interpreter.build()), 0))
    tag = f"localhost/sandman-test/{place.name}"
    # Another place each time, another order of sets, another umask: none of it may be seen in the result.
    with tempfile.TemporaryDirectory(prefix=place.name) as scratch:
        subprocess.run(
            [sys.executable, "-m", "daemon.runtime", "image", f"--tag={tag}", f"--document={document}"],
            cwd=ROOT, env=os.environ | {"TMPDIR": scratch, "SOURCE_DATE_EPOCH": EPOCH} | environment, umask=int(environment["UMASK"], 8), check=True,
        )  # fmt: skip
    subprocess.run([*BUILDAH, "push", "--quiet", tag, f"oci:{place}/layout:1"], check=True)
    subprocess.run([*BUILDAH, "rmi", tag], check=True, capture_output=True)
    (found,) = json.loads((place / "layout/index.json").read_text())["manifests"]
    manifest = blob(place, found["digest"])
    return {
        "image": found["digest"],
        "manifest": manifest,
        "config": blob(place, manifest["config"]["digest"]),
    }


def blob(place: Path, digest: str) -> Any:
    return json.loads((place / "layout/blobs/sha256" / digest.removeprefix("sha256:")).read_text())


def test_two_builds_of_the_daemons_image_have_one_digest(tmp_path: Path) -> None:
    one = build(tmp_path / "one", PYTHONHASHSEED="1", UMASK="022")
    two = build(tmp_path / "another", PYTHONHASHSEED="2", UMASK="077")
    assert one["manifest"]["layers"] == two["manifest"]["layers"]
    assert one["config"] == two["config"]
    assert one["image"] == two["image"]
    # The time of the image and of all in it is the one that was asked for, not that of its build.
    assert one["config"]["created"] == "2023-11-14T22:13:20Z"
    (layer,) = one["manifest"]["layers"]
    archive = tmp_path / "one/layout/blobs/sha256" / layer["digest"].removeprefix("sha256:")
    command = ["tar", "--utc", "-tvzf", archive]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line for line in listed if "2023-11-14 22:13" not in line] == []
    assert any(line.endswith(f" {sbom.DAEMON_PLACE}") for line in listed)
