"""The signing keys: fills the Secret `sandman-keys` once, and follows what it says.

All replicas do it alike; the write is conditional on the version that was read, so that one set of
keys comes of it. A Secret that was spoilt while the webhook lives is given back what was in it: live
sandboxes depend on those keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog
import trio

from sandman import names
from sandman.service import keyring as keyrings
from sandman.service.kube import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandman.service.keyring import Keyring
    from webhook import cluster

INTERVAL_S = 30.0
"""Seconds between two looks, so that a new `current` is in use within that time."""
RETRY_S = 1.0
"""Seconds until the next look while there is no key: no pod can be injected."""
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


class Keys:
    """Holds the keyring that new pods get their credential from.

    Args:
        objects: the cluster.
        random: gives so many random bytes.
    """

    def __init__(self, objects: Cluster, random: Callable[[int], bytes]) -> None:
        self._objects = objects
        self._random = random
        self._log = structlog.get_logger("keys")
        self.keyring: Keyring | None = None

    def __repr__(self) -> str:
        return f"<Keys {self.keyring}>"

    def why_not_ready(self) -> str:
        """Empty when there is a key to make credentials with."""
        return "" if self.keyring else f"the Secret {names.KEYS_SECRET} has not been read yet"

    async def run(self) -> None:
        """Look again and again."""
        while True:
            try:
                with trio.fail_after(LOOK_TIMEOUT_S):
                    await self.look()
            except (errors.KubeError, trio.TooSlowError) as error:
                self._log.warning("keys_look_failed", error=str(error))
            await trio.sleep(INTERVAL_S if self.keyring else RETRY_S)

    async def look(self) -> None:
        """Read the Secret, and fill it if it has no current key.

        Raises:
            KubeError: the API server could not be read or written.
        """
        while True:
            secret = await self._objects.read_secret(names.KEYS_SECRET)
            try:
                self.keyring = keyrings.parse(secret.data)
            except keyrings.KeyringError as error:
                # Written, or lost to another replica: either way it is read again.
                self._log.info("keys_filled", because=str(error))
                await self._fill(secret)
            else:
                return

    async def _fill(self, secret: cluster.Secret) -> None:
        size = keyrings.KEY_BYTES
        new = self.keyring or keyrings.fresh(
            f"k{self._random(4).hex()}", self._random(size), self._random(size)
        )
        await self._objects.write_secret(secret, keyrings.completed(secret.data, new))
