"""The composition root: settings in, a running webhook out. Every task of the program starts here."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import trio

from sandman.service import asgi, https, pki, tls
from webhook import app, cluster, rotation
from webhook.certificates import Certificates
from webhook.config import OWN
from webhook.inject import Settings
from webhook.keys import Keys
from webhook.metrics import Metrics

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from webhook.config import Config

NONCE_BYTES = 16
"""Random bytes in a nonce: 128 bits, so that none ever comes twice."""
MAX_BODY_BYTES = 4 * 1024 * 1024
"""Of a review. The API server takes objects of 3 MiB at most, and etcd keeps 1.5 MiB."""
KEEP_ALIVE_S = 120.0
"""Longer than the 90 s after which the API server drops an idle connection: it must be the one that
closes, or now and then a review meets a connection that is just being closed."""
GRACE_S = 5.0
"""For requests in flight at the end of the drain; an admission takes a millisecond."""


class Webhook:
    """The parts of one replica, made and not yet running.

    Args:
        config: the settings.
        kube: the API server.
        stop: set it to drain and end.
        clock: the time of day.
    """

    def __init__(
        self,
        config: Config,
        kube: cluster.Kube,
        stop: trio.Event,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._config = config
        self._stop = stop
        self._certificate: tls.Certificate | None = None
        objects = cluster.Cluster(kube, config.namespace, config.configuration)
        self.keys = Keys(objects, secrets.token_bytes)
        self.certificates = Certificates(
            objects,
            rotation.Names(config.dns_names, config.addresses),
            clock,
            self._take,
            is_owner=config.certificates == OWN,
        )
        self.app: asgi.App = app.build(self._parts())

    async def run(
        self, *, task_status: trio.TaskStatus[list[https.Bound]] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until `stop` is set and the drain is over."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keys.run)
            with trio.CancelScope() as waiting:
                nursery.start_soon(self._cancel_on_stop, waiting)
                await nursery.start(self.certificates.run)
            if not waiting.cancelled_caught:
                await self._serve(task_status)
            nursery.cancel_scope.cancel()

    def why_not_ready(self) -> str:
        """Empty when admissions can be sent here."""
        if self._stop.is_set():
            return "stopping"
        return self.keys.why_not_ready() or self.certificates.why_not_ready()

    async def _serve(self, task_status: trio.TaskStatus[list[https.Bound]]) -> None:
        host, port = self._config.host, self._config.port
        limits = https.Settings(
            lame_duck_s=self._config.drain_s,
            grace_s=GRACE_S,
            keep_alive_s=KEEP_ALIVE_S,
            max_body_bytes=MAX_BODY_BYTES,
        )
        await https.serve(
            self.app,
            bind=[f"[{host}]:{port}" if host else f":{port}"],
            stop=self._stop,
            tls=self._context,
            settings=limits,
            task_status=task_status,
        )

    async def _cancel_on_stop(self, scope: trio.CancelScope) -> None:
        await self._stop.wait()
        scope.cancel()

    def _parts(self) -> app.Parts:
        config = self._config
        settings = Settings(
            daemon_image=config.daemon_image,
            version=config.version,
            default_delivery=config.default_delivery,
            workload_delivery=config.workload_delivery,
            architecture=config.architecture,
            daemon_port=config.daemon_port,
            control_plane=config.namespace,
        )
        return app.Parts(
            settings=settings,
            keyring=lambda: self.keys.keyring,
            make_nonce=lambda: secrets.token_urlsafe(NONCE_BYTES),
            why_not_ready=self.why_not_ready,
            certificate_not_after=self._not_after,
            metrics=Metrics(),
        )

    def _take(self, leaf: pki.Pair) -> None:
        if self._certificate is None:
            self._certificate = tls.Certificate(leaf.certificate, leaf.key)
        else:
            self._certificate.replace(leaf.certificate, leaf.key)

    def _context(self) -> ssl.SSLContext:
        if self._certificate is None:  # pragma: no cover - serving starts once there is one
            raise RuntimeError("serving began before there was a certificate")
        return self._certificate.current()

    def _not_after(self) -> float:
        moment = self.certificates.not_after()
        return moment.timestamp() if moment else 0.0
