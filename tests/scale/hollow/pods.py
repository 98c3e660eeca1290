"""Which pod has which address, and the daemon at each: fed by a watch, asked by connections' threads."""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING

from sandman import names
from sandman.service import kube
from sandman.service.kube.objects import KubeObject, Object
from tests.scale.hollow.application import Hollow

if TYPE_CHECKING:
    from tests.scale.hollow.leases import Leases


class Variable(Object, frozen=True):
    """Of a container's environment."""

    name: str = ""
    value: str = ""


class Container(Object, frozen=True):
    """What of a container makes its daemon."""

    image: str = ""
    env: list[Variable] | None = None


class Spec(Object, frozen=True):
    """Of a pod."""

    containers: list[Container] | None = None


class Status(Object, frozen=True):
    """Of a pod."""

    phase: str = ""
    pod_ip: str = ""


class InjectedPod(KubeObject, frozen=True):
    """A pod with what the webhook has put into it, which nobody else here reads."""

    spec: Spec = Spec()
    status: Status = Status()


PODS: kube.Resource[InjectedPod] = dataclasses.replace(kube.PODS, type=InjectedPod)  # type: ignore[assignment, arg-type]


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """What a daemon would be started with."""

    uid: str
    image: str
    token_sha256: str


def facts(pod: InjectedPod) -> Facts | None:
    """Of a pod that runs and was injected; None: nobody would answer there. Pure."""
    if pod.status.phase != "Running" or not pod.status.pod_ip or pod.metadata.deletion_timestamp:
        return None
    first = (pod.spec.containers or [Container()])[0]
    digests = [one.value for one in first.env or [] if one.name == names.ENV_TOKEN_SHA256]
    return Facts(pod.metadata.uid, first.image, digests[0]) if digests else None


class Book:
    """Daemons by address. A daemon starts when it is first called; another image is another start of it."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._lock = threading.Lock()
        self._facts: dict[str, Facts] = {}
        self._daemons: dict[str, tuple[Facts, Hollow]] = {}
        self._addresses: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._facts)

    def see(self, pod: InjectedPod, *, gone: bool) -> None:
        """Take what the watch tells."""
        found = None if gone else facts(pod)
        with self._lock:
            if found is None:
                self._forget(pod.metadata.uid)
            else:
                self._addresses[found.uid] = pod.status.pod_ip
                self._facts[pod.status.pod_ip] = found

    def at(self, address: str) -> Hollow | None:
        """The daemon there; None: nobody is, or not any more."""
        with self._lock:
            found = self._facts.get(address)
            if found is None:
                return None
            known = self._daemons.get(address)
            if known is None or known[0] != found:
                self._end(address)
                known = self._daemons[address] = found, Hollow(found.token_sha256, self._leases)
        return None if known[1].is_over else known[1]

    def _forget(self, uid: str) -> None:
        """The address may be another pod's by now."""
        address = self._addresses.pop(uid, "")
        known = self._facts.get(address)
        if known is not None and known.uid == uid:
            del self._facts[address]
            self._end(address)

    def _end(self, address: str) -> None:
        known = self._daemons.pop(address, None)
        if known is not None:
            known[1].close()
