"""The interpreter: CPython's compiled parts with our own modules linked in.

A change to our C sources costs seconds: CPython itself comes from ``cpython``'s cache. The result,
which ``tree`` and ``toolchain`` cut to size::

    bin/python3                 static, stripped
    lib/python3.13/             sources, without what cannot work here
    licenses/                   the terms of what is linked in
    RUNTIME.json                what it was made of
    build.log
"""

import json
import shutil
from pathlib import Path

from daemon.runtime import cpython, recipe, shell
from daemon.runtime.cpython import Workshop
from daemon.runtime.shell import BuildError

MANIFEST = "RUNTIME.json"


def compile_native(shop: Workshop, parts: Path, into: Path) -> list[Path]:
    """Our own sources as objects."""
    objects = []
    for source in recipe.native_sources():
        target = into / f"{source.stem}.o"
        flags = [*recipe.COMPILER_FLAGS.split(), "-std=gnu11", "-DNDEBUG"]
        flags += [
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-ffile-prefix-map={recipe.NATIVE}={cpython.ANYWHERE}",
        ]
        headers = [f"-I{parts / cpython.HEADERS}", f"-I{recipe.NATIVE}"]
        shop.run([shop.compiler, *flags, *headers, "-c", source, "-o", target], into)
        objects.append(target)
    return objects


def link(shop: Workshop, parts: Path, objects: list[Path], binary: Path) -> None:
    """One static program of our objects and CPython's archives."""
    archives = sorted((parts / cpython.LINK).glob("*.a"))
    group: list[str | Path] = ["-Wl,--start-group", *archives, "-Wl,--end-group", "-lm"]
    unstripped = shop.root / "python"
    shop.run([shop.compiler, *recipe.LINKING, "-o", unstripped, *objects, *group], shop.root)
    binary.parent.mkdir(parents=True)
    shop.run(["strip", "--strip-all", "-o", binary, unstripped], shop.root)
    require_static(binary)


def require_static(binary: Path) -> None:
    """A program that names a loader would run here, where musl is installed, and nowhere else."""
    headers = shell.read(["readelf", "--program-headers", "--wide", binary])
    if "INTERP" in headers:
        raise BuildError(f"{binary} is linked dynamically")


def assemble(root: Path, parts: Path) -> Path:
    """Compile, link and lay out below ``root``; return the finished directory."""
    shop = cpython.open_workshop(root)
    done = root / "done"
    link(shop, parts, compile_native(shop, parts, root), done / "bin" / "python3")
    for name in ("lib", "licenses"):
        shutil.copytree(parts / name, done / name)
    manifest = json.loads((parts / cpython.PARTS).read_text())
    manifest["recipe"] = recipe.current_identity()
    (done / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    logs = (parts / cpython.LOG).read_bytes() + shop.log.read_bytes()
    (done / cpython.LOG).write_bytes(logs)
    return done


def build(*, refresh: bool = False) -> Path:
    """The interpreter's directory, made unless this recipe has been made before.

    With ``refresh`` CPython, too, is compiled anew, which takes up Debian's security fixes since.
    """
    final = recipe.cache_root() / recipe.current_identity()
    if not refresh and (final / MANIFEST).exists():
        return final
    parts = cpython.build(refresh=refresh)
    cpython.install_compiler()
    return cpython.cached(final, lambda root: assemble(root, parts), MANIFEST, refresh=refresh)


def manifest_of(built: Path) -> dict[str, object]:
    """What a built interpreter says of itself."""
    found: dict[str, object] = json.loads((built / MANIFEST).read_text())
    return found
