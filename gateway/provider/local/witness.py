"""What there is to know of this machine from outside of a sandbox: less than of a cluster's node, and said so."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import trio

from gateway.facts import Facts, NodeFacts

if TYPE_CHECKING:
    from gateway.model import Amounts, Instance

RUNTIME = "sandman-local"


class LocalWitness:
    """Knows this machine. Nothing is set aside for anybody here, so that no pod has a QoS class."""

    def __init__(self, whole: Amounts) -> None:
        self._whole = whole

    async def facts(self, instance: Instance) -> Facts:
        """See `provider.witness.Witness`."""
        await trio.lowlevel.checkpoint()
        machine = os.uname()
        return Facts(
            image_digest=instance.image_digest,
            restarts=int(instance.was_swapped),
            container_started_at=instance.started_at,
            node=NodeFacts(
                name=machine.nodename,
                kernel=machine.release,
                architecture=machine.machine,
                runtime=RUNTIME,
                allocatable=self._whole,
            ),
        )
