"""`python -m tests.scale.hollow`: watch pods, and answer for them until told to end."""

from __future__ import annotations

import argparse
import resource
import threading
from typing import TYPE_CHECKING

import trio

from sandman import names
from sandman.service import kube, log
from tests.scale.hollow.leases import Leases
from tests.scale.hollow.pods import PODS, Book, InjectedPod
from tests.scale.hollow.server import HollowServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon.exchange import Exchange


async def _follow(kubeconfig: str, namespaces: list[str], book: Book) -> None:
    async with kube.Kube(kube.load(kubeconfig=kubeconfig)) as api, trio.open_nursery() as nursery:
        for namespace in namespaces:
            nursery.start_soon(_watch, api, namespace, book)


async def _watch(api: kube.Kube, namespace: str, book: Book) -> None:
    into, out = trio.open_memory_channel[kube.Change[InjectedPod]](64)
    reflector = kube.Reflector(api, PODS, namespace=namespace, label_selector=names.LABEL_POOL)
    async with trio.open_nursery() as nursery, out:
        nursery.start_soon(reflector.run, into)
        async for change in out:
            if not isinstance(change, kube.Synced):
                book.see(change.object, gone=isinstance(change, kube.Deleted))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.scale.hollow", description=__doc__)
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--namespace", action="append", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    log.configure("warning")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    book = Book(Leases())

    def handler(address: str) -> Callable[[Exchange], None] | None:
        found = book.at(address)
        return found.routes.handle if found is not None else None

    server = HollowServer(options.port, handler)
    threading.Thread(target=server.run, name="serve", daemon=True).start()
    trio.run(_follow, options.kubeconfig, options.namespace, book)


if __name__ == "__main__":
    main()
