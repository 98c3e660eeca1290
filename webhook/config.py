"""Settings of the webhook: each with its variable, unit, default and reason; a frozen value."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandman import names
from sandman.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "SANDMAN_WEBHOOK_"
OWN, EXTERNAL = "own", "external"
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class ConfigError(ValueError):
    """A setting cannot be; the text names the variable at fault."""


@dataclass(frozen=True, slots=True)
class Config:
    """All that the webhook is told from outside.

    Each field is set by SANDMAN_WEBHOOK_ and its name in capitals. The kubelet's service links set
    SANDMAN_WEBHOOK_PORT and others too: the manifests switch them off.

    Args:
        daemon_image: reference of the image that holds the daemon. No default: it names a registry,
            and by digest it pins what runs in every sandbox.
        default_delivery: `image` or `init`, for pods without the annotation. `image`, since it costs
            no container; a cluster that cannot mount images says `init`.
        workload_delivery: the same for users' own workloads. `init`, since it works everywhere: an image
            volume that a node cannot mount would keep somebody's production from starting.
        architecture: what the daemon in that image is built for, as nodes' label kubernetes.io/arch says it.
        namespace: where the webhook, its Secrets and its Service are.
        service: name of the Service; with the namespace it is the name in the certificate.
        configuration: name of the MutatingWebhookConfiguration whose caBundle is kept. Another name lets
            a second version be tried beside the first.
        certificates: `own`, or `external` where cert-manager or the like fills the Secret `sandman-webhook-tls`
            (`tls.crt`, `tls.key`, `ca.crt`) and publishes the authority in the configuration.
        addresses: further addresses in the certificate, comma-separated. None: the API server comes
            by the Service. For a webhook outside of the cluster that is registered by URL.
        host: address to listen on. Empty: all, IPv6 and IPv4.
        port: TCP port. 10250 is open from managed control planes to nodes on every large provider.
        daemon_port: where the daemon listens in the pod.
        drain_s: seconds to go on serving after SIGTERM. 15: endpoints spread asynchronously, and the
            API server keeps its connections to a pod that is going.
        log_level: least severity that is logged.
        version: written on injected pods. Not for setting outside of tests.
    """

    daemon_image: str
    default_delivery: str = names.DELIVERY_IMAGE
    workload_delivery: str = names.DELIVERY_INIT
    architecture: str = "amd64"
    namespace: str = names.SYSTEM_NAMESPACE
    service: str = "sandman-webhook"
    configuration: str = names.WEBHOOK_CONFIGURATION
    certificates: str = OWN
    addresses: tuple[str, ...] = ()
    host: str = ""
    port: int = names.WEBHOOK_PORT
    daemon_port: int = names.DAEMON_PORT
    drain_s: float = 15.0
    log_level: str = "info"
    version: str = __version__

    @property
    def dns_name(self) -> str:
        """What the API server expects to find in the certificate."""
        return f"{self.service}.{self.namespace}.svc"

    @property
    def dns_names(self) -> tuple[str, ...]:
        """The names in the certificate."""
        return self.dns_name, f"{self.dns_name}.cluster.local"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Config:
        """Read the settings; a variable that is empty counts as absent.

        Raises:
            ConfigError: names the variable at fault.
        """
        return _Reader(environ).config()


class _Reader:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def config(self) -> Config:
        default = Config(daemon_image="")
        return Config(
            daemon_image=self._image(),
            default_delivery=self._delivery("DEFAULT_DELIVERY", default.default_delivery),
            workload_delivery=self._delivery("WORKLOAD_DELIVERY", default.workload_delivery),
            architecture=self._name("ARCHITECTURE", default.architecture),
            namespace=self._name("NAMESPACE", default.namespace),
            service=self._name("SERVICE", default.service),
            configuration=self._name("CONFIGURATION", default.configuration),
            certificates=self._choice("CERTIFICATES", default.certificates, (OWN, EXTERNAL)),
            addresses=self._addresses(),
            host=self._text("HOST", default.host),
            port=self._port("PORT", default.port, least=0),
            daemon_port=self._port("DAEMON_PORT", default.daemon_port),
            drain_s=self._seconds("DRAIN_S", default.drain_s),
            log_level=self._choice(
                "LOG_LEVEL", default.log_level, ("debug", "info", "warning", "error")
            ),
        )

    def _text(self, name: str, default: str) -> str:
        return self._environ.get(PREFIX + name, "").strip() or default

    def _image(self) -> str:
        image = self._text("DAEMON_IMAGE", "")
        if not image or any(character.isspace() for character in image):
            raise ConfigError(f"{PREFIX}DAEMON_IMAGE must name the image that holds the daemon")
        return image

    def _delivery(self, name: str, default: str) -> str:
        return self._choice(name, default, (names.DELIVERY_IMAGE, names.DELIVERY_INIT))

    def _choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        value = self._text(name, default)
        if value not in choices:
            raise ConfigError(f"{PREFIX}{name} is {value!r}: write one of {', '.join(choices)}")
        return value

    def _name(self, name: str, default: str) -> str:
        value = self._text(name, default)
        if not _LABEL.fullmatch(value):
            raise ConfigError(f"{PREFIX}{name} is {value!r}: write a Kubernetes name")
        return value

    def _port(self, name: str, default: int, *, least: int = 1) -> int:
        value = self._text(name, str(default))
        if not value.isdecimal() or not least <= int(value) <= 65535:
            raise ConfigError(f"{PREFIX}{name} is {value!r}: write a port, {least} to 65535")
        return int(value)

    def _addresses(self) -> tuple[str, ...]:
        parts = [part.strip() for part in self._text("ADDRESSES", "").split(",")]
        try:
            return tuple(str(ipaddress.ip_address(part)) for part in parts if part)
        except ValueError as error:
            raise ConfigError(f"{PREFIX}ADDRESSES: {error}") from None

    def _seconds(self, name: str, default: float) -> float:
        text = self._text(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0.0 <= value <= 3600.0:
            raise ConfigError(f"{PREFIX}{name} is {text!r}: write seconds, 0 to 3600")
        return value
