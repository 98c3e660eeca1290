"""A gateway with its real routes, server, TLS, proxy and upstream, and a real daemon behind it; only
the cluster is in memory."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING

import httpx
import pytest
import trio

from gateway import app, callers, tokens
from gateway.allocation import Allocation
from gateway.attach import Attacher
from gateway.attached import Attached
from gateway.authentication import Authentication
from gateway.calls import Calls
from gateway.certifier import Certifier
from gateway.config import Settings
from gateway.desk import Desk
from gateway.fulfilment import Fulfilment
from gateway.handoff import Handoff
from gateway.keeper import Keeper
from gateway.keysets import KeySets
from gateway.metrics import Metrics
from gateway.model import NO_AMOUNTS
from gateway.owners import Owners
from gateway.pool import Pool
from gateway.provider.local.witness import LocalWitness
from gateway.proxy import Proxy
from gateway.registry import Registry
from gateway.release import Releaser
from gateway.reservations import Reservations
from gateway.roster import Roster
from gateway.routes.context import Context
from gateway.routes.lookup import Lookup
from gateway.upstream import Upstream
from sandman import grants, names
from sandman.service import https, pki, tls
from tests.fakes.cluster import BASE, FakeCluster
from tests.fakes.daemons import answer, claims, says, scripted
from tests.flow import attaching
from tests.flow.attaching import Shop, Web
from tests.openapi.conforms import conforms
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from gateway.ground import RunKey

KEYS = {"k1": b"k" * 32}
SERVER_NAME = "gateway.test"


class Credentials:
    """The keys of a test: tenants acme and zeta."""

    def __init__(self) -> None:
        self.texts = {tenant: tokens.make_api_key(tenant) for tenant in ("acme", "zeta")}
        entries = {t: tokens.api_key_entry(text, t) for t, text in self.texts.items()}
        self.api_keys, _ = tokens.parse_api_keys(entries)
        self.daemon_keys = KEYS
        self.sandbox_keys = KEYS
        self.current_key = "k1"
        self.callers = callers.NOBODY


class LocalDaemon:
    """The real daemon as a process; `swap` starts it anew, as an image swap does."""

    def __init__(self, port: int, digest: str, *program: str) -> None:
        self._program = program or ("daemon",)
        self._env = {**os.environ, names.ENV_PORT: str(port), names.ENV_TOKEN_SHA256: digest}
        self._port = port
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-m", *self._program, "serve"], env=self._env)
        for _ in range(400):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)):
                return process
            assert process.poll() is None, "the daemon did not start"
            time.sleep(0.025)
        raise AssertionError("the daemon does not listen")

    def restart(self) -> None:
        self.stop()
        self.process = self._start()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


class Bed(SimpleNamespace):
    """What a flow test works with."""

    cluster: FakeCluster
    daemon: LocalDaemon
    url: str
    client: httpx.AsyncClient
    credentials: Credentials
    trust: ssl.SSLContext
    ca: bytes

    def as_(self, tenant: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.credentials.texts[tenant]}"}

    async def allocate(self, tenant: str = "acme", **body) -> dict:
        answer = await self.client.post("/v1/sandboxes", json=body, headers=self.as_(tenant))
        assert answer.status_code == 201, answer.text
        return answer.json()

    async def vetted(self, count: int) -> None:
        """Wait until so many placeholders may be claimed."""
        with trio.fail_after(20):
            while f"sandman_free_vetted {count}.0" not in (await self.client.get("/metrics")).text:
                await trio.sleep(0.02)

    @contextlib.asynccontextmanager
    async def raw(self) -> AsyncIterator[trio.SSLStream]:
        """A connection on which a test says byte for byte what it wants."""
        host, _, port = self.url.removeprefix("https://").partition(":")
        stream = await trio.open_ssl_over_tcp_stream(
            host, int(port), ssl_context=self.trust, https_compatible=True
        )
        try:
            yield stream
        finally:
            await trio.aclose_forcefully(stream)

    def head(self, method: str, path: str, *lines: bytes, tenant: str = "acme") -> bytes:
        """A request's head, signed."""
        token = self.credentials.texts[tenant].encode()
        first = f"{method} {path} HTTP/1.1".encode()
        return b"\r\n".join(
            [first, b"Host: x", b"Authorization: Bearer " + token, *lines, b"", b""]
        )


