"""Manifests as text: JSON, or YAML where PyYAML is installed."""

from __future__ import annotations

import json
from typing import Any

_LACKING = "to read YAML install PyYAML (pip install 'sandman-sandbox[kubernetes]'), or give JSON"


def load(text: str) -> list[dict[str, Any]]:
    """The objects in a manifest.

    Raises:
        ValueError: it cannot be read.
    """
    values = [json.loads(text)] if text.lstrip().startswith("{") else _load_yaml(text)
    for value in values:
        if not isinstance(value, dict):
            raise ValueError("a manifest holds objects, and nothing else")  # noqa: TRY004
    return values


def dump(documents: list[dict[str, Any]]) -> str:
    """A manifest with these objects."""
    try:
        import yaml  # noqa: PLC0415 - optional
    except ImportError:
        return "".join(f"{json.dumps(one, indent=2)}\n" for one in documents)
    return str(yaml.safe_dump_all(documents, sort_keys=False, explicit_start=len(documents) > 1))


def _load_yaml(text: str) -> list[Any]:
    try:
        import yaml  # noqa: PLC0415 - optional
    except ImportError:
        raise ValueError(_LACKING) from None
    try:
        return [value for value in yaml.safe_load_all(text) if value is not None]
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"not YAML: {error}") from None
