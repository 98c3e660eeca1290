"""Settings: defaults, every variable, and a fault that names the variable."""

from __future__ import annotations

import dataclasses

import pytest

from webhook import config
from webhook.config import Config, ConfigError

IMAGE = {"SANDMAN_WEBHOOK_DAEMON_IMAGE": "registry.example/daemon:1"}


def read(**variables: str) -> Config:
    return Config.from_env(
        IMAGE | {config.PREFIX + name: value for name, value in variables.items()}
    )


def test_only_the_image_must_be_given():
    assert read() == Config(daemon_image="registry.example/daemon:1")
    assert read().dns_names == (
        "sandman-webhook.sandman-system.svc",
        "sandman-webhook.sandman-system.svc.cluster.local",
    )


def test_every_setting_can_be_given():
    given = read(
        DEFAULT_DELIVERY="init",
        WORKLOAD_DELIVERY="image",
        ARCHITECTURE="arm64",
        NAMESPACE="other",
        SERVICE="hook",
        CONFIGURATION="second",
        CERTIFICATES="external",
        ADDRESSES="127.0.0.1, ::1",
        HOST="127.0.0.1",
        PORT="0",
        DAEMON_PORT="4000",
        DRAIN_S="0.5",
        LOG_LEVEL="debug",
    )
    assert given.dns_name == "hook.other.svc"
    assert given.addresses == ("127.0.0.1", "::1")
    same = {
        field.name
        for field in dataclasses.fields(Config)
        if getattr(given, field.name) == getattr(read(), field.name)
    }
    assert same == {"daemon_image", "version"}


def test_an_empty_variable_counts_as_absent():
    assert read(PORT="", ADDRESSES=" ") == read()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DAEMON_IMAGE", ""),
        ("DAEMON_IMAGE", "a b"),
        ("DEFAULT_DELIVERY", "ftp"),
        ("WORKLOAD_DELIVERY", "ftp"),
        ("ARCHITECTURE", "AMD 64"),
        ("NAMESPACE", "Not_a_name"),
        ("SERVICE", "-"),
        ("CONFIGURATION", "a b"),
        ("CERTIFICATES", "mine"),
        ("ADDRESSES", "localhost"),
        ("PORT", "tcp://10.96.0.2:443"),
        ("PORT", "65536"),
        ("DAEMON_PORT", "0"),
        ("DRAIN_S", "soon"),
        ("DRAIN_S", "-1"),
        ("DRAIN_S", "nan"),
        ("LOG_LEVEL", "loud"),
    ],
)
def test_a_fault_names_its_variable(name, value):
    with pytest.raises(ConfigError, match=f"SANDMAN_WEBHOOK_{name}"):
        read(**{name: value})
