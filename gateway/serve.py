"""The composition root: puts the parts together and keeps them running. Nothing else builds parts."""

from __future__ import annotations

import dataclasses
import signal
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog
import trio

from gateway import app, janitor
from gateway.allocation import Allocation
from gateway.certificates import Certificates
from gateway.credentials import WatchedCredentials
from gateway.election import Election
from gateway.fulfilment import Fulfilment
from gateway.handoff import Handoff
from gateway.metrics import Metrics
from gateway.pool import Pool
from gateway.provider import watching
from gateway.provider.kubernetes import KubernetesProvider
from gateway.proxy import Proxy
from gateway.registry import Registry
from gateway.release import Releaser
from gateway.roster import Roster
from gateway.routes.context import Context
from gateway.upstream import Upstream
from sandman import names
from sandman.service import https, kube

if TYPE_CHECKING:
    from gateway.config import Settings
    from gateway.provider import News

log = structlog.get_logger()

NEWS_BUFFER = 256
"""Pieces of news between the watches and the pool: a few TCP reads' worth."""


def wall() -> float:
    """Seconds since the epoch: the one place where the gateway reads the time of day."""
    return datetime.now(UTC).timestamp()
