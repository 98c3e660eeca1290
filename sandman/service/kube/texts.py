"""The typed subset of a ConfigMap: see `objects`."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - msgspec reads the annotations

from sandman.service.kube.objects import KubeObject


class ConfigMap(KubeObject, frozen=True):
    """A ConfigMap, as far as it is text."""

    data: Mapping[str, str] | None = None
