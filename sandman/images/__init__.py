"""What an image in a registry says it runs: references, the user's own credentials, and the few calls of
the registry's API that it takes. For `sandman inject`; nothing here knows a cluster.

    reference    the text in a pod → host, repository, tag or digest     credentials  docker's and podman's files
    registry     manifests and configurations over HTTP                  platforms    which of an index is meant
"""

from __future__ import annotations

from sandman.images.credentials import Credentials
from sandman.images.reference import Reference, parse
from sandman.images.registry import Found, ImageError, Registry

__all__ = ["Credentials", "Found", "ImageError", "Reference", "Registry", "parse"]
