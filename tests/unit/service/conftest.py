"""The authority that the servers' certificates come from."""

from __future__ import annotations

from tests.unit.service.https import pki

__all__ = ["pki"]  # a fixture
