"""The test cluster: a real single-node Kubernetes on this machine, for tests and for trying things by hand.

Callers use what is listed in `__all__` and `tests.cluster.bed.images`; the other modules are its own, and the scale
bed's (`tests/scale`), which has a second control plane of the same parts. It must leave
nothing behind after `down`, and must touch no process, rule or mount that it did not make.
"""

from tests.cluster.bed.images import build_image, reference
from tests.cluster.bed.kube import kubectl
from tests.cluster.bed.lifecycle import down, is_up, restart, status, up
from tests.cluster.bed.model import Bed, BedError
from tests.cluster.bed.needs import missing

__all__ = [
    "Bed",
    "BedError",
    "build_image",
    "down",
    "is_up",
    "kubectl",
    "missing",
    "reference",
    "restart",
    "status",
    "up",
]