@pytest.fixture
def daemon() -> Iterator[LocalDaemon]:
    port = free_port()
    token = grants.daemon_token(KEYS["k1"], "ns", "nonce-1")
    one = LocalDaemon(port, grants.token_digest(token))
    one.port = port
    yield one
    one.stop()


class RealDaemonCluster(FakeCluster):
    """Its one pod is the real daemon; the fake's own boots are not used."""

    def __init__(self, daemon: LocalDaemon) -> None:
        super().__init__()
        self.daemon = daemon

    def _boot(self, uid: str, up_in: float) -> None:
        swap = uid in self.pods
        super()._boot(uid, up_in)
        if swap:
            self.daemon.restart()


class Reviewer:
    """An API server that knows no ServiceAccount."""

    async def ask(self, token: str) -> dict:
        return {"authenticated": False}


class Leader:
    """Who the allocator is, as a test says."""

    def __init__(self, *, is_leader: bool = True, address: str | None = None) -> None:
        self.is_leader = is_leader
        self.address = address


@contextlib.asynccontextmanager
async def application(
    cluster: FakeCluster,
    credentials: Credentials,
    settings: Settings,
    leader: Leader,
    authority: pki.Pair,
    parts: dict,
) -> AsyncIterator[Callable]:
    """One replica, as an ASGI application; `parts` gets those that tests look into."""
    registry = Registry(keep_ended=100)
    allocation = Allocation(cold_max=settings.cold_max, claims_max=settings.claims_max)
    roster = Roster(registry, allocation, wall)
    upstream = Upstream(credentials, settings)
    fulfilment = Fulfilment(cluster, upstream, roster, settings, wall)
    proxy = Proxy(roster, upstream, cluster, settings)
    pool = Pool(roster, fulfilment, upstream, settings)
    desk = Desk(pool, lambda: leader.is_leader)
    handoff = Handoff(leader, SERVER_NAME, lambda: authority.certificate)
    releaser = Releaser(registry, cluster, wall)
    reservations = Reservations(
        cluster.store, pool, roster, releaser, is_leader=lambda: leader.is_leader,
        shares=lambda key: credentials.api_keys[key].share, wall=wall,
    )  # fmt: skip
    keeper = Keeper(roster, upstream, cluster, wall)
    beats: list[tuple[RunKey, float]] = []
    ended: list[RunKey] = []

    async def beat(key: RunKey, ttl_s: float) -> None:
        beats.append((key, ttl_s))
        roster.ledger.beat(key.tenant, key.run, trio.current_time())

    async def end_beats(key: RunKey) -> None:
        ended.append(key)
        roster.ledger.stopped(key.tenant, key.run)

    authentication = Authentication(
        credentials, Reviewer(), KeySets(), audience=settings.audience,
        verdict_s=settings.verdict_s, wall=wall,
    )  # fmt: skip
    certifier = Certifier(
        LocalWitness(NO_AMOUNTS),
        proxy,
        pool.networks,
        roster.registry,
        credentials,
        wall,
        "gateway-1",
    )
    calls = Calls(authentication.is_in_force)
    parts.update(
        registry=registry, proxy=proxy, upstream=upstream, pool=pool, desk=desk,
        roster=roster, keeper=keeper, beats=beats, ended=ended, handoff=handoff, calls=calls,
        authentication=authentication, certifier=certifier,
    )  # fmt: skip
    context = Context(
        authentication=authentication, calls=calls,
        settings=settings, credentials=credentials, roster=roster, pool=pool, desk=desk,
        lookup=Lookup(cluster, settings.sandbox_namespaces),
        releaser=releaser, reservations=reservations, proxy=proxy, handoff=handoff, wall=wall,
        keeper=keeper, owners=Owners(cluster, roster), beat=beat, end_beats=end_beats,
        # Nobody attaches here: `test_attach` has an API server to ask.
        attacher=Attacher(Attached(roster.ledger, wall, keep_ended=10), None, None, upstream, settings, wall, str),
        certifier=certifier,
        missing=lambda: [] if roster.synced.is_set() else ["the list of pods"],
    )  # fmt: skip
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.run, cluster.receive)
            await nursery.start(desk.run)
            nursery.start_soon(reservations.run)
            nursery.start_soon(keeper.run)
            yield app.build(context, Metrics(roster), context.missing)
            nursery.cancel_scope.cancel()
    finally:
        # Only now does nobody dial any more.
        with trio.move_on_after(1, shield=True):
            await upstream.aclose()
            await handoff.aclose()


