"""The test cluster from the command line: `python -m tests.cluster.bed up`."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.cluster.bed import binaries, images, leftovers, lifecycle, needs
from tests.cluster.bed.model import Bed, BedError
from tests.cluster.bed.shell import say


def main() -> int:
    """Parse the command line, do it, return the exit code."""
    options = _parser().parse_args()
    try:
        return int(options.act(Bed.from_env(), options) or 0)
    except BedError as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.bed", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="build the binaries that the cache lacks")
    build.add_argument("--with-kwok", action="store_true", help="and KWOK, for simulated nodes")
    build.set_defaults(act=_build)
    for name, act, text in (
        ("up", _up, "bring the cluster up; nothing to do if it is up and healthy"),
        ("down", _down, "take it down and leave nothing"),
        ("status", _status, "say what runs; exit code 1 unless all is well"),
        ("env", _env, 'print shell lines that make kubectl and ctr work: eval "$(... env)"'),
        ("images", _images, "put the base images into the registry and list them"),
        ("leftovers", _leftovers, "after `down`: list what it left; exit code 1 if anything"),
        ("missing", _missing, "list what this machine lacks; exit code 1 if anything"),
    ):
        commands.add_parser(name, help=text).set_defaults(act=act)
    kubectl = commands.add_parser(
        "kubectl", help="run kubectl as the administrator", add_help=False
    )
    kubectl.add_argument("words", nargs=argparse.REMAINDER)
    kubectl.set_defaults(act=_kubectl)
    return parser


def _build(bed: Bed, options: argparse.Namespace) -> None:
    for name, seconds in binaries.build(bed, with_kwok=options.with_kwok).items():
        say(f"{name}: {seconds:.0f} s")


def _up(bed: Bed, _: argparse.Namespace) -> None:
    began = time.monotonic()
    lifecycle.up(bed)
    say(
        f'up in {time.monotonic() - began:.0f} s; kubectl works after: eval "$(python -m tests.cluster.bed env)"'
    )


def _down(bed: Bed, _: argparse.Namespace) -> None:
    began = time.monotonic()
    lifecycle.down(bed)
    say(f"down in {time.monotonic() - began:.0f} s")


def _status(bed: Bed, _: argparse.Namespace) -> int:
    states = lifecycle.status(bed) if bed.state.exists() else {"cluster": False}
    for name, is_well in states.items():
        say(f"{name:20} {'well' if is_well else 'not running'}")
    return 0 if all(states.values()) else 1


def _env(bed: Bed, _: argparse.Namespace) -> None:
    say(f'export KUBECONFIG="{bed.kubeconfig}" PATH="{bed.bin}:$PATH"')
    say(f'export CONTAINERD_ADDRESS="{bed.containerd_socket}" CONTAINERD_NAMESPACE=k8s.io')


def _images(bed: Bed, _: argparse.Namespace) -> None:
    images.publish(bed)
    for image in images.IMAGES:
        say(images.reference(bed, image.name))


def _leftovers(bed: Bed, _: argparse.Namespace) -> int:
    before = leftovers.recorded(bed)
    if before is None:
        message = "there is no snapshot: `up` takes one before it starts anything"
        raise BedError(message)
    found = leftovers.difference(before, leftovers.take(bed))
    for line in found:
        say(line)
    say(f"{len(found)} left")
    return 1 if found else 0


def _missing(_bed: Bed, _: argparse.Namespace) -> int:
    lacking = needs.missing()
    for line in lacking:
        say(line)
    return 1 if lacking else 0


def _kubectl(bed: Bed, options: argparse.Namespace) -> None:
    """Becomes kubectl, so that `exec -it` and `logs -f` have the terminal."""
    program = bed.bin / "kubectl"
    os.execve(
        program,
        [str(program), *options.words],
        dict(os.environ) | {"KUBECONFIG": str(bed.kubeconfig)},
    )


if __name__ == "__main__":
    sys.exit(main())
