"""The serving certificate's keeper: reads, asks `rotation` what to do, does it, and tells readiness.

All replicas run it alike and none leads: the Secret and the configuration are written conditionally,
and a replica that loses reads again. The order matters and is what makes that safe: configuration
first, then Secret, then writes. A bundle that was computed from an old Secret can then never replace
a newer one, for whoever published the newer one changed the configuration's version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from sandman import names as contract
from sandman.service import pki
from sandman.service.kube import errors
from webhook import cluster, rotation

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

INTERVAL_S = 10.0
"""Seconds between two looks. A bundle that somebody wiped is back after so long; two reads each."""
CONFIRM_S = 0.1
"""Seconds until what was just written is looked at again: a first start is ready in a moment."""
RETRY_S = 1.0
"""Seconds until the next look while there is no leaf to serve."""
STALE_S = 300.0
"""A replica that has not managed a look for so long is not ready: it may serve a leaf that was
replaced. Well below `rotation.RETIRE`, after which that leaf is no longer trusted."""
LOOK_TIMEOUT_S = 60.0
"""The most that one look may take, all its calls together."""


class Cluster(Protocol):
    """What is read and written; `webhook.cluster.Cluster`."""

    async def read_secret(self, name: str) -> cluster.Secret:
        """The Secret as it is now."""
        ...

    async def write_secret(self, secret: cluster.Secret, data: dict[str, bytes]) -> bool:
        """Put other entries into it; False when it was written since."""
        ...

    async def read_configuration(self) -> cluster.Configuration | None:
        """The configuration as it is now; None when it is not there."""
        ...

    async def publish(self, configuration: cluster.Configuration, bundle: bytes) -> bool:
        """Write the bundle into it; False when it was written since."""
        ...


class Certificates:
    """Keeps one replica's leaf in step with the Secret and the configuration.

    Args:
        objects: the cluster.
        names: whom the certificate speaks for.
        clock: the time of day.
        serve: takes a new leaf into use; connections that are open keep the old one.
        is_owner: whether Secret and configuration are ours to write; False where somebody else (cert-manager)
            issues, publishes and rotates.
    """

    def __init__(
        self,
        objects: Cluster,
        names: rotation.Names,
        clock: Callable[[], datetime],
        serve: Callable[[pki.Pair], None],
        *,
        is_owner: bool = True,
    ) -> None:
        self._is_owner = is_owner
        self._objects = objects
        self._names = names
        self._clock = clock
        self._serve = serve
        self._serving: rotation.Identity | None = None
        self._is_trusted = False
        self._looked_at = float("-inf")
        # Since when (trio's clock) the live configuration trusts a leaf, by certificate.
        self._trusted_since: dict[bytes, float] = {}
        self._log = structlog.get_logger("certificates")

    def __repr__(self) -> str:
        return f"<Certificates {self.why_not_ready() or 'ready'}, until {self.not_after()}>"

    def why_not_ready(self) -> str:
        """Empty when the API server accepts this replica's leaf, as far as can be known."""
        if self._serving is None:
            return "there is no certificate yet"
        if not self._is_trusted:
            return (
                f"the caBundle of {contract.WEBHOOK_CONFIGURATION} does not verify the certificate"
            )
        if trio.current_time() - self._looked_at > STALE_S:
            return "the API server could not be asked for too long whether the certificate is still good"
        return ""

    def not_after(self) -> datetime | None:
        """When the leaf that is served ends."""
        return pki.not_after(self._serving.leaf.certificate) if self._serving else None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Look again and again; started once there is a leaf to serve."""
        is_started = False
        while True:
            is_settled = await self._try()
            if self._serving is not None and not is_started:
                is_started = True
                task_status.started()
            await trio.sleep(self._pause(is_settled=is_settled))

    def _pause(self, *, is_settled: bool) -> float:
        if not is_settled:
            return CONFIRM_S
        return INTERVAL_S if self._serving is not None else RETRY_S

    async def _try(self) -> bool:
        try:
            with trio.fail_after(LOOK_TIMEOUT_S):
                return await self.look()
        except (errors.KubeError, trio.TooSlowError) as error:
            self._log.warning("certificate_look_failed", error=str(error))
            return True

    async def look(self) -> bool:
        """Read everything once and take the next step; False when there is another to take at once.

        Raises:
            KubeError: the API server could not be read or written.
        """
        live = await self._objects.read_configuration()
        secret = await self._objects.read_secret(contract.WEBHOOK_TLS_SECRET)
        now = self._clock()
        state = rotation.parse(secret.data, self._names, now)
        self._note(state, live, now)
        if not self._is_owner:
            self._adopt(state, live, now)
            return True
        published = b"".join(bundle for _, bundle in live.entries) if live else b""
        wanted = rotation.advance(
            state, published, self._names, now, next_is_settled=self._is_settled(state.next)
        )
        if wanted is not state:
            await self._objects.write_secret(secret, rotation.render(wanted))
            self._log.info("certificate_secret_written", phase=_phase(wanted))
            return False
        self._adopt(state, live, now)
        return live is None or await self._publish(live, rotation.bundle(state))

    def _note(
        self, state: rotation.State, live: cluster.Configuration | None, now: datetime
    ) -> None:
        since, self._trusted_since = self._trusted_since, {}
        for identity in (state.current, state.next):
            if identity is not None and self._trusts(identity, live, now):
                leaf = identity.leaf.certificate
                self._trusted_since[leaf] = since.get(leaf, trio.current_time())

    def _adopt(
        self, state: rotation.State, live: cluster.Configuration | None, now: datetime
    ) -> None:
        candidate, serving = state.current, self._serving
        still_good = serving is not None and self._trusts(serving, live, now)
        if candidate is not None and candidate != serving:
            better = not still_good and self._trusts(candidate, live, now)
            if serving is None or better or self._is_settled(candidate):
                self._serve(candidate.leaf)
                self._serving = candidate
                self._log.info("certificate_served", not_after=str(self.not_after()))
        self._is_trusted = self._serving is not None and self._trusts(self._serving, live, now)
        self._looked_at = trio.current_time()

    async def _publish(self, live: cluster.Configuration, bundle: bytes) -> bool:
        if all(published == bundle for _, published in live.entries):
            return True
        await self._objects.publish(live, bundle)
        self._log.info("certificate_bundle_published", authorities=bundle.count(b"BEGIN"))
        return False

    def _trusts(
        self, identity: rotation.Identity, live: cluster.Configuration | None, now: datetime
    ) -> bool:
        return (
            live is not None
            and bool(live.entries)
            and all(
                rotation.trusts(bundle, identity, self._names, now) for _, bundle in live.entries
            )
        )

    def _is_settled(self, identity: rotation.Identity | None) -> bool:
        if identity is None or identity.leaf.certificate not in self._trusted_since:
            return False
        since = self._trusted_since[identity.leaf.certificate]
        return trio.current_time() - since >= rotation.SETTLE.total_seconds()


def _phase(state: rotation.State) -> str:
    if state.next is not None:
        return "next published"
    return "old retiring" if state.previous else "at rest"
