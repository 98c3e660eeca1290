"""hatchling's hook: puts the programs of local mode into the wheel, as one archive that Python runs (`sandman serve --local`)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MAIN = """import sys

from gateway.__main__ import main

sys.exit(main())
"""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""Of every file in the archive: the same sources give the same bytes."""


def sources(root: Path) -> list[Path]:
    """What the archive holds: the gateway with its page, and the daemon without the build of its runtime."""
    gateway = [*(root / "gateway").rglob("*.py"), *_page(root)]
    daemon = (root / "daemon").rglob("*.py")
    return sorted([*gateway, *(file for file in daemon if "runtime" not in file.parts)])


def _page(root: Path) -> list[Path]:
    return [path for path in (root / "gateway" / "page").rglob("*") if path.is_file()]


def write(root: Path, target: Path) -> None:
    """Write the archive."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        files = {str(path.relative_to(root)): path.read_bytes() for path in sources(root)}
        for name, data in {**files, "__main__.py": MAIN.encode()}.items():
            archive.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)


class Hook(BuildHookInterface[Any]):
    """Called by hatchling."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before a wheel is built; one that is editable has the checkout."""
        if version == "editable":
            return
        # A program of its own: only the one file of this hook is known to whoever builds.
        fetching = [sys.executable, str(Path(self.root) / "scripts" / "page.py")]
        if subprocess.run(fetching, check=False).returncode != 0:  # noqa: S603 - words of this file
            # Whoever only wants the client needs no npm. The page itself says what it lacks.
            self.app.display_warning("the page of local mode will have no terminal")
        target = Path(tempfile.mkdtemp(prefix="sandman-wheel-")) / "_local.pyz"
        write(Path(self.root), target)
        build_data["force_include"][str(target)] = "sandman/_local.pyz"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Take the archive away again."""
        del version, artifact_path
        for source, name in build_data["force_include"].items():
            if name == "sandman/_local.pyz":
                Path(source).unlink(missing_ok=True)
                Path(source).parent.rmdir()
