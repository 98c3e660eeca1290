"""A cluster as the gateway's ground: everything that is kept is an object of the API server's."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway.access import Access
from gateway.certificates import Certificates
from gateway.credentials import WatchedCredentials
from gateway.election import Election
from gateway.ground import Ground
from gateway.profiles import targets
from gateway.provider import following, watching
from gateway.provider.attachments import Attachments
from gateway.provider.kubernetes import KubernetesProvider
from gateway.provider.reservations import LeaseReservations
from gateway.provider.witness import Witness
from gateway.reviews import Reviews
from gateway.runs import Runs
from sandman import names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import trio

    from gateway.attached import Attached
    from gateway.config import Settings
    from gateway.leases import Ledger
    from gateway.model import Instance
    from gateway.provider import News
    from sandman.probes import Target
    from sandman.service import kube


def ground(settings: Settings, api: kube.Kube, wall: Callable[[], float]) -> Ground:
    """The parts that stand on a cluster.

    Args:
        settings: namespaces, names and addresses.
        api: the API server.
        wall: seconds since the epoch.
    """
    first = settings.sandbox_namespaces[0]
    now = lambda: datetime.now(UTC)  # noqa: E731

    def runs(ledger: Ledger, attached: Callable[[], Iterable[Instance]]) -> Runs:
        return Runs(api, first, ledger, now, attached)

    async def watch(send: trio.MemorySendChannel[News]) -> None:
        await watching.watch(api, settings.sandbox_namespaces, send)

    async def follow(attached: Attached) -> None:
        await following.follow(api, attached, first, settings.workload_namespaces)

    return Ground(
        credentials=WatchedCredentials(api, settings.namespace),
        certificates=Certificates(api, settings.namespace, settings.server_name, now),
        election=Election(
            api,
            namespace=settings.namespace,
            name=names.ALLOCATOR_LEASE,
            identity=settings.pod_name,
            address=f"{bracketed(settings.pod_ip)}:{settings.port}",
        ),
        provider=KubernetesProvider(api, wall),
        reviews=Reviews(api, settings.audience),
        access=Access(api),
        attachments=Attachments(api, first),
        reservations=LeaseReservations(api, first),
        witness=Witness(api),
        runs=runs,
        writes=api.counts.writes,
        closed=closed_by_all(settings, api.target.base_url),
        watch=watch,
        follow=follow,
    )


def closed_by_all(settings: Settings, api_url: str) -> dict[Target, str]:
    """What no egress profile opens and a gateway knows by itself. An API server that has a name is the operator's to
    list (`network_closed`): a sandbox resolves none."""
    url = urlsplit(api_url)
    found: dict[Target, str] = {}
    for host, port, what in (
        (url.hostname or "", url.port or 443, "the API server"),
        (settings.pod_ip, settings.port, "a gateway"),
    ):
        with contextlib.suppress(ValueError):
            [target] = targets(f"{bracketed(host)}:{port}")
            found[target] = what
    return found


def bracketed(address: str) -> str:
    """The address as part of `host:port`."""
    return f"[{address}]" if ":" in address else address
