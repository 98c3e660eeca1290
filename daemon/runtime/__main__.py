"""The command line: ``python -m daemon.runtime build | tree | toolchain | image``."""

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from daemon.runtime import image, interpreter, shell, toolchain, tree
from daemon.runtime.shell import BuildError


def parser() -> argparse.ArgumentParser:
    """The options of each product."""
    top = argparse.ArgumentParser(prog="python -m daemon.runtime", description=__doc__)
    fresh = argparse.ArgumentParser(add_help=False)
    fresh.add_argument("--refresh", action="store_true", help="compile anew from today's sources")
    products = top.add_subparsers(dest="product", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        return products.add_parser(name, help=text, parents=[fresh])

    build = add("build", "the interpreter with its whole library")
    build.add_argument("--out", type=Path, help="copy it here; otherwise only its place is told")
    composed = add("tree", "the directory that goes into pods")
    composed.add_argument("--out", type=Path, required=True)
    tar = add("toolchain", "a Python to bring along, as a tar")
    tar.add_argument("--out", type=Path, required=True)
    packed = add("image", "the directory as an OCI image")
    packed.add_argument("--tag", required=True)
    packed.add_argument("--push-to", metavar="REF", help="also push it there; tells the digest")
    packed.add_argument("--document", type=Path, metavar="FILE", help="put it beside the licenses")
    return top


def make_image(built: Path, tag: str, push_to: str | None, document: Path | None) -> str:
    """Compose a tree, pack it, perhaps push it; the reference to use in pods."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "tree"
        image.build(tree.compose(built, place, document=document, epoch=image.epoch()), tag)
    if push_to is None:
        return tag
    return f"{push_to}@{image.push(tag, push_to)}"


def make(options: argparse.Namespace) -> str:
    """Make the product asked for; what to print about it."""
    built = interpreter.build(refresh=options.refresh)
    if options.product == "tree":
        done = tree.compose(built, options.out.absolute())
        return f"{done} {tree.size_of(done) / 1e6:.1f} MB"
    if options.product == "toolchain":
        done = toolchain.write(built, options.out.absolute())
        return f"{done} {done.stat().st_size / 1e6:.1f} MB"
    if options.product == "image":
        return make_image(built, options.tag, options.push_to, options.document)
    if options.out:
        shutil.copytree(built, options.out, dirs_exist_ok=True)
    return str(options.out or built)


def main(argv: list[str] | None = None) -> int:
    """Run one command; a failed build is a message, not a traceback."""
    try:
        sys.stdout.write(f"{make(parser().parse_args(argv))}\n")
    except BuildError as error:
        shell.announce(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