@contextlib.asynccontextmanager
async def gateway(
    cluster: FakeCluster,
    credentials: Credentials,
    settings: Settings,
    leader: Leader,
    ca: pki.Pair,
    parts: dict | None = None,
    authority: pki.Pair | None = None,
) -> AsyncIterator[str]:
    """One replica, listening on TLS; yields its address. `parts` gets those that tests look into."""
    leaf = pki.issue(ca, [SERVER_NAME], ["127.0.0.1"], datetime.now(UTC), 1)
    certificate = tls.Certificate(leaf.certificate, leaf.key)
    stop = trio.Event()
    parts = {} if parts is None else parts
    built = application(cluster, credentials, settings, leader, (authority or ca), parts)
    async with built as whole, trio.open_nursery() as nursery:
        serving = lambda task_status: https.serve(  # noqa: E731
            whole, bind=["127.0.0.1:0"], stop=stop, tls=certificate.current,
            settings=https.Settings(grace_s=1.0), task_status=task_status,
        )  # fmt: skip
        [bound] = await nursery.start(_started, serving)
        yield f"127.0.0.1:{bound.port}"
        stop.set()
        await parts["upstream"].aclose()
        await parts["handoff"].aclose()
        nursery.cancel_scope.cancel()


async def _started(serving, *, task_status) -> None:
    await serving(task_status)


def wall() -> float:
    return datetime.now(UTC).timestamp()


@pytest.fixture
async def bed(daemon: LocalDaemon) -> AsyncIterator[Bed]:
    async with made_bed(RealDaemonCluster(daemon), daemon) as one:
        yield one


@pytest.fixture
async def odd_bed() -> AsyncIterator[Bed]:
    """Behind the pod is a daemon that does what a test scripts."""
    async with scripted() as daemon:
        daemon.script = claims(says(answer()))
        async with made_bed(ScriptedCluster(), daemon) as one:
            yield one


class ScriptedCluster(FakeCluster):
    """A swap changes nothing at the port, so a placeholder keeps its image."""

    def __init__(self, daemon: object = None) -> None:
        super().__init__()
        self.daemon = daemon

    def placeholder(self, **options):
        return super().placeholder(**options, image=BASE)


@contextlib.asynccontextmanager
async def made_bed(
    cluster: FakeCluster, daemon, *, vetted: bool = True, **changes
) -> AsyncIterator[Bed]:
    credentials = Credentials()
    ca = pki.make_ca("test", datetime.now(UTC), 1)
    settings = Settings(
        daemon_port=daemon.port, **{"loss_s": 0.5, "cold_max": 4, "claims_max": 4, **changes}
    )
    cluster.placeholder(address="127.0.0.1", key_id="k1")
    cluster.pool()
    cluster.synced()
    parts: dict = {}
    async with gateway(cluster, credentials, settings, Leader(), ca, parts) as address:
        trust = ssl.create_default_context(cadata=ca.certificate.decode())
        base = f"https://{address}"
        async with (
            httpx.AsyncClient(
                base_url=base, verify=trust, timeout=20, event_hooks={"response": [conforms]}
            ) as client,
            trio.open_nursery() as nursery,
        ):
            one = Bed(
                cluster=cluster, daemon=daemon, url=base, client=client, credentials=credentials,
                trust=trust, ca=ca, settings=settings, nursery=nursery, **parts,
            )  # fmt: skip
            if vetted:
                await one.vetted(1)
            yield one
            nursery.cancel_scope.cancel()
        # Nothing stays in use. What the pool does by itself, as to look at a placeholder, may be under way.
        with trio.fail_after(10):
            while parts["registry"]._calls or any(
                entry.users for entry in parts["upstream"]._open.values()
            ):
                await trio.sleep(0.01)


@pytest.fixture
def web() -> Iterator[Web]:
    """A workload's daemon."""
    one = Web("n-web")
    yield one
    one.stop()


@pytest.fixture
async def shop(web: Web, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    """A namespace with that workload, and a gateway that may attach to it."""
    async with attaching.opened(web, monkeypatch) as one:
        yield one
